"""The printed undo command of a job that was moved to more GPUs restores its own number."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_controller import a_site, first, training

from slurm_hadar.controller.presentation import job_explanation
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import JobState

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

HADAR = str(Path(sys.executable).parent / "hadar")


def taken(site, command):
    """Without an accounting database Slurm refuses a change of Partition now and then."""
    try:
        site.box.run(*shlex.split(command))
    except SlurmError as error:
        assert "temporarily unavailable" in str(error)
        return False
    return True


@pytest.mark.each_slurm
def test_the_printed_command_restores_the_gpu_count(make_sandbox, tmp_path, slurm_prefix):
    site = a_site(make_sandbox, tmp_path, slurm_prefix=slurm_prefix)
    script = training(site.folder, 10**8).replace("gpus=1 ", "gpus=1-2 ")
    id_ = site.hbatch(script, "--gres=gpu:1", *first("k80"))
    site.until(lambda: id_ in site.controller.observe().progress)
    site.want = {id_: {"v100": 2}}
    site.until(lambda: site.controller.tick() and site.running(id_, "v100")())
    assert site.job(id_).gpu_count == 2
    words = [HADAR, "optout", id_, "--config", str(site.box.config_path)]
    done = subprocess.run(words, env=site.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = job_explanation.explanation_of(site.controller, id_)
    assert "TresPerNode: gpu:2 (asked for: gpu:1)" in found.notes
    (command,) = [note for note in found.notes if note.startswith("By hand: ")]
    undo = command.rpartition("squeue shows PD: ")[2]
    assert undo.removesuffix(" StartTime=now") in done.stdout
    site.box.run("scontrol", "requeue", id_)
    site.until(lambda: site.job(id_).slurm_state == "PENDING")
    time.sleep(1.5)
    site.until(lambda: taken(site, undo))
    site.until(site.running(id_))
    assert site.job(id_).state is JobState.RUNNING and site.job(id_).gpu_count == 1
    site.store.close()
