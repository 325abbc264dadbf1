"""Management limited to accounts, users, or a share of the jobs."""

from collections import Counter
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hand_made import NOW, RATES, config, job, nodes, observation, ordinary, running
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.config import Rollout
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import observed, rollout
from slurm_hadar.controller.observation.returned_nodes import REQUEUED
from slurm_hadar.controller.presentation import job_explanation
from slurm_hadar.controller.presentation.overview import Sight, Viewer, overview
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain import steering
from slurm_hadar.domain.steering import Steering
from slurm_hadar.reports.status import STATE_FILE, ControllerState
from slurm_hadar.slurm.traffic import Traffic


def inside(rollout_, *jobs):
    found = rollout.applied({one.id: one for one in jobs}, rollout_, ())
    return {id_ for id_, one in found.items() if one.managed}


def test_without_limits_every_job_is_managed():
    jobs = {"1": job("1"), "2": ordinary("2")}
    assert rollout.applied(jobs, Rollout(), ()) == jobs
    assert rollout.description(Rollout(), jobs.values()) == ""


def test_accounts_and_users_are_named():
    jobs = [job("1", account="ml"), job("2", account="phys"), job("3", account="phys", user="bob")]
    assert inside(Rollout(accounts=("ml",)), *jobs) == {"1"}
    assert inside(Rollout(accounts=("ml",), users=("bob",)), *jobs) == {"1", "3"}
    assert inside(Rollout(users=("eve",)), *jobs) == set()
    assert inside(Rollout(percent=0.0), *jobs) == set()


NUMBERS = st.integers(1, 2**31)


@given(NUMBERS, st.floats(0, 100), st.floats(0, 100))
def test_whoever_is_in_stays_in_as_the_share_grows(number, one, other):
    this, (less, more) = job(str(number)), sorted((one, other))
    if not rollout.outside(this, Rollout(percent=less)):
        assert not rollout.outside(this, Rollout(percent=more))
    assert not rollout.outside(this, Rollout(percent=100.0))


@given(NUMBERS, st.integers(0, 5000), st.integers(0, 9))
def test_tasks_of_an_array_and_attempts_of_a_job_go_together(number, task, restarts):
    whole = replace(job(f"{number}_{task}", array_job_id=number), raw_id=number)
    apart = replace(whole, raw_id=number + 7, restarts=restarts)
    assert rollout.share(whole) == rollout.share(apart) == rollout.share(job(str(number)))


@pytest.mark.parametrize("percent", [1, 20, 50])
def test_the_share_is_met_over_numbers_that_follow_each_other(percent):
    jobs = [job(str(number)) for number in range(100_000, 110_000)]
    number = len(inside(Rollout(percent=percent), *jobs))
    # Five standard deviations.
    deviation = (10_000 * percent / 100 * (1 - percent / 100)) ** 0.5
    assert abs(number - 100 * percent) < 5 * deviation


SITE = config('[site]\nrights = "sandbox"\n[rollout]\naccounts = ["ml"]\n')


@pytest.fixture
def look_at(tmp_path, monkeypatch):
    """What a controller of that site sees of these jobs."""
    with closing(Store.open(tmp_path / "state")) as store:
        cluster = SimpleNamespace(
            traffic=Traffic(lambda: NOW), queries=Counter(), read_config=dict, read_topology=dict
        )
        controller = Controller(SITE, cluster, store, RATES, 0, lambda: NOW)

        def look(*jobs):
            shown = observation(jobs, nodes(), steering={})
            monkeypatch.setattr(observed, "read", lambda *_: shown)
            return controller

        yield look


def test_a_tick_leaves_the_others_alone_and_keeps_what_it_has_begun(look_at):
    begun = steering.merge("", Steering({"v100": 1}, time=NOW, was={"Partition": "gpu"}))
    controller = look_at(
        job("1", account="ml"),
        job("2", account="phys"),
        running("3", {"v1": {"v100": 1}}, account="phys", admin_comment=begun),
    )
    found = controller.observe().jobs
    assert [id_ for id_, one in found.items() if one.managed] == ["1", "3"]
    report = controller.plan()
    assert "2" not in report.snapshot.schedulable and "2" not in report.snapshot.excluded


def test_a_job_that_was_moved_or_requeued_stays_managed_after_its_request_was_restored(look_at):
    """Its second requeue left it with the owner's own request again."""
    again = {"account": "phys", "restarts": 2}
    controller = look_at(
        running("1", {"v1": {"v100": 1}}, **again, admin_comment="[hadarplan;t=1;moves=5]"),
        # Of these only the journal knows: one was requeued by us, one by Slurm.
        running("2", {"v2": {"v100": 1}}, **again),
        running("3", {"p1": {"p100": 1}}, **again),
        # Another job's number, long ago.
        job("4", account="phys"),
    )
    for id_ in ("2", "4"):
        entry = controller.store.begin(id_, Kind.MOVE.value, "asked", NOW, {})
        controller.store.advance(entry, REQUEUED, NOW)
        controller.store.end(entry, "moved", NOW)
    found = controller.observe().jobs
    assert [id_ for id_, one in found.items() if one.managed] == ["1", "2"]


def test_status_and_explain_say_who_is_outside_and_why(look_at):
    controller = look_at(job("1", account="ml"), job("2", account="phys", user="bob"))
    shown = controller.observe()
    sight = Sight(shown, SITE, ControllerState("acts", "h", NOW), STATE_FILE, {})
    found = overview(sight, Viewer(0, everything=True))
    assert found.rollout == "accounts ml; 1 that opted in not steered by this"
    reasons = {row.id: row.reason for row in found.rows}
    assert reasons["2"].startswith("not steered: outside the rollout: neither its account")
    assert "rollout" not in reasons["1"]
    # What was decided while it was inside holds no more.
    old = Decision("2", NOW - 60, "1 x v100", "stays: it would gain nothing")
    rows = overview(replace(sight, decisions={"2": old}), Viewer(0, everything=True)).rows
    (row,) = [row for row in rows if row.id == "2"]
    assert row.reason == reasons["2"] and not row.planned
    controller.store.decisions.record([old])
    explanation = job_explanation.explanation_of(controller, "2")
    assert not explanation.reason and not explanation.decision
    notes = explanation.notes
    assert any("outside the rollout" in note for note in notes)
