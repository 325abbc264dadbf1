"""What a list of partitions could cost its job: while a partition of it is closed, also with no
controller any more, and for the tasks of an array."""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurms import need

from slurm_hadar.sandbox import processes
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import SandboxOptions

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
LAYOUT = Layout(
    (NodeGroup("v", 1, "v100", 2), NodeGroup("p", 1, "p100", 1), NodeGroup("k", 1, "k80", 1)),
    (
        PartitionSpec("gpu", ("v", "p", "k"), default=True),
        PartitionSpec("v100", ("v",)),
        PartitionSpec("p100", ("p",)),
        PartitionSpec("k80", ("k",)),
    ),
)
BIN = Path(sys.executable).parent


@pytest.fixture
def box(tmp_path):
    need(None)
    settings = {"partitions": {"groups": {"gpu": ("v100", "p100", "k80")}}}
    found = Sandbox.up(
        tmp_path / "box", LAYOUT, options=SandboxOptions(mode="act", settings=settings)
    )
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


WORDS = ("--parsable", "-o", "/dev/null", "-t5")
SCRIPT = "#!/bin/sh\n#HADAR types=any gpus=1\nsleep 60\n"
TYPES = {"v100", "p100", "k80"}


def ready(box):
    """hbatch writes lists where a controller acts."""
    typed(box, "hadar", "check", "--write")
    typed(box, "hadar", "tick")


def filled(box, *kinds):
    """A job on each of these GPU types, with all GPUs of it."""
    gpus = {"v100": 2, "p100": 1, "k80": 1}
    requests = [("-p", name, f"--gres=gpu:{gpus[name]}") for name in kinds]
    jobs = [box.run("sbatch", *one, *WORDS, "--wrap", "sleep 300").strip() for one in requests]
    assert processes.wait_until(lambda: all(shown(box, j, "%T") == "RUNNING" for j in jobs), 60)
    return jobs


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_it_starts_without_a_controller_where_its_owner_lets_it(box, state):
    ready(box)
    *_, on_k80 = filled(box, "v100", "p100", "k80")
    mine = typed(box, "hbatch", "-p", "gpu", "--gres=gpu:1", *WORDS, text=SCRIPT)
    typed(box, "hadar", "tick")
    assert set(shown(box, mine, "%P").split(",")) == TYPES
    box.run("scontrol", "update", "PartitionName=k80", f"State={state}")
    typed(box, "hadar", "tick")
    # No controller from here on.
    assert shown(box, mine, "%P") == "gpu"
    box.run("scontrol", "update", "PartitionName=k80", "State=UP")
    for name in ("v100", "p100"):
        box.run("scontrol", "update", f"PartitionName={name}", "State=DOWN")
    box.run("scancel", on_k80)
    assert processes.wait_until(lambda: shown(box, mine, "%T|%N") == "RUNNING|k1", 90)


def test_its_list_comes_back_with_the_partition(box):
    ready(box)
    filled(box, "v100", "p100", "k80")
    box.run("scontrol", "update", "PartitionName=k80", "State=DRAIN")
    mine = typed(box, "hbatch", "-p", "gpu", "--gres=gpu:1", *WORDS, text=SCRIPT)
    typed(box, "hadar", "tick")
    assert shown(box, mine, "%P") == "gpu"
    box.run("scontrol", "update", "PartitionName=k80", "State=UP")
    typed(box, "hadar", "tick")
    assert set(shown(box, mine, "%P").split(",")) == TYPES


@pytest.mark.parametrize("state", ["DRAIN", "INACTIVE"])
def test_a_short_drain_before_the_first_tick_of_a_job_costs_it_no_type(box, state):
    """Slurm leaves such a partition out of the list of a new job, as if its owner had not named
    it."""
    ready(box)
    filled(box, "v100", "p100", "k80")
    box.run("scontrol", "update", "PartitionName=k80", f"State={state}")
    typed(box, "hadar", "tick")
    mine = typed(box, "hbatch", "-p", "gpu", "--gres=gpu:1", *WORDS, text=SCRIPT)
    assert shown(box, mine, "%P") == "gpu"
    box.run("scontrol", "update", "PartitionName=k80", "State=UP")
    typed(box, "hadar", "tick")
    assert set(shown(box, mine, "%P").split(",")) == TYPES


