"""A higher tier over one GPU type, or a QOS, whose jobs cancel others: a job of ``sbatch`` on
another type runs on, so one that opted in is not moved there."""

import os
import pwd
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
DECLARED = "types=any model=resnet18 batch=64 samples=1e6 checkpoint=restart lose=600"
SCRIPT = f"#!/bin/sh\n#HADAR {DECLARED} restart_cost=1\nexec sleep 600\n"
HIGH = "PartitionName=high Nodes=v1 PriorityTier=20 PreemptMode=OFF MaxTime=1-0\n"
SETTINGS = {"guards": {"min_between_moves_s": 0.0}}


@pytest.fixture
def box(make_sandbox, slurm_prefix):
    options = SandboxOptions(mode="act", settings=SETTINGS)
    return make_sandbox(layout=LAYOUT, slurm_prefix=slurm_prefix, options=options)


@pytest.fixture
def box_with_qos(make_sandbox):
    options = SandboxOptions(mode="act", settings=SETTINGS, with_accounting=True)
    return make_sandbox(layout=LAYOUT, options=options)


def tick(box):
    done = typed.hadar(box.env, "tick")
    assert done.returncode == 0, done.stderr
    return done.stdout


def plain(box, *words):
    return box.run("sbatch", "--parsable", "--gres=gpu:1", "-o/dev/null", *words,
                   "--wrap=exec sleep 600").strip()  # fmt: skip


def stays(box, why, *taker):
    """The managed job, which runs on a k80 while a v100 is free: no tick moves it, and it lives
    while a job of that ``sbatch`` has the v100."""
    write_wrapper_site(config.load(box.config_path), box.config_path)
    fill = plain(box, "-pv100")
    box.wait_state(fill, ["RUNNING"])
    tick(box)
    argv = [HBATCH, "--parsable", "-o/dev/null", "-pgpu", "--gres=gpu:1", "-t60"]
    done = subprocess.run(argv, input=SCRIPT, env=box.env, capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    job = done.stdout.strip()
    box.wait_state(job, ["RUNNING"])
    assert box.run("squeue", "-h", "-j", job, "-o", "%P").strip() == "k80"
    box.run("scancel", fill)
    box.wait_state(fill, ["CANCELLED"])
    for _ in range(2):
        assert "move job" not in tick(box)
    said = typed.hadar(box.env, "explain", job).stdout
    assert why in said and "PreemptMode=CANCEL" in said
    first = plain(box, *taker)
    box.wait_state(first, ["RUNNING"])
    assert box.job_state(job) == "RUNNING"
    box.run("scancel", first)
    box.wait_state(first, ["CANCELLED"])
    return job


@pytest.mark.each_slurm
def test_no_job_moves_to_where_a_higher_tier_would_cancel_it(box):
    text = box.conf.read_text()
    assert "PriorityTier=10 PreemptMode=OFF" in text
    box.conf.write_text(text.replace("PreemptMode=OFF", "PreemptMode=CANCEL") + HIGH)
    box.run("scontrol", "reconfigure")
    job = stays(box, "of a higher tier", "-phigh")
    # It is that tier that keeps it.
    box.run("scontrol", "update", "PartitionName=high", "PriorityTier=10")
    assert wait_until(lambda: f"move job {job}" in tick(box), 60, 1.0)


def test_no_job_moves_to_where_another_qos_would_cancel_it(box_with_qos):
    box = box_with_qos
    box.run("sacctmgr", "-i", "add", "qos", "urgent", "set", "Preempt=normal", "Priority=1000")
    box.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "PreemptMode=Cancel")
    me = pwd.getpwuid(os.getuid()).pw_name
    box.run("sacctmgr", "-i", "modify", "user", me, "set", "qos+=urgent")
    text = box.conf.read_text()
    assert "preempt/partition_prio" in text
    box.stop_slurmctld()
    box.conf.write_text(text.replace("preempt/partition_prio", "preempt/qos"))
    box.start_slurmctld()
    job = stays(box, "preempts it by QOS", "-pv100", "--qos=urgent")
    # It is that QOS that keeps it.
    box.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "PreemptMode=Requeue")
    assert wait_until(lambda: f"move job {job}" in tick(box), 60, 1.0)
