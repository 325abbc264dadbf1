"""A training of a model that no table knows, which declares no work: it grows and moves by itself,
and ends before the same training under plain Slurm."""

import re
import subprocess

import pytest
import typed
from trainings import ROOT, SMALL_TORCH, Trainings, digits_file, moves_of

from slurm_hadar.domain.job import JobState
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

MODEL = "newt"
SPEEDS = {MODEL: {"v100": {1: 40.0, 2: 76.0, 4: 140.0}, "k80": {1: 10.0}}}
"""Samples/s, which the emulated GPUs have and no profile knows."""
LAYOUT = Layout(
    (
        NodeGroup("v", 1, "v100", 4),
        NodeGroup("w", 1, "v100", 1, features=("own",)),
        NodeGroup("k", 1, "k80", 1),
    )
)
INFERRED = re.compile(
    r"inferred from [124] x (v100|k80).* that its owner's runs measured, within about \d+%"
)
SAMPLES = 7200
"""Three minutes on one v100."""


@pytest.fixture
def site(make_sandbox, tmp_path):
    """With the configuration as it is by default. Slurm starts a requeued job by itself long after
    a slow controller has sent it on."""
    box = make_sandbox(
        layout=LAYOUT, cred_expire_s=90, options=SandboxOptions(mode="act", base_rates=SPEEDS)
    )
    return Trainings(box, tmp_path)


def script(site, name, declared=""):
    return (
        f"#!/bin/bash\n{declared}\n"
        "trap '' USR2\n"
        'echo "attempt on GPUs $CUDA_VISIBLE_DEVICES of $SLURMD_NODENAME"\n'
        f"exec {SMALL_TORCH} {ROOT}/examples/train_digits.py --model {MODEL} --batch 8 "
        f"--samples {SAMPLES} --checkpoint {site.folder}/{name}.pt "
        f"--data {digits_file(site.folder)}\n"
    )


def plain(site):
    """The same training as a careful user submits it to Slurm: one GPU of the fastest type."""
    path = site.folder / "plain.sh"
    path.write_text(script(site, "plain"))
    words = ["-p", "v100", "-C", "own", "--gres=gpu:v100:1", "-o", str(site.folder / "%j.out")]
    sbatch = str(site.box.programs.bin_dir / "sbatch")
    done = subprocess.run(
        [sbatch, "--parsable", *words, str(path)],
        env=site.env, cwd=site.folder, capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def hadar(site, command, id_):
    """What a command says of a job, as its owner sees it."""
    done = typed.hadar(site.env, command, id_)
    return done.stdout + done.stderr


def counts_tried(site, id_):
    """GPUs that each attempt had, as its output says."""
    lines = [line for line in site.log(id_).splitlines() if line.startswith("attempt on GPUs")]
    return [len(line.split()[3].split(",")) for line in lines]


def test_it_grows_and_moves_and_ends_before_the_same_training_under_plain_slurm(site):
    declared = f"#HADAR model={MODEL} types=any gpus=1-4 batch=8 checkpoint=yes"
    mine = site.hbatch(script(site, "mine", declared), "-p", "k80,v100")
    other = plain(site)
    assert site.job(other).declaration is None
    for id_ in (mine, other):
        site.until(site.runs(id_), ticks=False)
    # Its first half minute tells of places where it never was.
    site.until(lambda: INFERRED.search(hadar(site, "explain", mine)), 150)
    site.until(lambda: site.job(mine).state is JobState.FINISHED, 300)
    assert site.job(mine).slurm_state.startswith("COMPLETED"), site.log(mine)
    # The other began no later: it is on its only GPU still.
    assert site.runs(other, "w1")()
    tried = counts_tried(site, mine)
    assert tried[0] == 1 and tried[-1] == max(tried) > 1, site.log(mine)
    moves = moves_of(site.store, mine)[::-1]
    # The work is unknown, so one more move may be under way as it ends.
    outcomes = [move.outcome for move in moves if move.outcome != "the job has ended (COMPLETED)"]
    assert outcomes == ["moved"] * len(tried[1:])
    text = hadar(site, "doctor", mine)
    for count in tried[1:]:
        assert f"move: {count} " in text, text
