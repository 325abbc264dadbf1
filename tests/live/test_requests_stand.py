"""What a job asks for is what it runs with: nodes, tasks and GPUs as with sbatch."""

import re
import time

import pytest
from conftest import need
from trainings import Trainings

from slurm_hadar.domain.job import JobState
from slurm_hadar.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

REQUESTS = (
    "-G4 -n4",
    "-n8 --gpus-per-task=1",
    "-n3 --gpus=3",
    "-n40 -G2",
    "-N2 --gpus=2",
    "-N3 --gpus=3",
    "-N4 -G4",
    "-N2 -n2 --gpus-per-task=1",
    "-N2 --gres=gpu:1",
    "-N2 --gpus-per-node=2",
    "-n40 --gres=gpu:1",
    "-G2",
    "--gres=gpu:2",
    "--gpus-per-task=2 -n1",
)
SCRIPT = '#!/bin/bash\n#HADAR types=any\nsrun -N"$SLURM_JOB_NUM_NODES" true && sleep 1\n'
_FIELDS = ("NumNodes", "NumTasks", "TresPerNode", "TresPerJob", "TresPerTask", "MinMemoryCPU")


@pytest.fixture
def site(tmp_path):
    need(None)
    box = Sandbox.up(tmp_path / "box", mode="act", cred_expire_s=5)
    try:
        made = Trainings(box, tmp_path)
        yield made
        made.store.close()
    finally:
        box.down()


def ran(site, id_):
    """What Slurm shows of a job that ended: its request and how many GPUs it had."""
    shown = site.box.run("scontrol", "-d", "show", "job", id_)
    found = {key: value for key, value in re.findall(r"(\w+)=(\S*)", shown) if key in _FIELDS}
    gpus = re.search(r"gres/gpu=(\d+)", shown)
    return {**found, "gpus": gpus and gpus[1]}


def test_every_request_runs_as_with_sbatch(site):
    """One at a time on an idle cluster: with sbatch, then opted in under ticks."""
    different = {}
    for request in REQUESTS:
        words = request.split()
        found = []
        for opted_in in (False, True):
            if opted_in:
                id_ = site.hbatch(SCRIPT, *words)
            else:
                plain = SCRIPT.replace("#HADAR types=any\n", "")
                id_ = site.cluster.submit(plain, ["-o", "/dev/null", *words])
            end = time.monotonic() + 60
            while site.job(id_).state is not JobState.FINISHED:
                assert time.monotonic() < end, (request, site.job(id_), site._seen())
                site.tick()
                time.sleep(0.2)
            assert site.job(id_).slurm_state.startswith("COMPLETED"), (request, site.log(id_))
            found.append(ran(site, id_))
        if found[0] != found[1]:
            different[request] = found
    assert not different
