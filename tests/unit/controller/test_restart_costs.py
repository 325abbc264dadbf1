"""What a restart counts as for a job that was not moved yet."""

from contextlib import closing
from dataclasses import replace

import pytest
from hand_made import CONFIG, NOW, RATES, job, look, observation, running

from slurm_hadar.controller.actuation import action_outcomes
from slurm_hadar.controller.journal.restart_table import RestartTable
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.controller.snapshot.restart_costs import RestartCosts
from slurm_hadar.controller.snapshot.view_builder import take_snapshot
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.exchange.progress import Progress

MINE, STRANGER = 1000, 2001
SAYS = Declaration(types=("any",), model="resnet18", batch=(64, 64), checkpoint="yes")
DECLARED = replace(SAYS, restart_cost=20.0)


def report(**more):
    usual = {"rate": 50.0, "window_s": 5.0, "batch": 64, "gpus": 1}
    return Progress("1", NOW, 1, "h", 1, True, NOW - 9, "resnet18", 500, **{**usual, **more})


@pytest.fixture
def store(tmp_path):
    with closing(Store.open(tmp_path / "state")) as opened:
        yield opened


def cost(measured, declared=DECLARED, progress=None):
    return RestartCosts(measured).of(job(declaration=declared), "resnet18", progress)


@pytest.mark.parametrize(
    ("measured", "declared", "seconds", "source"),
    [
        ({}, SAYS, 30.0, "assumed"),
        ({}, DECLARED, 20.0, "declared"),
        ({(MINE, "resnet18"): 7.0, (STRANGER, "resnet18"): 90.0}, DECLARED, 7.0, "owner's moved"),
        # Others shift the estimate, by a factor of 2 at most.
        ({(STRANGER, "resnet18"): 25.0}, DECLARED, 25.0, "other users'"),
        ({(STRANGER, "resnet18"): 3000.0}, DECLARED, 40.0, "other users'"),
        ({(STRANGER, "resnet18"): 0.0}, DECLARED, 10.0, "other users'"),
        ({(STRANGER, "lm"): 3000.0}, SAYS, 60.0, "all moved jobs"),
        ({(STRANGER, "lm"): 22.0, (MINE, "lm"): 18.0}, SAYS, 20.0, "all moved jobs"),
        # One user counts once, however many models were moved.
        ({**{(STRANGER, f"m{n}"): 3000.0 for n in range(9)}, (MINE, "lm"): 20.0, (7, "lm"): 25.0},
         SAYS, 25.0, "all moved jobs"),
    ],
)  # fmt: skip
def test_what_is_known_best_counts(measured, declared, seconds, source):
    found = cost(measured, declared)
    assert found.seconds == seconds and source in found.source


def test_the_jobs_own_last_restart_counts_first():
    found = cost({(MINE, "resnet18"): 7.0}, progress=report(restart_s=5.0))
    assert found.seconds == found.own_s == 5.0 and "this job" in found.source


@pytest.mark.parametrize(("uid", "counted"), [(STRANGER, 40.0), (MINE, 3000.0)])
def test_what_other_jobs_measured_excludes_no_job_by_its_time_limit(uid, counted):
    kinds = ("k80", "p100", "v100")
    tight = replace(DECLARED, samples=100_000)
    slowest = 100_000 / RATES.rates((None, "resnet18", 64), kinds, (1,))[0].min()
    mine = job(declaration=tight, time_limit_s=slowest + 21.0)
    past = ControllerHistory(restarts=RestartCosts({(uid, "resnet18"): 3000.0}))
    jobs = take_snapshot(observation([mine]), CONFIG, RATES, past).view.jobs
    assert jobs.restart_s[0] == counted and (jobs.rate[0, :, 0] > 0).all()


def test_a_measured_move_counts_for_the_next_jobs_of_its_owner_and_model(store):
    entry = store.begin("1", "move", "asked", NOW, {"gpus": {"k80": 1}, "restarts": 0})
    store.advance(entry, "requeued", NOW + 2)
    store.end(entry, "moved", NOW + 3)
    here = running("1", {"k1": {"k80": 1}}, restarts=1, declaration=SAYS)
    after = observation([here], progress={"1": report(restart_s=8.0)}, now=NOW + 60)
    for _ in range(2):
        # Once, however often it is looked at.
        action_outcomes.reconcile(store, after, 120.0)
    assert store.restarts.means() == {(MINE, "resnet18"): 8.0}
    past = ControllerHistory(restarts=RestartCosts(store.restarts.means()))
    next_one = running("2", {"k1": {"k80": 1}}, declaration=SAYS)
    assert look(observation([next_one]), past=past).view.jobs.restart_s[0] == 8.0
    assert look(observation([next_one])).view.jobs.restart_s[0] == 30.0


def test_a_stop_measures_no_restart(store):
    entry = store.begin("1", "move", "asked", NOW, {"gpus": {}, "restarts": 0})
    store.advance(entry, "requeued", NOW + 2)
    store.end(entry, "stopped", NOW + 3)
    here = running("1", {"k1": {"k80": 1}}, restarts=1, declaration=SAYS, start_s=NOW + 302)
    after = observation([here], progress={"1": report(restart_s=310.0)}, now=NOW + 320)
    for _ in range(2):
        action_outcomes.reconcile(store, after, 120.0)
    assert store.history("1")[0].effect["without_training_s"] == 310.0
    assert store.restarts.means() == {}


def test_restarts_outlive_the_controller_and_one_user_fills_no_file(store):
    table = store.restarts
    table.record(STRANGER, "other", 1e9, NOW)
    for number in range(150):
        table.record(MINE, f"m{number}", 10.0, NOW + number)
    table.record(MINE, "m149", 20.0, NOW + 200)
    again = RestartTable(store.connection).means()
    assert again[STRANGER, "other"] == 3600.0
    assert again[MINE, "m149"] == 13.0
    assert len(again) == 101 and (MINE, "m0") not in again
    store.connection.execute("INSERT INTO measured_restart VALUES (1, 'x', 'y', 0)")
    assert table.means() == again
