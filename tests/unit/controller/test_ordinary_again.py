import pytest
from hand_made import NOW, job

from slurm_hadar.controller.retire import ordinary
from slurm_hadar.domain import declaration
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering


@pytest.mark.parametrize("leased", [False, True])
def test_a_waiting_job_gets_its_own_request_back(leased):
    declared = Declaration(types=("v100",), lease=leased)
    waiting = job(
        state=JobState.PENDING,
        declaration=declared,
        comment=declaration.merge("mine", declared),
    )
    update = ordinary(waiting, Steering(was={"Features": "", "Partition": "a,b"}), NOW)
    assert update.fields["Features"] == "" and update.fields["Partition"] == "a,b"
    assert ("StartTime" in update.fields) == leased
    assert update.fields["Comment"].startswith("mine")
    left = declaration.decode(update.fields["Comment"])
    assert left.off and not left.lease and left.types == ("v100",)


def test_a_running_job_is_only_marked():
    running = job(state=JobState.RUNNING, declaration=Declaration(lease=True))
    steering = Steering(was={"Features": ""}, leased=True)
    assert set(ordinary(running, steering, NOW).fields) == {"Comment"}
