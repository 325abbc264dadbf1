"""While a partition of its list is closed a job is not narrower than its owner wrote it: also with
no controller any more it starts where plain sbatch would."""

import subprocess
import sys
from pathlib import Path

import pytest
from slurms import need

from slurm_hadar.sandbox import processes
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
LAYOUT = Layout(
    (NodeGroup("v", 1, "v100", 1), NodeGroup("k", 1, "k80", 1)),
    (
        PartitionSpec("gpu", ("v", "k"), default=True),
        PartitionSpec("v100", ("v",)),
        PartitionSpec("k80", ("k",)),
    ),
)
BIN = Path(sys.executable).parent


@pytest.fixture
def box(tmp_path):
    need(None)
    settings = {"partitions": {"groups": {"gpu": ("v100", "k80")}}}
    found = Sandbox.up(tmp_path / "box", LAYOUT, mode="act", settings=settings)
    try:
        yield found
    finally:
        found.down()


def typed(box, *words, text=""):
    argv = [str(BIN / words[0]), *words[1:]]
    done = subprocess.run(
        argv, env=box.env, input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def shown(box, job, what):
    return box.run("squeue", "-h", "-t", "all", "-o", what, "-j", job).strip()


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_it_starts_without_a_controller_where_its_owner_lets_it(box, state):
    typed(box, "hadar", "check", "--write")
    words = ("--parsable", "-o", "/dev/null", "-t5", "--gres=gpu:1")
    full = [
        box.run("sbatch", "-p", name, *words, "--wrap", "sleep 300").strip()
        for name in ("v100", "k80")
    ]
    assert processes.wait_until(lambda: all(shown(box, j, "%T") == "RUNNING" for j in full), 60)
    script = "#!/bin/sh\n#HADAR types=any gpus=1\nsleep 60\n"
    mine = typed(box, "hbatch", "-p", "gpu", *words, text=script)
    typed(box, "hadar", "tick")
    assert set(shown(box, mine, "%P").split(",")) == {"v100", "k80"}
    box.run("scontrol", "update", "PartitionName=k80", f"State={state}")
    typed(box, "hadar", "tick")
    # No controller from here on.
    assert shown(box, mine, "%P") == "gpu"
    box.run("scontrol", "update", "PartitionName=k80", "State=UP")
    box.run("scontrol", "update", "PartitionName=v100", "State=DOWN")
    box.run("scancel", full[1])
    assert processes.wait_until(lambda: shown(box, mine, "%T|%N") == "RUNNING|k1", 90)


def test_its_list_comes_back_with_the_partition(box):
    typed(box, "hadar", "check", "--write")
    words = ("--parsable", "-o", "/dev/null", "-t5", "--gres=gpu:1")
    for name in ("v100", "k80"):
        box.run("sbatch", "-p", name, *words, "--wrap", "sleep 300")
    box.run("scontrol", "update", "PartitionName=k80", "State=DRAIN")
    script = "#!/bin/sh\n#HADAR types=any gpus=1\nsleep 60\n"
    mine = typed(box, "hbatch", "-p", "gpu", *words, text=script)
    typed(box, "hadar", "tick")
    assert shown(box, mine, "%P") == "gpu"
    box.run("scontrol", "update", "PartitionName=k80", "State=UP")
    typed(box, "hadar", "tick")
    assert set(shown(box, mine, "%P").split(",")) == {"v100", "k80"}
