"""A higher tier over one GPU type, or a QOS, whose jobs cancel others: a job of ``sbatch`` on
another type runs on, so one that opted in is not moved there."""

import os
import pwd
import re
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


def set_preemption(box, **settings):
    text = box.conf.read_text()
    for key, value in settings.items():
        text, found = re.subn(rf"(?<=\b{key}=)\S+", value, text)
        assert found, key
    box.conf.write_text(text)
    box.stop_slurmctld()
    box.start_slurmctld()
    write_wrapper_site(config.load(box.config_path), box.config_path)


def submitted_beside(box, fill):
    """Of hbatch, on the k80, as that job has the v100."""
    argv = [HBATCH, "--parsable", "-o/dev/null", "-pgpu", "--gres=gpu:1", "-t60"]
    done = subprocess.run(argv, input=SCRIPT, env=box.env, capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    job = done.stdout.strip()
    box.wait_state(job, ["RUNNING"])
    assert box.run("squeue", "-h", "-j", job, "-o", "%P").strip() == "k80"
    box.run("scancel", fill)
    box.wait_state(fill, ["CANCELLED"])
    return job


def tick(box):
    done = typed.hadar(box.env, "tick")
    assert done.returncode == 0, done.stderr
    return done.stdout


def plain(box, *words):
    return box.run("sbatch", "--parsable", "--gres=gpu:1", "-o/dev/null", *words,
                   "--wrap=exec sleep 600").strip()  # fmt: skip


@pytest.mark.each_slurm
def test_no_job_moves_to_where_a_higher_tier_would_cancel_it(box):
    text = box.conf.read_text()
    assert "PriorityTier=10 PreemptMode=OFF" in text
    box.conf.write_text(text.replace("PreemptMode=OFF", "PreemptMode=CANCEL") + HIGH)
    box.run("scontrol", "reconfigure")
    write_wrapper_site(config.load(box.config_path), box.config_path)
    fill = plain(box, "-pv100")
    box.wait_state(fill, ["RUNNING"])
    tick(box)
    job = submitted_beside(box, fill)
    for _ in range(2):
        assert "move job" not in tick(box)
    assert "PreemptMode=CANCEL" in typed.hadar(box.env, "explain", job).stdout
    high = plain(box, "-phigh")
    box.wait_state(high, ["RUNNING"])
    assert box.job_state(job) == "RUNNING"
    box.run("scancel", high)
    box.wait_state(high, ["CANCELLED"])
    # It is that tier that keeps it.
    box.run("scontrol", "update", "PartitionName=high", "PriorityTier=10")
    assert wait_until(lambda: f"move job {job}" in tick(box), 60, 1.0)


def test_no_job_moves_to_where_another_qos_would_cancel_it(box_with_qos):
    box = box_with_qos
    box.run("sacctmgr", "-i", "add", "qos", "urgent", "set", "Preempt=normal", "Priority=1000")
    box.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "PreemptMode=Cancel")
    me = pwd.getpwuid(os.getuid()).pw_name
    box.run("sacctmgr", "-i", "modify", "user", me, "set", "qos+=urgent")
    set_preemption(box, PreemptType="preempt/qos")
    fill = plain(box, "-pv100")
    box.wait_state(fill, ["RUNNING"])
    tick(box)
    job = submitted_beside(box, fill)
    for _ in range(2):
        assert "move job" not in tick(box)
    assert "preempts it by QOS" in typed.hadar(box.env, "explain", job).stdout
    urgent = plain(box, "-pv100", "--qos=urgent")
    box.wait_state(urgent, ["RUNNING"])
    assert box.job_state(job) == "RUNNING"
    box.run("scancel", urgent)
    box.wait_state(urgent, ["CANCELLED"])
    # It is that QOS that keeps it.
    box.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "PreemptMode=Requeue")
    assert wait_until(lambda: f"move job {job}" in tick(box), 60, 1.0)
