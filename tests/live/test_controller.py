"""The whole path on a real Slurm: lease, placement, move, resume, and what happens without us."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_hadar import config as configuration
from slurm_hadar.controller import telling
from slurm_hadar.controller.store import Store
from slurm_hadar.controller.tick import Controller
from slurm_hadar.controller.wrapper_site import write_wrapper_site
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.runtime.heartbeat import write_heartbeat
from slurm_hadar.runtime.samples import check_lineage
from slurm_hadar.slurm.cluster import open_cluster

pytestmark = pytest.mark.live

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"
HBATCH = str(Path(sys.executable).parent / "hbatch")


class Site:
    """A sandbox with a controller whose placements the test dictates."""

    def __init__(self, box, folder):
        self.box = box
        self.folder = folder
        self.config = configuration.load(box.config_path)
        write_wrapper_site(self.config, box.config_path)
        self.cluster = open_cluster(self.config.slurm)
        self.store = Store.open(self.config.site.state_dir)
        self.want = {}
        self.controller = self.another(self._dictated)
        self.env = {**os.environ, **box.env}

    def another(self, decide=None):
        rates = open_rates(self.config, self.store.connection)
        return Controller(
            self.config, self.cluster, self.store, rates, os.getuid(), decide=decide
        )

    def _dictated(self, view, state):
        placements = {
            id_: Placement(self.want[id_], reason="dictated by the test")
            for id_ in view.jobs.ids
            if id_ in self.want
        }
        waiting = {id_: "by the test" for id_ in view.jobs.ids if id_ not in self.want}
        return Plan(placements, waiting), state

    def hbatch(self, script, *words, alive=True):
        if alive:
            write_heartbeat(self.config.site.exchange_dir, "act", 5.0)
        path = self.folder / f"job{time.monotonic_ns()}.sh"
        path.write_text(script)
        done = subprocess.run(
            [HBATCH, "--parsable", "-o", str(self.folder / "%j.out"), *words, str(path)],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, id_):
        return self.cluster.read_jobs([id_])[0]

    def until(self, holds, timeout_s=30.0):
        end = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end, "it did not come about in time"
            time.sleep(0.2)

    def where(self, id_):
        return {kind for gpus in self.job(id_).gpus.values() for kind in gpus}

    def running(self, id_, *kinds):
        return lambda: self.job(id_).state is JobState.RUNNING and (
            not kinds or self.where(id_) == set(kinds)
        )

    def log(self, id_):
        return (self.folder / f"{id_}.out").read_text()


@pytest.fixture
def site(make_sandbox, tmp_path):
    box = make_sandbox(mode="act", settings={"guards": {"min_between_moves_s": 0.0}})
    found = Site(box, tmp_path)
    yield found
    found.store.close()


def training(folder, samples=12_000, name="a", extra=""):
    return (
        "#!/bin/bash\n"
        f"#HADAR model=resnet18 types=any batch=64 samples={samples} checkpoint=yes\n"
        f"exec {sys.executable} {TRAIN} --model resnet18 --batch 64 --samples {samples} "
        f"--checkpoint {folder}/{name}.pt --data {folder}/digits.npy "
        f"--lineage {folder}/{name}.json {extra}\n"
    )


SLEEP = "#!/bin/bash\n#HADAR types=any gpus=1-2\nsleep {}\n"


def test_a_waiting_job_is_placed_by_type_and_count(site):
    one = site.hbatch(SLEEP.format(30))
    two = site.hbatch(SLEEP.format(30))
    assert site.job(one).state is JobState.PENDING
    site.want = {one: {"k80": 1}, two: {"p100": 2}}
    report = site.controller.tick()
    assert report.queries["jobs"] == 1 and report.queries["nodes"] == 1
    site.until(site.running(one, "k80"))
    site.until(site.running(two, "p100"))
    assert site.job(two).gpu_count == 2


def test_a_second_tick_sends_nothing(site):
    ids = [site.hbatch(SLEEP.format(30)) for _ in range(3)]
    site.want = {ids[0]: {"v100": 1}, ids[1]: {"k80": 2}}
    first, second = site.controller.tick(), site.controller.tick()
    assert first.updates == 2
    assert second.updates == 0 and "update" not in second.queries
    site.until(site.running(ids[1]))
    third = site.controller.tick()
    assert third.updates == 0 and "update" not in third.queries


def test_a_lease_is_renewed_only_when_less_than_half_is_left(site):
    id_ = site.hbatch(SLEEP.format(5), "--begin=now+20")
    # The begin time is the owner's own, so it is not ours to renew.
    assert not site.controller.tick().updates
    mine = site.hbatch(SLEEP.format(5))
    begin = site.job(mine).start_s
    length = site.config.lease.length_s
    late = site.another(site._dictated)
    late._clock = lambda: begin - length / 2 - 1
    assert not late.tick().updates
    late._clock = lambda: begin - length / 2 + 1
    assert late.tick().updates == 1
    assert site.job(mine).start_s == pytest.approx(begin + length / 2 + 1, abs=2)
    assert site.job(id_).state is JobState.PENDING


def test_without_a_controller_every_job_starts_within_its_lease(make_sandbox, tmp_path):
    box = make_sandbox(mode="act", settings={"lease": {"length_s": 20}})
    site = Site(box, tmp_path)
    ids = [site.hbatch(SLEEP.format(1)) for _ in range(4)]
    assert all(site.job(id_).reason == "BeginTime" for id_ in ids)
    # Some were placed before the controller died, the others never were.
    site.want = {ids[0]: {"k80": 1}}
    site.controller.tick()
    site.until(lambda: all(site.job(i).state is JobState.FINISHED for i in ids), 20 + 15)
    assert all(site.job(id_).slurm_state.startswith("COMPLETED") for id_ in ids)
    site.store.close()


def test_in_observe_mode_nothing_waits_and_nothing_is_touched(make_sandbox, tmp_path):
    box = make_sandbox(mode="observe")
    site = Site(box, tmp_path)
    write_heartbeat(site.config.site.exchange_dir, "observe", 5.0)
    id_ = site.hbatch(SLEEP.format(20), alive=False)
    site.until(site.running(id_), 10)
    site.want = {id_: {"k80": 2}}
    report = site.controller.tick()
    assert not report.acted and not report.updates and "update" not in report.queries
    assert site.job(id_).admin_comment == ""
    site.store.close()


def moved(site, id_, samples):
    """Start on k80, let it train, move to v100, and wait for the end."""
    site.want = {id_: {"k80": 1}}
    site.controller.tick()
    site.until(lambda: _samples(site, id_) > 0, 40)
    site.want = {id_: {"v100": 1}}
    site.until(lambda: site.controller.tick() and "v100" in site.where(id_), 40)
    site.until(lambda: site.job(id_).state is JobState.FINISHED, 60)
    job = site.job(id_)
    assert job.slurm_state.startswith("COMPLETED"), site.log(id_)
    return json.loads((site.folder / "a.json").read_text())


def _samples(site, id_):
    progress = site.controller.observe().progress.get(id_)
    return progress.samples if progress else 0


def test_a_running_job_moves_and_every_sample_goes_in_exactly_once(site):
    id_ = site.hbatch(training(site.folder))
    site.env["HADAR_PROGRESS_S"] = "0.5"
    lineage = moved(site, id_, 12_000)
    assert len({row[3] for row in lineage["segments"]}) == 2, "it ran in two attempts"
    assert lineage["samples"] == 12_000
    assert check_lineage(lineage["segments"], lineage["dataset_size"]) is None
    story = telling.story(site.controller, id_)
    assert [move.outcome for move in story.moves][-1] == "moved"


def test_a_sabotaged_resume_does_not_pass_for_exact(site):
    id_ = site.hbatch(training(site.folder, extra="--sabotage 64"))
    lineage = moved(site, id_, 12_000)
    assert check_lineage(lineage["segments"], lineage["dataset_size"]) is not None
