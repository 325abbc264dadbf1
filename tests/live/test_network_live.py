"""Two racks live: a job on two nodes that Slurm starts in both moves to one when that has room."""

import os
import subprocess
import sys

import pytest
from dictated import TRAINING
from trainings import moves_of, start_sandbox

from slurm_hadar.domain import steering
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.sandbox.layout import Layout, NodeGroup

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

RACKS = Layout(
    (NodeGroup("a", 2, "v100", 1, rack="left"), NodeGroup("b", 2, "v100", 1, rack="right"))
)


def started(make_sandbox, tmp_path, policy, **options):
    """A site whose controller has measured that the model wide loses much over two racks."""
    settings = {"controller": {"policy": policy, "options": {"min_stay_s": 0.0}}}
    site = start_sandbox(make_sandbox, tmp_path, settings, layout=RACKS, **options)
    tiers, uid = site.controller.rates.tiers, os.getuid()
    tiers.record(RateSample("wide", "v100", 2, 8, 200.0, 60.0, uid=uid), 1)
    tiers.record(RateSample("wide", "v100", 2, 8, 120.0, 60.0, uid=uid), 2)
    return site


def wide(site):
    """A training on two nodes that lasts longer than any test, in two racks: a2 and b2."""
    fill = [site.ordinary(f"-w{node}", "--gres=gpu:1") for node in ("a1", "b1")]
    site.until(lambda: all(site.runs(id_)() for id_ in fill), ticks=False)
    id_ = site.hbatch(
        "#!/bin/bash\n"
        "#HADAR model=wide types=any batch=8 samples=100000 checkpoint=yes restart_cost=1\n"
        "#SBATCH -N2 --gres=gpu:1 --time=60\n"
        f"exec {sys.executable} {TRAINING} {site.folder} 100000 0\n"
    )
    # No wait for a rack: Slurm starts it where it fits.
    site.until(site.runs(id_, "a2", "b2"), ticks=False)
    site.until(site.trained(id_), ticks=False)
    return fill, id_


def test_a_job_in_two_racks_moves_to_one_that_has_room(make_sandbox, tmp_path, slurm_prefix):
    site = started(make_sandbox, tmp_path, "network", slurm_prefix=slurm_prefix)
    (left, _), id_ = wide(site)
    report = site.tick()
    assert report.queries["topology"] == 1
    assert report.snapshot.view.nodes.rack.tolist() == [0, 0, 1, 1]
    assert "stays over several racks" in report.plan.placements[id_].reason
    assert len(report.done) == 0

    site.cluster.cancel([left])
    site.until(site.runs(id_, "a1", "a2"))
    job = site.job(id_)
    assert job.required_nodes == ("a1", "a2") and job.restarts == 1
    assert [move.outcome for move in moves_of(site.store, id_)] == ["moved"]
    assert "moves: in one rack it ends" in site.plan(id_).reason
    assert steering.decode(job.admin_comment).was["ReqNodeList"] == ""
    site.until(site.trained(id_, restarts=1), ticks=False)
    assert len(site.tick().done) == 0

    site.box.run("scontrol", "requeue", id_)
    site.until(lambda: site.box.job_state(id_) == "PENDING", ticks=False)
    done = subprocess.run(
        [sys.executable, "-m", "slurm_hadar.cli.main", "optout", id_],
        env=site.env, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert site.job(id_).required_nodes == () and site.job(id_).node_count == 2


def test_the_policy_without_moves_leaves_it_in_two_racks(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path, "network_never_wait")
    (left, _), id_ = wide(site)
    site.cluster.cancel([left])
    site.until(lambda: site.box.job_state(left) == "CANCELLED", ticks=False)
    for _ in range(3):
        assert len(site.tick().done) == 0
    assert site.runs(id_, "a2", "b2")() and site.job(id_).restarts == 0
