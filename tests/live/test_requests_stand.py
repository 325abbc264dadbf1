"""What a job asks for is what it runs with: nodes, tasks and GPUs as with sbatch."""

import re
import time
from typing import Any

import pytest
from slurms import need
from submit_shell import load_plugins
from trainings import Trainings

from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.options import SandboxOptions

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
    "-N1-3 -n6 --gres=gpu:1",
    "-N2-4 --gpus=4",
    "-N6 --gres=gpu:2",
    "-n6 --ntasks-per-node=2 --gres=gpu:1",
    "-N2 --exclusive --gres=gpu:2",
    "--exclusive -G1",
    "-c8 --gres=gpu:1",
    "-n4 -c8 --gpus=4",
    "--cpus-per-gpu=4 --gpus=2",
    "--mem=4G -N2 --gres=gpu:1",
    "--mem-per-gpu=2G -G2",
    "--mem-per-cpu=500 -n3 -G1",
    "-C v100|k80 -G2",
    "-w v1,k1 --gres=gpu:1",
    "-x v[1-2] -N2 -G2",
    "-p v100,k80 -N2 --gres=gpu:2",
    "--gpus=v100:3",
    "--gres=gpu:k80:2 -N1-2",
    "--gpus-per-socket=1 --sockets-per-node=2",
    "--contiguous -N3 --gres=gpu:1",
    "-O -n4 -N1 --gres=gpu:1",
    "--spread-job -n4 --gres=gpu:1",
    "--use-min-nodes -n4 -G3",
)
DECLARED = "#HADAR types=any\n"
SCRIPT = f'#!/bin/bash\n{DECLARED}srun -N"$SLURM_JOB_NUM_NODES" true && sleep 0.3\n'
PLAIN = SCRIPT.replace(DECLARED, "")
_OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
_FIELDS = (
    "NumNodes", "NumCPUs", "NumTasks", "CPUs/Task", "TresPerNode", "TresPerJob", "TresPerTask",
    "TresPerSocket", "MinMemoryCPU", "MinMemoryNode", "OverSubscribe", "Contiguous", "Features",
)  # fmt: skip


@pytest.fixture
def site(tmp_path):
    need(None)
    settings = {"partitions": {"opt_in": ("gpu",)}}
    box = Sandbox.up(
        tmp_path / "box", cred_expire_s=5, options=SandboxOptions(mode="act", settings=settings)
    )
    try:
        made = Trainings(box, tmp_path)
        yield made
        made.store.close()
    finally:
        box.down()


def ran(site, id_):
    """What Slurm shows of a job that ended: its request and how many GPUs it had."""
    shown = site.box.run("scontrol", "-d", "show", "job", id_)
    found = {key: value for key, value in re.findall(r"([\w/]+)=(\S*)", shown) if key in _FIELDS}
    gpus = re.search(r"gres/gpu=(\d+)", shown)
    return {**found, "gpus": gpus and gpus[1]}


def run(site, id_, request, managed):
    """Wait for a job's end, under ticks where it is managed; else a tick has nothing to do."""
    next_tick = time.monotonic()
    end = next_tick + 60
    # Every job of an array, or part of a heterogeneous job.
    while not (states := set(site.box.job_state(id_).split())) <= _OVER:
        now = time.monotonic()
        assert now < end, (request, site.job(id_), site._seen())
        if managed and now >= next_tick:
            site.tick()
            next_tick = time.monotonic() + 0.4
        time.sleep(0.2)
    assert states == {"COMPLETED"}, (request, states, site.log(id_))
    return ran(site, id_)


def test_every_request_runs_as_with_sbatch(site):
    """One at a time on an idle cluster: with sbatch, declared with hbatch, opted in by a
    plugin."""

    def plain(words):
        return site.cluster.submit(PLAIN, ["-o", "/dev/null", *words])

    def opted_in(words):
        # The default partition, which sbatch does not name, is one that opts in.
        id_ = plain(words)
        managed = "[hadar1" in site.box.run("scontrol", "show", "job", id_)
        assert managed is not any(word.startswith("-p") for word in words), words
        return id_

    # Both plugins opt in alike, so each has half of the requests.
    ways = (
        (plain, (), REQUESTS),
        (lambda words: site.hbatch(SCRIPT, *words), (), REQUESTS),
        (opted_in, ("job-submit",), REQUESTS[::2]),
        (opted_in, ("cli-filter",), REQUESTS[1::2]),
    )
    found: dict[str, list[Any]] = {request: [] for request in REQUESTS}
    for way, plugins, requests in ways:
        if plugins:
            load_plugins(site.box, site.config, *plugins)
        # A controller is alive when the first job is submitted, too.
        site.tick()
        for request in requests:
            id_ = way(request.split())
            found[request].append(run(site, id_, request, managed=way is not plain))
    assert not {
        request: (as_typed, *others)
        for request, (as_typed, *others) in found.items()
        if any(other != as_typed for other in others)
    }
