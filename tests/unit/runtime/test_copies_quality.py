"""Copies at speeds 4:2:1 train as well as one run; sabotaged averaging does not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOLERANCE = 1.0
SEEDS = 5


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("task", "sabotage"), [("digits", "unweighted"), ("digits-noisy", "only-0")]
)
def test_copies_reach_what_one_run_reaches_and_sabotage_does_not(task, sabotage):
    """The short form of ``benchmarks/copies_quality.py``, points of accuracy in the mean over the
    seeds. Each task shows the sabotage that it is made for, and not the other one."""
    words = ["--tasks", task, "--variants", f"copies,{sabotage}", "--seeds", str(SEEDS)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.copies_quality", "--json", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=270,
        check=True,
    )
    scores = json.loads(done.stdout)["result"][task]

    def mean(variant: str) -> float:
        assert len(scores[variant]) == SEEDS
        return sum(scores[variant]) / SEEDS

    assert mean("copies") - mean("alone") >= -TOLERANCE
    assert mean(sabotage) - mean("alone") < -TOLERANCE
