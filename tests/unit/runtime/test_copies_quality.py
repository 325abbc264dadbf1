"""Copies at speeds 4:2:1 train as well as one run; sabotaged averaging does not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOLERANCE = 1.0


@pytest.mark.timeout(280)
def test_copies_reach_what_one_run_reaches_and_sabotage_does_not():
    """The short form of ``benchmarks/copies_quality.py``: 5 seeds, points of accuracy."""
    words = ["--tasks", "digits,digits-noisy", "--variants", "copies,unweighted,only-0"]
    words += ["--seeds", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.copies_quality", "--json", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=270,
        check=True,
    )
    found = json.loads(done.stdout)["result"]

    def worst(variant: str) -> float:
        gaps = [
            [mine - alone for mine, alone in zip(scores[variant], scores["alone"], strict=True)]
            for scores in found.values()
        ]
        assert all(len(row) == 5 for row in gaps)
        return min(sum(row) / len(row) for row in gaps)

    assert worst("copies") >= -TOLERANCE
    assert worst("unweighted") < -TOLERANCE
    assert worst("only-0") < -TOLERANCE