def test_without_its_group_a_list_becomes_what_its_owner_typed(box):
    ready(box)
    filled(box, "v100", "p100", "k80")
    words = ("-p", "gpu", "--gres=gpu:1", *WORDS)
    mine = typed(box, "hbatch", *words, text=SCRIPT)
    some = typed(box, "hbatch", *words, text=SCRIPT.replace("any", "v100,k80"))
    own = typed(box, "hbatch", "-p", "v100,k80", *words[2:], text=SCRIPT)
    typed(box, "hadar", "tick")
    assert set(shown(box, mine, "%P").split(",")) == TYPES
    assert set(shown(box, some, "%P").split(",")) == {"v100", "k80"}
    text = box.config_path.read_text()
    left = re.sub(r"(?m)^groups = .*\n", "", text)
    assert left != text and "groups" not in left
    box.config_path.write_text(left)
    typed(box, "hadar", "tick")
    assert (shown(box, mine, "%P"), shown(box, some, "%P|%f")) == ("gpu", "gpu|v100|k80")
    assert set(shown(box, own, "%P").split(",")) == {"v100", "k80"}
    # Once.
    assert "0 changes sent" in typed(box, "hadar", "tick")


def test_the_tasks_of_an_array_start_on_all_types_in_one_pass_of_backfill(box):
    """With a list they start in one partition of it in each pass, an owner's list too."""
    ready(box)
    on_p100, on_k80 = filled(box, "p100", "k80")
    box.run("sbatch", "-p", "v100", "--gres=gpu:1", *WORDS, "--wrap", "sleep 300")
    # It waits for both GPUs of v1, in the partition that has all nodes.
    box.run("sbatch", "-p", "gpu", "--gres=gpu:v100:2", *WORDS, "--wrap", "sleep 300")
    words = ("-p", "gpu", "--gres=gpu:1", "--array=0-3", *WORDS)
    mine = typed(box, "hbatch", *words, text=SCRIPT.replace("sleep 60", "sleep 200"))
    typed(box, "hadar", "tick")
    waiting = box.run("squeue", "-h", "-t", "PD", "-o", "%P", "-j", mine).split()
    assert set(waiting) == {"gpu"}
    box.run("scancel", on_p100, on_k80)
    began = {}

    def both():
        rows = box.run("squeue", "-h", "-r", "-t", "R", "-o", "%N", "-j", mine).split()
        began.update({node: time.monotonic() for node in rows if node not in began})
        return {"p1", "k1"} <= began.keys()

    assert processes.wait_until(both, 60, 0.2)
    # bf_interval of a sandbox is 5 s.
    assert abs(began["p1"] - began["k1"]) < 4


def test_a_job_that_is_managed_again_has_its_list_and_no_features(box):
    ready(box)
    filled(box, "v100", "p100", "k80")
    script = SCRIPT.replace("any", "v100,k80")
    mine = typed(box, "hbatch", "-p", "gpu", "--gres=gpu:1", *WORDS, text=script)
    assert shown(box, mine, "%f|%P") in ("(null)|v100,k80", "(null)|k80,v100")
    said = typed(box, "hadar", "optout", mine)
    assert shown(box, mine, "%f|%P") == "v100|k80|gpu"
    typed(box, *shlex.split(said.partition("undo with: ")[2].splitlines()[0]))
    typed(box, "hadar", "tick")
    assert shown(box, mine, "%f|%P") in ("(null)|v100,k80", "(null)|k80,v100")
    assert "asked for: v100|k80" not in typed(box, "hadar", "explain", mine)
