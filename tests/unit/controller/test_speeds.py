"""Which of the jobs' own reports of speed were learned from, and how long that is remembered."""

import os
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hand_made import CONFIG, NOW, job, observation, running

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.learning import SpeedLearner
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.controller.snapshot.sources import job_rates
from slurm_hadar.controller.snapshot.view_builder import take_snapshot
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.exchange import files, progress
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.rates import Rates, open_rates
from slurm_hadar.slurm.traffic import Traffic


def reporting_job(id_, when=NOW, window_s=60.0):
    return Progress(id_, when, 0, "v1", 1, False, NOW, "m", 0, 50.0, window_s, 64, 2)


def look(*reports):
    mine = [
        running(r.job, {"v1": {"v100": 2}}, declaration=Declaration(model="m")) for r in reports
    ]
    return observation(mine, progress={r.job: r for r in reports})


def test_a_report_counts_once_and_a_later_one_for_the_time_since():
    rates = Rates()
    speeds = SpeedLearner(rates)
    for when in (NOW, NOW, NOW + 5):
        speeds.learn(look(reporting_job("1", when)))
    (row,) = rates.store.of("m")
    assert row.seconds == 65.0


@pytest.mark.parametrize("each_tick_anew", [False, True])
def test_jobs_of_one_model_beside_each_other_count_as_one_run_each(each_tick_anew):
    rates, state = Rates(), sqlite3.connect(":memory:", isolation_level=None)
    speeds = SpeedLearner(rates, state)
    for tick in range(10):
        if each_tick_anew:
            speeds = SpeedLearner(rates, state)
        when = NOW + 5 * tick
        speeds.learn(look(*(reporting_job(id_, when, 5.0) for id_ in ("1", "2", "3"))))
    (row,) = rates.store.of("m")
    assert (row.runs, row.seconds) == (3, 150.0)
    # Its next attempt is another run.
    again = replace(reporting_job("2", NOW + 60), restarts=1)
    shown = look(again)
    mine = replace(shown.jobs["2"], restarts=1, start_s=NOW + 30)
    speeds.learn(replace(shown, jobs={"2": mine}))
    (row,) = rates.store.of("m")
    assert row.runs == 4


def test_a_report_that_cannot_be_read_for_once_is_still_known():
    rates = Rates()
    speeds = SpeedLearner(rates)
    speeds.learn(look(reporting_job("1")))
    speeds.learn(replace(look(reporting_job("1")), progress={}))
    speeds.learn(look(reporting_job("1")))
    (row,) = rates.store.of("m")
    assert row.seconds == 60.0


def test_a_report_counts_once_where_each_tick_is_a_process_of_its_own(tmp_path):
    """With a timer, and after a daemon's restart."""
    for _ in range(6):
        with closing(Store.open(tmp_path / "state")) as store:
            rates = open_rates(CONFIG, store.connection)
            cluster = SimpleNamespace(traffic=Traffic(lambda: NOW))
            Controller(CONFIG, cluster, store, rates, 0).learning.speeds.learn(
                look(reporting_job("1", NOW, 600.0))
            )
            (row,) = rates.store.of("m")
    assert row.seconds == 600.0


@pytest.mark.parametrize("damage", ["'soon'", "9e999"])
def test_a_damaged_time_of_a_report_is_none(damage):
    state = sqlite3.connect(":memory:", isolation_level=None)
    SpeedLearner(Rates(), state).learn(look(reporting_job("1")))
    state.execute(f"UPDATE last_report SET time_s = {damage}")
    rates = Rates()
    SpeedLearner(rates, state).learn(look(reporting_job("1")))
    (row,) = rates.store.of("m")
    assert row.seconds == 60.0


def test_jobs_that_slurm_shows_no_more_are_forgotten():
    state = sqlite3.connect(":memory:", isolation_level=None)
    speeds = SpeedLearner(Rates(), state)
    for number in range(100):
        speeds.learn(look(reporting_job(str(number))))
    assert state.execute("SELECT DISTINCT job FROM last_report").fetchall() == [("99",)]


def test_a_report_of_an_undeclared_batch_promises_nothing_of_other_types():
    """A job went from k80 to p100 and on to v100, three times as slow, and back: what was measured
    at its batch was set against the table at that batch, and multiplied the table at another."""
    declared = Declaration(types=("any",), model="recommendation", samples=9_000_000)
    rates = Rates()
    speeds = SpeedLearner(rates)
    for when, (kind, rate) in enumerate((("k80", 23_800.0), ("p100", 39_995.0))):
        mine = running("1", {"v1": {kind: 1}}, declaration=declared)
        said = replace(reporting_job("1", NOW + 60 * when), rate=rate, batch=64, gpus=1)
        speeds.learn(observation([mine], progress={"1": said}))
    found = job_rates(rates, [mine], ("k80", "p100", "v100"), (1,))
    np.testing.assert_allclose(found.table[0, :2, 0], [23_800, 39_995])
    assert 10_000 < found.table[0, 2, 0] < 23_800


def harmless(rates, *jobs):
    """All others' jobs of the model have a finite speed, possible on some type."""
    shown = take_snapshot(observation(list(jobs)), CONFIG, rates, ControllerHistory()).view.jobs
    return set(shown.ids) == {one.id for one in jobs} and all(
        0 < row.max() < 1e15 for row in shown.rate
    )


@pytest.mark.parametrize("rate", [5e-324, 1e-320, 1e-300, 9.9e11, 1e300])
@pytest.mark.parametrize("model", ["resnet18", "m"])
def test_an_impossible_rate_in_a_progress_file_spoils_no_model(tmp_path, rate, model):
    declared = Declaration(types=("any",), model=model, samples=10**6, batch=(64, 64))
    others = [job(id_, declaration=declared, uid=uid) for id_, uid in (("2", 1002), ("3", 1003))]
    state = sqlite3.connect(":memory:", isolation_level=None)
    rates = open_rates(CONFIG, state)
    for eve in (1000, 1001):
        mine = running("1", {"v1": {"v100": 1}}, declaration=declared, uid=eve)
        one = replace(reporting_job("1"), rate=rate, gpus=1)
        files.write_json(tmp_path / "progress.1.a.json", asdict(one))
        said = progress.read_all_progress(tmp_path, {"1": os.getuid()})
        SpeedLearner(rates).learn(observation([mine], progress=said))
    assert harmless(rates, *others)
    assert harmless(open_rates(CONFIG, state), *others)


@pytest.mark.parametrize("rate", [5e-324, 1e300])
def test_an_impossible_rate_that_was_kept_before_is_not_believed_either(rate):
    state = sqlite3.connect(":memory:", isolation_level=None)
    open_rates(CONFIG, state).record(RateSample("resnet18", "k80", 1, 64, 100.0, 60.0, uid=1000))
    state.execute("UPDATE throughput SET samples_per_s = ?", (rate,))
    declared = Declaration(types=("any",), model="resnet18", samples=10**6)
    again = open_rates(CONFIG, state)
    assert not list(again.store.of("resnet18"))
    assert harmless(again, job("2", declaration=declared, uid=1002))
    assert again.record(RateSample("resnet18", "k80", 1, 64, 100.0, 60.0, uid=1000)), (
        "its place is free"
    )
    assert len(list(open_rates(CONFIG, state).store.of("resnet18"))) == 1
