"""Some minutes of everything at once; at the end every job is accounted for.

The long form is ``python -m benchmarks.soak``.
"""

import os

import pytest
from slurms import need

from benchmarks.soak import jobs
from benchmarks.soak.__main__ import soak, table
from benchmarks.soak.storm import Rates

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

OFTEN = Rates(
    submit_s=6.0, cancel_s=25.0, fault_s=10.0, kill_s=9.0, stall_s=8.0, burst=9, backlog=8
)


def test_every_job_is_accounted_for(tmp_path):
    """With the rights of a user, as what a site's controller does to a job is kept then."""
    need(None)
    result = soak(3.0, 1, tmp_path, OFTEN, rights="user")
    print("\n".join(table(result)))
    assert not result.wrong, "\n".join([*table(result), str(tmp_path)])
    assert result.lives >= 3
    assert sum(result.faults.values()) >= 3
    assert result.faults["slurmctld"] and result.cancelled and result.kills_in_moves
    assert result.account.lineages
    ended = {kind for kind, end in result.account.ended if end == "COMPLETED"}
    assert ended & jobs.HOSTILE.keys() and "ordinary" in ended
    assert result.liveness.looks and (result.squatted or os.getuid())
    assert result.stalls_in_saves and result.published
