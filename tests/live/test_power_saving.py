"""Nodes that are powered down: a job that opted in waits for none to boot while another is free, as
no job of ``sbatch`` does."""

import subprocess

import pytest
import typed
from shared_steps import HBATCH

from slurm_hadar import config
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

# A job that Slurm starts on a node without a slurmd waits there, CONFIGURING, for it to boot.
LAYOUT = Layout((NodeGroup("k", 1, "k80", 2), NodeGroup("v", 1, "v100", 2, started=False)))
DECLARED = ("--hadar-types=any", "--hadar-model=resnet18", "--hadar-batch=64")
WORK = (*DECLARED, "--hadar-samples=1e6", "--hadar-checkpoint=restart", "--hadar-lose=600")
SECONDS = 20


@pytest.fixture
def box(make_sandbox, slurm_prefix):
    guards = {"min_between_moves_s": 0.0}
    return make_sandbox(
        layout=LAYOUT,
        slurm_prefix=slurm_prefix,
        options=SandboxOptions(mode="act", settings={"guards": guards}),
    )


def tick(box):
    done = typed.hadar(box.env, "tick")
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(box, *words):
    argv = [HBATCH, "--parsable", "-o", "/dev/null", "--gres=gpu:1", "-t60", *words, "--wrap"]
    done = subprocess.run(
        [*argv, "exec sleep 600"], env=box.env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shown(box, job, field):
    return box.run("squeue", "-h", "-j", job, "-o", field).strip()


@pytest.mark.each_slurm
def test_no_job_waits_for_a_node_to_boot_while_another_is_free(box):
    write_wrapper_site(config.load(box.config_path), box.config_path)
    tick(box)
    first = submit(box, "-p", "gpu", *WORK)
    box.wait_state(first, ["RUNNING"], SECONDS)
    assert shown(box, first, "%P %N") == "k80 k1"
    for _ in range(3):
        assert "move job" not in tick(box)
    assert shown(box, first, "%T %N") == "RUNNING k1"
    # Where no other is free it starts there, as a job of sbatch does.
    box.wait_state(submit(box, "-p", "gpu"), ["RUNNING"], SECONDS)
    tick(box)
    last = submit(box, "-p", "gpu", *WORK)
    box.wait_state(last, ["CONFIGURING"], SECONDS)
    assert shown(box, last, "%N") == "v1"
