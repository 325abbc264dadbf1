"""``hadar optout``: what it says."""

from hand_made import config, job, running

from slurm_hadar.cli.jobs import _still_ours
from slurm_hadar.domain.steering import Steering

STEERED = Steering(was={"Partition": "gpu"}, wrote={"Partition": "v100,p100"})


def test_what_a_requeue_of_a_running_job_would_show_is_said_with_its_cure():
    runs = running("1", {"v1": {"v100": 1}}, partitions=("v100",))
    assert "scontrol update JobId=1 Partition=gpu" in _still_ours(runs, STEERED, config())
    assert _still_ours(runs, Steering(), config()) == ""
    # One that waits has its own request again.
    assert _still_ours(job("1", partitions=("v100", "p100")), STEERED, config()) == ""
