"""Backfill live: idle nodes train, give way to everybody in a moment, and are taken up again."""

import json
import subprocess
import sys
import time

import pytest
from trainings import start_sandbox

from slurm_hadar.domain.job import JobState

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

ON = {"enabled": True, "partitions": ("idle",)}
TRAINER = "backfill=yes nodes=1-3 restart_cost=2"


def started(make_sandbox, tmp_path, backfill=ON, **options):
    return start_sandbox(make_sandbox, tmp_path, {"backfill": backfill}, **options)


def test_a_trainer_fills_idle_nodes_gives_way_and_comes_back(make_sandbox, tmp_path, slurm_prefix):
    site = started(make_sandbox, tmp_path, slurm_prefix=slurm_prefix)
    samples = 3000
    id_ = site.train(samples, TRAINER, "-p", "idle")
    first, second = site.tick(), site.tick()
    assert first.updates == 1 and second.updates == 0
    site.until(site.runs(id_, "v1", "p1", "k1"), ticks=False)
    site.until(site.trained(id_, 300))
    assert site.tick().updates == 0
    began = time.monotonic()
    high = site.ordinary("-N2", "--gres=gpu:1", seconds=4)
    site.until(site.runs(high), 10, ticks=False)
    delay = time.monotonic() - began
    # 2 s on an idle machine; the test shares its cores with others.
    assert delay < 5, f"the ordinary job waited {delay:.1f} s"
    site.until(site.runs(id_))
    assert len(site.job(id_).nodes) == 1
    assert site.job(id_).restarts == 1
    segments = site.ends_exact(id_, samples)
    attempts = {segment.attempt for segment in segments}
    assert len(attempts) >= 2
    assert site.progress(id_).lost == 0


def test_two_trainers_share_and_the_caps_hold(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path, {**ON, "max_nodes_per_user": 2})
    ids = [site.train(50_000, TRAINER, "-p", "idle", name=name) for name in "ab"]
    report = site.tick()
    places = report.backfill.placements
    assert sum(len(place.nodes) for place in places.values()) == 2
    site.until(lambda: sum(len(site.job(i).nodes) for i in ids) == 2, ticks=False)
    assert site.tick().updates == 0


def test_switched_off_or_not_opted_in_nothing_is_steered(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path, {**ON, "enabled": False})
    plain = site.ordinary("-p", "idle", "--gres=gpu:1", "--begin=now+40")
    off = site.train(400, f"{TRAINER} off=yes", "-p", "idle", "--begin=now+40")
    id_ = site.train(400, TRAINER, "-p", "idle", name="b")
    report = site.tick()
    # All that is sent ends the wait for a controller that will not place it.
    assert [dict(action.fields) for action in report.intent.actions] == [{"StartTime": "now"}]
    assert report.intent.actions[0].job.id == id_
    assert site.tick().updates == 0
    site.until(site.runs(id_), ticks=False)
    assert len(site.job(id_).nodes) == 1
    assert site.job(plain).admin_comment == site.job(off).admin_comment == ""
    site.ends_exact(id_, 400, name="b")


def test_nodes_that_a_pending_job_is_about_to_take_are_left_to_it(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path)
    # It fits where it is asked to be, and starts in a few seconds.
    soon = site.ordinary("-wv1", "--gres=gpu:1", "--begin=now+8")
    id_ = site.train(3000, TRAINER, "-p", "idle")
    report = site.tick()
    assert set(report.backfill.taken) == {"v1"}
    assert set(report.backfill.placements[id_].nodes) == {"p1", "k1"}
    site.until(site.runs(soon), 20)
    assert site.job(id_).restarts == 0
    said = subprocess.run(
        [sys.executable, "-m", "slurm_hadar.cli.main", "backfill", "--json"],
        env=site.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    result = json.loads(said.stdout)["result"]
    assert set(result["trainings"][0]["held_nodes"]) == {"p1", "k1"}
    assert not result["actions"]


def test_an_ordinary_managed_job_takes_the_nodes_of_a_trainer(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path)
    id_ = site.train(50_000, TRAINER, "-p", "idle")
    site.tick()
    site.until(site.runs(id_, "v1", "p1", "k1"), ticks=False)
    site.until(site.trained(id_))
    managed = site.hbatch("#!/bin/bash\n#HADAR types=any gpus=1\nsleep 60\n")
    report = site.tick()
    assert managed in report.plan.placements
    site.until(site.runs(managed), 10, ticks=False)
    site.until(lambda: site.job(id_).state is JobState.RUNNING and site.job(id_).restarts == 1)
    assert len(site.job(id_).nodes) == 2
