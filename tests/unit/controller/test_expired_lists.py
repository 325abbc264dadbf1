"""Lists past their deadline, where the controller has died."""

from dataclasses import replace

import pytest
from hand_made import NOW, job, running

from slurm_hadar.controller.expired_lists import Widened, widen
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.cluster import Update

LATE = Steering(
    time=NOW - 90,
    was={"Partition": "v100,k80"},
    wrote={"Partition": "v100"},
    until=NOW - 1,
    ends=NOW + 60,
)
WAITS = {"partitions": ("v100",)}


class Slurm:
    """A cluster that answers each update with ``error``."""

    def __init__(self, error=None):
        self.error, self.updates = error, []

    def apply(self, updates):
        self.updates += [(update.job_id, dict(update.fields)) for update in updates]
        return [self.error for _ in updates]


def widened(slurm, jobs, steerings) -> Widened:
    return widen(slurm, jobs, steerings, NOW)


def test_a_list_past_its_deadline_is_as_it_was_before():
    slurm, late = Slurm(), job(**WAITS)
    done = widened(slurm, [late], {"1": LATE})
    assert done.lists == {"1": "v100,k80"}
    assert slurm.updates == [("1", {"Partition": "v100,k80"})]
    # Of these Slurm is made to count the age again.
    assert done.sent == [(late, Update("1", {"Partition": "v100,k80"}))]
    assert not widened(Slurm(SlurmError("Access denied")), [late], {"1": LATE}).sent


@pytest.mark.parametrize(
    ("shown", "steered"),
    [
        (job(**WAITS), replace(LATE, until=NOW + 1)),
        (job(**WAITS), replace(LATE, until=0.0)),
        (job(**WAITS), Steering()),
        (job(partitions=("k80",)), LATE),
        (job(partitions=("v100", "k80")), LATE),
        (job(**WAITS, declaration=None), LATE),
        (running("1", {"v1": {"v100": 1}}, **WAITS), LATE),
    ],
)
def test_nothing_else_is_changed(shown, steered):
    slurm = Slurm()
    assert not widened(slurm, [shown], {"1": steered}).lists and not slurm.updates


def test_an_array_that_waits_in_one_record_stays_in_one():
    more = {"array_job_id": 7, "array_tasks": "0-2", **WAITS}
    tasks = [job(f"7_{number}", **more) for number in range(3)]
    slurm = Slurm()
    widened(slurm, tasks, {task.id: LATE for task in tasks})
    assert slurm.updates == [("7_[0-2]", {"Partition": "v100,k80"})]


def test_a_refusal_is_reported_unless_the_job_has_begun():
    one, known = [job(**WAITS)], {"1": LATE}
    assert widened(Slurm(SlurmError("Access denied")), one, known).refused == {"1": "Access denied"}
    assert not widened(Slurm(SlurmError("Job is no longer pending")), one, known).refused
