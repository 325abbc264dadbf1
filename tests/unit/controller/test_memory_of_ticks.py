"""What whole ticks leave in memory when the jobs that they saw are gone."""

import gc

import pytest

from benchmarks.fuzz import ticked
from slurm_hadar.domain.job import Job


def jobs_there():
    return sum(type(one) is Job for one in gc.get_objects())


@pytest.mark.parametrize("policy", ["hadar", "timetable", "gavel_las", "tiresias", "hadare"])
def test_a_tick_leaves_no_job_to_the_garbage_collector(policy, tmp_path):
    """Python looks for circles of references after thousands of them, so jobs in one would make
    the controller grow in leaps."""
    # What other tests left is not looked through.
    gc.freeze()
    try:
        ticked.ticked(ticked.scene(policy), tmp_path)
        gc.collect()
        before = jobs_there()
        gc.disable()
        for _ in range(3):
            assert all(
                report.observation.jobs for report in ticked.ticked(ticked.scene(policy), tmp_path)
            )
        assert jobs_there() == before
    finally:
        gc.enable()
        gc.unfreeze()
