"""Limits of a partition that become tighter hold for jobs that wait, not for those that run: such a
job of ``sbatch`` runs on, so one that opted in is not requeued for a move."""

import subprocess

import pytest
import typed
from shared_steps import HBATCH

from slurm_hadar import config
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.sandbox.processes import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

LAYOUT = Layout((NodeGroup("v", 1, "v100", 1), NodeGroup("k", 1, "k80", 1)))
DECLARED = ("types=any", "model=resnet18", "batch=64", "samples=1e6", "checkpoint=restart")
SCRIPT = f"#!/bin/sh\n#HADAR {' '.join(DECLARED)} lose=600 restart_cost=1\nexec sleep 600\n"
PARTITIONS = ("gpu", "v100", "k80")


@pytest.fixture
def box(make_sandbox, slurm_prefix):
    settings = {"guards": {"min_between_moves_s": 0.0}}
    options = SandboxOptions(mode="act", settings=settings)
    box = make_sandbox(layout=LAYOUT, slurm_prefix=slurm_prefix, options=options)
    write_wrapper_site(config.load(box.config_path), box.config_path)
    return box


def tick(box):
    done = typed.hadar(box.env, "tick")
    assert done.returncode == 0, done.stderr
    return done.stdout


def change(box, setting):
    for name in PARTITIONS:
        box.run("scontrol", "update", f"PartitionName={name}", setting)


def stays(box, job, says):
    for _ in range(2):
        assert "move job" not in tick(box)
    assert box.job_state(job) == "RUNNING"
    assert says in typed.hadar(box.env, "explain", job).stdout


@pytest.mark.each_slurm
def test_a_job_that_would_not_start_again_is_not_moved(box):
    fill = box.run("sbatch", "--parsable", "-pv100", "--gres=gpu:1", "-o/dev/null",
                   "--wrap=exec sleep 600").strip()  # fmt: skip
    box.wait_state(fill, ["RUNNING"])
    tick(box)
    argv = [HBATCH, "--parsable", "-o/dev/null", "-pgpu", "--gres=gpu:1", "-t60"]
    done = subprocess.run(argv, input=SCRIPT, env=box.env, capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    job = done.stdout.strip()
    box.wait_state(job, ["RUNNING"])
    change(box, "MaxTime=5")
    box.run("scancel", fill)
    box.wait_state(fill, ["CANCELLED"])
    stays(box, job, "MaxTime")
    change(box, "MaxTime=1-0")
    change(box, "MinNodes=2")
    stays(box, job, "MinNodes")
    change(box, "MinNodes=0")
    for name, tight, wide in (
        ("MaxCPUsPerNode", "0", "UNLIMITED"),
        ("MaxMemPerNode", "1", "0"),
        ("MaxMemPerCPU", "1", "0"),
    ):
        change(box, f"{name}={tight}")
        stays(box, job, name)
        change(box, f"{name}={wide}")

    def on_v100():
        tick(box)
        return box.run("squeue", "-h", "-j", job, "-o", "%T %N").strip() == "RUNNING v1"

    assert wait_until(on_v100, 90, 1.0)
