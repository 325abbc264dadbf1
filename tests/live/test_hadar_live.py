"""Hadar live: of two running jobs the one that gains by it moves to a GPU that comes free."""

import json
import sys

import pytest
from dictated import TRAINING
from trainings import moves_of, start_sandbox

from slurm_hadar.sandbox.layout import Layout, NodeGroup

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

TWO = Layout((NodeGroup("v", 1, "v100", 1), NodeGroup("k", 1, "k80", 2)))
SPEEDS = {"flat": {"v100": 42.0, "k80": 40.0}, "steep": {"v100": 160.0, "k80": 40.0}}


def submit(site, model):
    """A training that lasts longer than any test, on k80 while that is free."""
    return site.hbatch(
        f"#!/bin/bash\n#HADAR model={model} types=any gpus=1 batch=8 samples=100000\n"
        "#HADAR checkpoint=yes restart_cost=1\n"
        f"exec {sys.executable} {TRAINING} {site.folder} 100000 0\n",
        "-p",
        "k80,v100",
    )


@pytest.mark.parametrize("policy", ["hadar", "fifo"])
def test_the_job_that_gains_moves_to_the_faster_gpu(make_sandbox, tmp_path, policy):
    table = tmp_path / "by_model.json"
    rows = [[name, kind, 1, 8, s, None] for name in SPEEDS for kind, s in SPEEDS[name].items()]
    table.write_text(json.dumps({"version": 1, "source": "test", "rows": rows}))
    settings = {"controller": {"policy": policy}, "profiles": {"tables": (str(table),)}}
    site = start_sandbox(make_sandbox, tmp_path, settings, TWO)
    filler = site.ordinary("-wv1", "--gres=gpu:1")
    site.until(site.runs(filler), ticks=False)
    flat, steep = (submit(site, model) for model in ("flat", "steep"))
    for id_ in (flat, steep):
        site.until(site.runs(id_, "k1"), ticks=False)
        site.until(site.trained(id_), ticks=False)
    assert len(site.tick().done) == 0
    site.cluster.cancel([filler])
    site.until(lambda: site.box.job_state(filler) == "CANCELLED", ticks=False)
    if policy == "hadar":
        site.until(site.runs(steep, "v1"))
        assert [move.outcome for move in moves_of(site.store, steep)] == ["moved"]
        site.until(site.trained(steep, restarts=1), ticks=False)
    for _ in range(3):
        assert len(site.tick().done) == 0
    assert site.runs(flat, "k1")() and site.job(flat).restarts == 0
    assert site.job(steep).restarts == (1 if policy == "hadar" else 0)
