"""Two racks live: a job on two nodes waits for one rack, and in the end takes what there is."""

import os
import subprocess
import sys
import time

import pytest
from trainings import start_sandbox

from slurm_hadar.domain import steering
from slurm_hadar.sandbox.layout import Layout, NodeGroup

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

RACKS = Layout(
    (NodeGroup("a", 2, "v100", 1, rack="left"), NodeGroup("b", 2, "v100", 1, rack="right"))
)
WIDE = (
    "#!/bin/bash\n"
    "#HADAR model=wide types=any batch=8 samples=100000\n"
    "#SBATCH -N2 --gres=gpu:1 --time=60\n"
    "exec sleep 600\n"
)


def started(make_sandbox, tmp_path, **options):
    """A site whose controller has measured that the model wide loses much over two racks."""
    settings = {"controller": {"policy": "network", "options": {"first_wait_s": 600.0}}}
    site = start_sandbox(make_sandbox, tmp_path, settings, layout=RACKS, **options)
    tiers, uid = site.controller.rates.tiers, os.getuid()
    tiers.record("wide", "v100", 2, 8, 1, 200.0, 60.0, uid=uid)
    tiers.record("wide", "v100", 2, 8, 2, 120.0, 60.0, uid=uid)
    return site


def test_it_waits_for_one_rack_and_after_its_timer_takes_anything(
    make_sandbox, tmp_path, slurm_prefix
):
    site = started(make_sandbox, tmp_path, slurm_prefix=slurm_prefix)
    left, right = (site.ordinary(f"-w{node}", "--gres=gpu:1") for node in ("a1", "b1"))
    site.until(site.runs(left), ticks=False)
    site.until(site.runs(right), ticks=False)
    id_ = site.hbatch(WIDE)
    report = site.tick()
    assert report.queries["topology"] == 1
    assert report.picture.view.nodes.rack.tolist() == [0, 0, 1, 1]
    assert "declines 2 GPUs over several racks" in report.plan.waiting[id_]
    assert site.job(id_).eligible_s > report.seen.now + 20, "it waits, though a2 and b2 are free"

    # What it waits is learned below, and must be longer than a submit and a tick take.
    site.until(lambda: time.time() > report.seen.now + 6, ticks=False)
    site.cluster.cancel([left])
    site.until(lambda: site.box.job_state(left) == "CANCELLED", ticks=False)
    site.until(site.runs(id_, "a1", "a2"))
    job = site.job(id_)
    assert job.required_nodes == ("a1", "a2")
    assert steering.decode(job.admin_comment).was["ReqNodeList"] == ""
    site.box.run("scontrol", "requeue", id_)
    site.until(lambda: site.box.job_state(id_) == "PENDING", ticks=False)
    done = subprocess.run(
        [sys.executable, "-m", "slurm_hadar.cli.main", "optout", id_],
        env=site.env, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert site.job(id_).required_nodes == () and site.job(id_).node_count == 2
    site.cluster.cancel([id_])

    # That wait is now the timer of its size: the next one waits for about as long.
    assert list(site.store.policy_state("network")["waits"]) == ["1:2"]
    again = site.ordinary("-wa1", "--gres=gpu:1")
    site.until(site.runs(again), ticks=False)
    later = site.hbatch(WIDE)
    assert "declines" in site.tick().plan.waiting[later]
    site.until(site.runs(later, "a2", "b2"))
    assert site.job(later).required_nodes == ()
