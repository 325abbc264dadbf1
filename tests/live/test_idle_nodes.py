"""Backfill live: idle nodes train, give way to everybody in a moment, and are taken up again."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import step_processes
from trainings import consolidated, start_sandbox, until_it_saves

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

ON = {"enabled": True, "partitions": ("idle",)}
TRAINER = "backfill=yes nodes=1-3 restart_cost=2"
TAKEN = re.compile(r"Slurm counts 1 \w+ as allocated")


def started(make_sandbox, tmp_path, backfill=ON, **options):
    settings = {"backfill": backfill, "moving": {"ack_wait_s": 5.0}}
    return start_sandbox(make_sandbox, tmp_path, settings, **options)


def grown(site, id_, *nodes):
    """Slurm started it, with one node; wait until the controller has moved it to these."""
    site.until(site.runs(id_), ticks=False)
    assert len(site.job(id_).nodes) == 1 and site.job(id_).restarts == 0
    site.until(site.trained(id_), ticks=False)
    site.until(site.runs(id_, *nodes))
    assert site.job(id_).restarts == 1
    site.until(site.trained(id_, restarts=1), ticks=False)


def test_a_trainer_fills_idle_nodes_gives_way_and_comes_back(make_sandbox, tmp_path, slurm_prefix):
    # Long after this time Slurm would kill it: it must leave by itself.
    site = started(make_sandbox, tmp_path, slurm_prefix=slurm_prefix, kill_wait_s=60)
    site.pace(0.25)
    samples = 3000
    id_ = site.train(samples, TRAINER, "-p", "idle")
    grown(site, id_, "v1", "p1", "k1")
    site.until(site.trained(id_, 50, restarts=1))
    assert len(site.tick().done) == 0
    site.pace(1.0)
    high = site.ordinary("-wp1,k1", "-N2", "--gres=gpu:1")
    # 2 s on an idle machine. No tick has a part in it.
    site.until(site.runs(high), 40, ticks=False)
    # By itself Slurm would start it after 91 s, on the nodes that it had.
    site.until(site.runs(id_, "v1"), 60)
    assert site.job(id_).restarts == 2
    site.until(site.trained(id_, restarts=2), ticks=False)
    site.cluster.cancel([high])
    site.until(site.runs(id_, "v1", "p1", "k1"))
    segments = site.ends_exact(id_, samples)
    assert {(1, 1), (2, 3), (3, 1), (4, 3)} <= {(one.attempt, one.gpus) for one in segments}
    assert site.progress(id_).lost == 0


def test_two_trainers_share_and_the_caps_hold(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path, {**ON, "max_nodes_per_user": 2})
    one, two = (site.train(50_000, TRAINER, "-p", "idle", name=name) for name in "ab")
    for id_ in (one, two):
        site.until(site.runs(id_), ticks=False)
        site.until(site.trained(id_), ticks=False)
    # The third node stays idle.
    report = site.tick()
    assert len(report.backfill.idle) == 1 and len(report.done) == 0
    assert sum(len(place.nodes) for place in report.backfill.placements.values()) == 2
    # What Slurm starts is not bounded, and not stopped.
    third = site.train(50_000, TRAINER, "-p", "idle", name="c")
    site.until(site.runs(third), ticks=False)
    site.until(site.trained(third), ticks=False)
    assert len(site.tick().done) == 0
    assert [site.job(id_).restarts for id_ in (one, two, third)] == [0, 0, 0]
    # Alone it may have two of the three.
    site.cluster.cancel([two, third])
    site.until(lambda: len(site.job(one).nodes) == 2)
    site.until(site.trained(one, restarts=1), ticks=False)
    assert len(site.tick().done) == 0


def test_switched_off_or_not_opted_in_nothing_is_steered(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path, {**ON, "enabled": False})
    plain = site.ordinary("-p", "idle", "--gres=gpu:1", "--begin=now+60")
    off = site.train(400, f"{TRAINER} off=yes", "-p", "idle", "--begin=now+60")
    id_ = site.train(400, TRAINER, "-p", "idle", name="b")
    site.until(site.runs(id_), ticks=False)
    site.until(site.trained(id_), ticks=False)
    report = site.tick()
    assert not report.diff.actions and id_ in report.backfill.excluded
    assert len(site.job(id_).nodes) == 1
    assert not any(site.job(one).admin_comment for one in (plain, off, id_))
    segments = site.ends_exact(id_, 400, name="b")
    assert {segment.attempt for segment in segments} == {1}


def test_nodes_that_a_pending_job_is_about_to_take_are_left_to_it(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path)
    id_ = site.train(50_000, TRAINER, "-p", "idle")
    # Slurm takes nodes in the order of their names.
    site.until(site.runs(id_, "k1"), ticks=False)
    site.until(site.trained(id_), ticks=False)
    # It fits where it is asked to be, and starts in a few seconds.
    soon = site.ordinary("-wv1", "--gres=gpu:1", "--begin=now+20")
    report = site.tick()
    assert set(report.backfill.taken) == {"v1"}
    assert set(report.backfill.placements[id_].nodes) == {"p1", "k1"}
    site.until(site.runs(soon))
    site.until(site.runs(id_, "p1", "k1"))
    assert site.job(id_).restarts == 1
    said = subprocess.run(
        [sys.executable, "-m", "slurm_hadar.cli.main", "backfill", "--json"],
        env=site.env,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    result = json.loads(said.stdout)["result"]
    assert set(result["trainings"][0]["held_nodes"]) == {"p1", "k1"}
    assert not result["actions"]


def test_an_ordinary_managed_job_takes_the_nodes_of_a_trainer(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path)
    id_ = site.train(50_000, TRAINER, "-p", "idle")
    grown(site, id_, "v1", "p1", "k1")
    managed = site.hbatch("#!/bin/bash\n#HADAR types=any gpus=1\nexec sleep 600\n")
    # Slurm sends the training away, and the controller takes no part in it.
    site.until(site.runs(managed), 40, ticks=False)
    site.until(lambda: site.runs(id_)() and site.job(id_).restarts == 2, 60)
    site.until(site.trained(id_, restarts=2), ticks=False)
    site.until(lambda: site.runs(id_)() and len(site.job(id_).nodes) == 2)
    assert site.runs(managed)() and site.job(managed).restarts == 0
    assert not set(site.job(id_).nodes) & set(site.job(managed).nodes)


def test_killed_in_a_save_in_an_average_or_one_copy_it_loses_nothing(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path)
    site.pace(0.25)
    samples, path = 2200, tmp_path / "a.pt"
    id_ = site.train(samples, TRAINER, "-p", "idle")
    grown(site, id_, "v1", "p1", "k1")
    before = len(site.resumed(id_))

    tracker = step_processes.copy(site.box, id_, 0)
    until_it_saves(path)
    os.kill(tracker, signal.SIGKILL)
    saved = [consolidated(path)]
    site.until(lambda: len(site.resumed(id_)) == before + 1)

    # The copies wait in their exchange while the tracker stands still; then the MPI job is gone.
    site.until(site.trained(id_, saved[0] + 1, restarts=1))
    step_processes.stop(step_processes.copy(site.box, id_, 0))
    time.sleep(1.5)
    saved.append(consolidated(path))
    os.kill(step_processes.srun(site.box, id_), signal.SIGKILL)
    site.until(lambda: len(site.resumed(id_)) == before + 2)
    assert all(at >= was for at, was in zip(site.resumed(id_)[before:], saved, strict=True))

    site.until(site.trained(id_, saved[1] + 1, restarts=1))
    os.kill(step_processes.copy(site.box, id_, 2), signal.SIGKILL)
    site.until(lambda: site.progress(id_).gpus == 2)
    # Nothing of that keeps it from giving way.
    site.pace(1.0)
    high = site.ordinary("-wk1", "--gres=gpu:1")
    site.until(site.runs(high))
    site.until(site.runs(id_, "v1", "p1"))
    assert site.job(id_).restarts == 3
    site.cluster.cancel([high])
    site.ends_exact(id_, samples)
    site.strands_nothing()


def test_killed_in_the_middle_of_a_rescale_it_goes_on(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path, kill_wait_s=3)
    site.pace(0.25)
    samples, path = 2000, tmp_path / "a.pt"
    other = site.ordinary("-wk1", "--gres=gpu:1")
    site.until(site.runs(other), ticks=False)
    id_ = site.train(samples, TRAINER, "-p", "idle")
    grown(site, id_, "v1", "p1")
    site.until(site.trained(id_, 50, restarts=1))
    before = len(site.resumed(id_))

    # It is asked to save, cannot answer, and then its first node dies, with the tracker.
    step_processes.stop(step_processes.copy(site.box, id_, 0))
    strike = Strike(
        lambda: site.plan(id_).save,
        lambda: step_processes.dies_with_its_node(site.box, id_, "p1"),
    )
    site.cluster.cancel([other])
    site.until(lambda: strike.done)
    saved = consolidated(path)
    # Slurm would take half a minute to find out.
    site.box.run("scontrol", "update", "NodeName=p1", "State=DOWN", "Reason=dead")
    site.until(site.runs(id_, "v1", "k1"))
    site.until(site.trained(id_, saved + 1, restarts=2))
    assert all(at >= saved for at in site.resumed(id_)[before:])
    restarts = site.job(id_).restarts

    # Now the whole MPI job dies when it is asked to save.
    site.pace(1.0)
    strike = Strike(
        lambda: site.plan(id_).save,
        lambda: os.kill(step_processes.srun(site.box, id_), signal.SIGKILL),
    )
    site.box.start_slurmd("p1")
    site.until(lambda: strike.done)
    saved = consolidated(path)
    # The launcher may have begun a new step, and that may have answered, before the requeue.
    site.until(site.runs(id_, "v1", "p1", "k1"))
    site.until(site.trained(id_, saved + 1, restarts=restarts + 1))
    site.until(lambda: site.resumed(id_)[-1] >= saved)
    site.ends_exact(id_, samples)
    site.strands_nothing()


def test_a_node_that_goes_down_while_its_job_is_requeued_costs_no_work(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path, kill_wait_s=3)
    site.pace(0.25)
    samples, path = 1800, tmp_path / "a.pt"
    other = site.ordinary("-wk1", "--gres=gpu:1")
    site.until(site.runs(other), ticks=False)
    id_ = site.train(samples, TRAINER, "-p", "idle")
    grown(site, id_, "v1", "p1")
    site.until(site.trained(id_, 50, restarts=1))
    before = len(site.resumed(id_))
    site.pace(1.0)

    # The tracker on p1 answers and the job is requeued, but v1 died meanwhile.
    strike = Strike(
        lambda: site.plan(id_).save,
        lambda: step_processes.dies_with_its_node(site.box, id_, "v1"),
    )
    site.cluster.cancel([other])
    site.until(lambda: strike.done)
    site.until(lambda: site.job(id_).restarts >= 2)
    saved = consolidated(path)
    site.box.run("scontrol", "update", "NodeName=v1", "State=DOWN", "Reason=dead")

    # Slurm 22.05 then refuses the next attempt's steps, or starts it without its GPUs. Mostly it
    # does not take them back.
    def refused():
        return "asked to requeue" in site.log(id_)

    site.until(lambda: refused() or site.trained(id_, saved + 1, restarts=2)())
    if refused():
        site.until(lambda: site.job(id_).restarts >= 3)
        trains_again = site.trained(id_, saved + 1, restarts=3)
        site.until(lambda: any(TAKEN.search(one) for one in site.said) or trains_again())
        site.box.run("scontrol", "reconfigure")
    site.box.start_slurmd("v1")
    site.ends_exact(id_, samples)
    assert all(at >= saved for at in site.resumed(id_)[before:])
    site.strands_nothing()


class Strike:
    """A thread that waits for a moment within a tick and then kills."""

    def __init__(self, moment, kill):
        self._done, self._fault = False, None
        self._moment, self._kill = moment, kill
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def done(self):
        if self._fault is not None:
            raise self._fault
        return self._done

    def _run(self):
        end = time.monotonic() + 90
        try:
            while not self._moment():
                assert time.monotonic() < end, "the moment to strike did not come"
                time.sleep(0.01)
            self._kill()
        except Exception as fault:
            self._fault = fault
        self._done = True
