import pytest
from hand_made import NOW, job

from slurm_hadar.controller.retire import ordinary
from slurm_hadar.domain import declaration
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering


@pytest.mark.parametrize(
    ("leased", "ahead_s", "starts"),
    [(False, -60, False), (True, 250, True), (True, -60, False), (False, 250, False)],
)
def test_a_waiting_job_gets_its_own_request_back(leased, ahead_s, starts):
    """A begin time of an earlier release goes; another one is the owner's, and a word about one
    that has passed would clear the age."""
    declared = Declaration(types=("v100",), lease=leased)
    waiting = job(
        state=JobState.PENDING,
        declaration=declared,
        comment=declaration.merge("mine", declared),
        eligible_s=NOW + ahead_s,
    )
    update = ordinary(waiting, Steering(was={"Features": "", "Partition": "a,b"}), NOW)
    assert update.fields["Features"] == "" and update.fields["Partition"] == "a,b"
    assert ("StartTime" in update.fields) == starts
    assert update.fields["Comment"].startswith("mine")
    left = declaration.decode(update.fields["Comment"])
    assert left.off and not left.lease and left.types == ("v100",)


def test_a_running_job_is_only_marked():
    running = job(state=JobState.RUNNING, declaration=Declaration(lease=True))
    steering = Steering(was={"Features": ""}, leased=True)
    assert set(ordinary(running, steering, NOW).fields) == {"Comment"}
