"""Some minutes of everything at once; at the end every job is accounted for.

The long form is ``python -m benchmarks.soak``.
"""

import pytest
from conftest import need

from benchmarks.soak.__main__ import soak, table
from benchmarks.soak.storm import Rates

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

OFTEN = Rates(submit_s=6.0, cancel_s=25.0, fault_s=10.0, kill_s=9.0)


def test_every_job_is_accounted_for(tmp_path):
    need(None)
    result = soak(2.0, 1, tmp_path, OFTEN)
    print("\n".join(table(result)))
    assert not result.wrong, "\n".join([*table(result), str(tmp_path)])
    assert result.lives >= 3
    assert sum(result.faults.values()) >= 3
    assert result.account.lineages
