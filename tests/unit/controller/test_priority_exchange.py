"""Waiting jobs of ours that have each other's priority, by their Nice."""

import json
from collections import Counter
from contextlib import closing
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hand_made import (
    NOW,
    RATES,
    as_cluster,
    config,
    dictate,
    look,
    nodes,
    observation,
    ordinary,
    partitions_of,
    running,
)
from hand_made import job as any_job
from looking import Looking

from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.apply import ActionContext, Sent, send_hints
from slurm_hadar.controller.actuation.pending.confirm_exchange import (
    confirm,
    unchanged_since_observed,
)
from slurm_hadar.controller.actuation.pending.hint_updates import HintInput
from slurm_hadar.controller.actuation.pending.hints import hints
from slurm_hadar.controller.actuation.pending.lent_places import as_state, notes, remembered
from slurm_hadar.controller.actuation.pending.owners_nices import given_back
from slurm_hadar.controller.actuation.pending.priority_exchange import exchange
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import steering_store as kept_fields
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import UNTYPED, GpuRequest, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.traffic import Traffic

FULL = nodes(v1=2, v2=2, p1=2, p2=2, k1=2, k2=2)
KNOWN = Declaration(model="resnet50", types=("any",), checkpoint="yes", samples=1000)


def site(level="association"):
    return config(f'[queue]\nexchange = "{level}"\n')


def job(id_, priority, **more):
    usual = {"priority": priority, "declaration": KNOWN, "mem_per_node_mb": 1000}
    return any_job(id_, **{**usual, **more})


def two(count, **more):
    return {"request": GpuRequest(per_node={UNTYPED: count}), **more}


def places(
    jobs,
    planned=(),
    level="association",
    state=None,
    steering=None,
    refused=(),
    partitions=None,
    **more,
):
    shown = observation(jobs, FULL, partitions, steering=steering or {}, **more)
    view = look(shown)
    plan = dictate(view.view, {id_: {"v100": 1} for id_ in planned})
    given = HintInput(shown, site(level), {id_: Refusals(1, NOW) for id_ in refused})
    return exchange(view, plan, given, remembered(state or {}))


def nices(*args, **more):
    return places(*args, **more).nices


def kept(*args, **more):
    """What is kept of it, as the state file has it."""
    return json.loads(json.dumps(as_state(places(*args, **more).memory)))


def wrote(own, nice):
    return Steering(time=NOW - 60, was={"Nice": str(own)}, wrote={"Nice": str(nice)})


def test_the_job_that_the_policy_would_start_has_the_priority_of_the_one_that_it_lets_wait():
    jobs = [job("1", 900), ordinary("9", priority=800), job("2", 700)]
    assert nices(jobs, ["2"]) == {"1": "200", "2": "-200"}
    assert nices(jobs, ["1"]) == {}
    assert nices(jobs, ["2"], "none") == {}


def test_jobs_that_have_their_nodes_alone_exchange_no_places():
    alone = {"exclusive": True, "whole_nodes": True, "request": GpuRequest(per_node={UNTYPED: 2})}
    shared = {"request": alone["request"]}
    assert nices([job("1", 900, **shared), job("2", 500, **shared)], ["2"])
    assert not nices([job("1", 900, **alone), job("2", 500, **alone)], ["2"])


def test_an_own_nice_counts_on():
    jobs = [job("1", 900, nice=50), job("2", 700, nice=5)]
    assert nices(jobs, ["2"]) == {"1": "250", "2": "-195"}


@pytest.mark.parametrize(
    "more",
    [
        two(2),
        {"time_limit_s": 9000.0},
        {"cpus": 2},
        {"mem_per_node_mb": 0},
        {"mem_per_node_mb": 2000},
        {"per_gpu": True},
        {"user": "bob", "uid": 1001},
        {"account": "other"},
        {"qos": "high"},
        {"features": "ib"},
        {"excluded_nodes": ("v1",)},
        {"array_job_id": 2, "array_tasks": "0-3"},
        {"restarts": 1},
        {"held": True},
        {"dependency": "afterok:5", "reason": "Dependency"},
        {"reason": "QOSMaxJobsPerUserLimit"},
        {"external": True},
        {"other_gres": True},
        {"declaration": None},
    ],
)
def test_a_job_that_asks_for_more_or_for_something_else_passes_nobody(more):
    jobs = [job("1", 900), ordinary("9", priority=800), job("2", 700, **more)]
    assert nices(jobs, ["2"]) == {}


def test_what_asks_for_more_passes_where_nobody_else_is_between():
    jobs = [ordinary("9", priority=950), job("1", 900), job("2", 700, **two(2))]
    assert nices(jobs, ["2"]) == {"1": "200", "2": "-200"}
    # One that may not start yet is passed by nobody.
    later = ordinary("8", priority=800, eligible_s=NOW + 60, reason="BeginTime")
    assert nices([*jobs, later], ["2"]) == {"1": "200", "2": "-200"}
    between = ordinary("8", priority=800)
    assert nices([*jobs, between], ["2"]) == {}


def test_levels():
    ann, bob = job("1", 900, account="x"), job("2", 700, account="x", user="bob", uid=1001)
    assert nices([ann, bob], ["2"]) == {}
    assert nices([ann, bob], ["2"], "account") != {}
    other = replace(bob, account="y")
    assert nices([ann, other], ["2"], "account") == {}
    assert nices([ann, other], ["2"], "all") != {}


def test_nobody_is_passed_for_an_equal_priority():
    """Of two with one priority Slurm takes the lesser number first."""
    # Job 1 would have the priority of 5, and come first of the two.
    jobs = [job("1", 900), ordinary("5", priority=700), job("6", 700)]
    assert nices(jobs, ["6"]) == {}
    # Behind all of that priority as it is: nothing changes for 5.
    jobs = [job("4", 900), ordinary("3", priority=700), job("6", 700)]
    assert nices(jobs, ["6"]) == {"4": "200", "6": "-200"}


def test_nothing_changes_while_the_order_is_as_wanted():
    jobs = [job("1", 901 - 200, nice=200), ordinary("9", priority=800), job("2", 900, nice=-200)]
    steering = {"1": wrote(0, 200), "2": wrote(0, -200)}
    assert nices(jobs, ["2"], steering=steering) == {"1": "200", "2": "-200"}
    # The policy wants it no more.
    assert nices(jobs, ["1"], steering=steering) == {}


def test_one_exchange_more_changes_no_nice_of_the_others():
    """Priorities have drifted since the first two were exchanged, as they do with age."""
    drifted = [job("1", 700 + 7, nice=200), job("2", 900 + 3, nice=-200)]
    others = [ordinary("9", priority=800), ordinary("8", priority=600)]
    bob = {"user": "bob", "uid": 1001}
    pair = [job("3", 650, **bob), job("4", 550, **bob)]
    steering = {"1": wrote(0, 200), "2": wrote(0, -200)}
    found = nices([*drifted, *others, *pair], ["2", "4"], steering=steering)
    assert found == {"1": "200", "2": "-200", "3": "100", "4": "-100"}
    # One that has drifted beyond another job gets another Nice.
    far = replace(drifted[0], priority=820)
    found = nices([far, drifted[1], *others, *pair], ["2", "4"], steering=steering)
    assert (found["1"], found["2"]) == (str(1020 - 703), "-200")


BETWEEN = ordinary("9", priority=800)
DOWN, UP = job("1", 700, nice=200), job("2", 900, nice=-200)
EXCHANGED = {"1": wrote(0, 200), "2": wrote(0, -200)}
NOT_NOW = {"2": Refusals(3, NOW - 1)}


def viewed(tmp_path, jobs, state=None, steering=None, partitions=None):
    """The view that a tick gives its policy."""
    views = []

    def decide(view, memory):
        views.append(view)
        return dictate(view, {}), memory

    with closing(Store.open(tmp_path / "state")) as store:
        store.keep_policy_state("exchange", state or {})
        cluster = SimpleNamespace(traffic=Traffic(lambda: NOW), queries=Counter())
        controller = Looking(site(), cluster, store, RATES, 0, lambda: NOW, decide=decide)
        shown = observation(jobs, FULL, steering=steering or {}, partitions=partitions)
        controller.shown = shown
        controller.plan()
    return views[0].jobs


def test_the_policy_sees_the_same_order_before_and_after_an_exchange(tmp_path):
    before = viewed(tmp_path, [job("1", 900), BETWEEN, job("2", 700)])
    after = viewed(tmp_path, [DOWN, BETWEEN, UP], after_an_exchange(), EXCHANGED)
    for name in (field.name for field in fields(before)):
        one, other = getattr(before, name), getattr(after, name)
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other, err_msg=name)
    assert after.priority[0] > after.priority[1]


def test_a_place_that_was_used_up_is_the_jobs_own_to_the_policy(tmp_path):
    """Job 2 has started from the place of job 1, which has that of job 2 from then on."""
    started = running("2", {"v1": {"v100": 1}}, nice=-200, priority=910)
    shown = [replace(DOWN, priority=700), job("3", 800), started]
    jobs = viewed(tmp_path, shown, after_an_exchange(), EXCHANGED)
    assert jobs.priority[jobs.ids.index("1")] < jobs.priority[jobs.ids.index("3")]


def test_a_higher_tier_comes_first_for_the_policy(tmp_path):
    low = replace(job("1", 900), partitions=("v100",))
    high = replace(job("2", 700), partitions=("p100",))
    tiers = [
        replace(part, priority_tier=2 if part.name == "p100" else 1) for part in partitions_of(FULL)
    ]
    jobs = viewed(tmp_path, [low, high], partitions=tiers)
    assert jobs.priority[1] > jobs.priority[0]


def after_an_exchange():
    return kept([job("1", 900), BETWEEN, job("2", 700)], ["2"])


def test_a_job_whose_partner_started_from_its_place_has_the_partners():
    state = after_an_exchange()
    down = job("1", 710, nice=200)
    started = running("2", {"v1": {"v100": 1}}, nice=-200, priority=910)
    ended = replace(started, state=JobState.FINISHED)
    for then in ([started], [ended], []):
        jobs = [down, BETWEEN, *then]
        assert nices(jobs, ["1"], state=state, steering=EXCHANGED) == {"1": "200"}
        # And so it stays, also while a limit keeps it from starting, and while it is held.
        state_then = kept(jobs, ["1"], state=state, steering=EXCHANGED)
        for word in ({}, {"reason": "QOSMaxGRESPerUser"}, {"held": True, "priority": 0}):
            jobs = [replace(down, **word), BETWEEN]
            assert nices(jobs, ["1"], state=state_then, steering=EXCHANGED) == {"1": "200"}
            state_then = kept(jobs, ["1"], state=state_then, steering=EXCHANGED)
        assert nices([down, BETWEEN], ["1"], state=state_then, steering=EXCHANGED) == {"1": "200"}


def test_a_place_that_was_not_used_goes_back():
    state = after_an_exchange()
    cancelled = replace(UP, state=JobState.FINISHED)
    before_it = running("2", {"v1": {"v100": 1}}, nice=0)
    for then in (cancelled, before_it):
        assert nices([DOWN, then, BETWEEN], [], state=state, steering=EXCHANGED) == {}
    # The one that let the other go first is gone: nobody needs its place.
    assert nices([UP, BETWEEN], [], state=state, steering=EXCHANGED) == {}


OUT = [
    {"held": True, "priority": 0},
    {"reason": "QOSMaxGRESPerUser"},
    {"dependency": "afterok:5", "reason": "Dependency"},
    {"eligible_s": NOW + 60, "reason": "BeginTime"},
]


@pytest.mark.parametrize("out", OUT)
@pytest.mark.parametrize("which", ["1", "2"])
def test_no_place_is_used_up_by_a_job_that_leaves_the_line(out, which):
    """Both have their own again, so that two never stand ahead of the one between."""
    jobs = [replace(one, **out) if one.id == which else one for one in (DOWN, BETWEEN, UP)]
    found = places(jobs, ["2"], state=after_an_exchange(), steering=EXCHANGED)
    assert found.nices == {} and found.memory.lost == {}
    # Whether Slurm takes the update of it or not, and whatever becomes of it: none is lost.
    state = json.loads(json.dumps(as_state(found.memory)))
    own = [job("1", 900), BETWEEN, job("2", 700)]
    own = [replace(one, **out) if one.id == which else one for one in own]
    ended = [
        replace(one, state=JobState.FINISHED, priority=0) if one.id == which else one for one in own
    ]
    for then in (own, ended, [one for one in own if one.id != which]):
        after = places(then, ["2"], state=state)
        assert after.nices == {} and after.memory.lost == {} and after.memory.lent == {}


@pytest.mark.parametrize("out", OUT)
def test_a_job_that_comes_back_exchanges_its_place_again_once_slurm_shows_its_own_nice(out):
    jobs = [DOWN, BETWEEN, replace(UP, **out)]
    state = kept(jobs, ["2"], state=after_an_exchange(), steering=EXCHANGED)
    again = {"1": "200", "2": "-200"}
    assert nices([job("1", 900), BETWEEN, job("2", 700)], ["2"], state=state) == again
    # Of an update that was not sent the exchange stands.
    assert nices([DOWN, BETWEEN, UP], ["2"], state=state, steering=EXCHANGED) == again
    # One that asks for more by then has its own place.
    more = job("2", 700, **two(2))
    assert nices([job("1", 900), BETWEEN, more], ["2"], state=state) == {}
    more = replace(UP, **two(2))
    assert nices([DOWN, BETWEEN, more], ["2"], state=state, steering=EXCHANGED) == {}


@pytest.mark.parametrize("out", OUT)
def test_an_exchange_stands_while_slurm_refuses_to_take_the_place_back(out):
    """Else both would stand ahead of the one between, when it is back."""
    jobs, lists = [DOWN, BETWEEN, replace(UP, **out)], {"steering": EXCHANGED}
    state = after_an_exchange()
    for refused in ((), {"2"}, {"2"}):
        found = places(jobs, ["2"], state=state, refused=refused, **lists)
        state = json.loads(json.dumps(as_state(found.memory)))
        assert found.nices == ({"1": "200", "2": "-200"} if refused else {})
    assert given_back(observation(jobs, FULL, **lists), NOT_NOW, found.nices) == []
    # Nothing is lost: it may end without having started.
    ended = replace(UP, state=JobState.FINISHED, priority=0)
    assert nices([DOWN, BETWEEN, ended], ["2"], state=state, **lists) == {}
    started = running("2", {"v1": {"v100": 1}}, nice=-200, priority=910)
    assert nices([DOWN, BETWEEN, started], ["2"], state=state, **lists) == {"1": "200"}
    # Slurm shows it no more: it may have started.
    assert nices([DOWN, BETWEEN], ["2"], state=state, **lists) == {"1": "200"}


def test_the_better_place_goes_back_though_slurm_refuses_an_update_of_the_other_job():
    jobs, state = [replace(DOWN, held=True, priority=0), BETWEEN, UP], after_an_exchange()
    for refused in ((), {"1"}, {"1"}):
        found = places(jobs, ["2"], state=state, refused=refused, steering=EXCHANGED)
        state = json.loads(json.dumps(as_state(found.memory)))
        assert found.nices == {} and found.memory.lost == {}


def test_a_job_that_started_and_was_requeued_has_used_the_place():
    requeued = replace(UP, restarts=1)
    ended = replace(requeued, state=JobState.FINISHED)
    held = replace(requeued, held=True, priority=0)
    for then in (requeued, ended, held, replace(requeued, declaration=None)):
        more = {"state": after_an_exchange(), "steering": EXCHANGED}
        assert nices([DOWN, BETWEEN, then], ["1"], **more)["1"] == "200"


def test_of_three_jobs_with_each_others_places_all_have_their_own_again():
    jobs = [job("1", 900), job("2", 700), job("3", 500)]
    wide = [jobs[0], ordinary("9", priority=800), jobs[1], ordinary("8", priority=600), jobs[2]]
    state = kept(wide, ["3", "2"])
    given = {id_: row[1] for id_, row in state["lent"].items()}
    ring = [replace(one, nice=given[one.id], priority=one.priority - given[one.id]) for one in jobs]
    steering = {id_: wrote(0, nice) for id_, nice in given.items()}
    for at in range(len(ring)):
        shown = [replace(one, held=one is ring[at]) for one in ring]
        found = places([*shown, BETWEEN], ["3", "2"], state=state, steering=steering)
        assert found.nices == {} and found.memory.lost == {}


def test_a_held_job_has_its_owners_nice_again():
    held = replace(UP, held=True, priority=0)
    shown = observation([DOWN, BETWEEN, held], FULL, steering=EXCHANGED, priority_returns=True)
    (action,) = given_back(shown, {})
    assert (action.job.id, dict(action.fields)) == ("2", {"Nice": "0"})
    assert action.steering.was == action.steering.wrote == {}
    assert action.reason == "it is held: its owner's Nice is restored"
    # Not one that another job has used up the place of, nor a Nice of another author.
    assert given_back(shown, {}, {"2"}) == [] and given_back(shown, NOT_NOW) == []
    theirs = observation([held], FULL, steering={"2": THEIRS}, priority_returns=True)
    assert given_back(theirs, {}) == []
    # Under priority/basic an update of the Nice releases a job.
    assert given_back(replace(shown, priority_returns=False), {}) == []
    # An opted-out job too, before it is released.
    out = replace(held, declaration=None)
    (action,) = given_back(replace(shown, jobs={**shown.jobs, "2": out}), {})
    assert dict(action.fields) == {"Nice": "0"}


def test_who_is_refused_a_hint_keeps_its_place():
    found = nices(
        [DOWN, BETWEEN, UP], ["1"], state=after_an_exchange(), steering=EXCHANGED, refused={"2"}
    )
    assert found == {"1": "200", "2": "-200"}


def test_who_opts_out_by_its_comment_has_its_own_nice_again():
    state = after_an_exchange()
    out = replace(UP, declaration=None)
    shown = observation([DOWN, BETWEEN, out], FULL, steering=EXCHANGED)
    (action,) = given_back(shown, {})
    assert (action.job.id, dict(action.fields)) == ("2", {"Nice": "0"})
    assert action.steering.was == {}
    assert nices([DOWN, BETWEEN, out], [], state=state, steering=EXCHANGED) == {}
    assert "2" in kept([DOWN, BETWEEN, out], [], state=state, steering=EXCHANGED)["ours"]
    theirs = replace(out, nice=5)
    known = kept_fields.without_foreign(EXCHANGED, {"2": theirs}, site(), (), NOW)
    assert given_back(observation([theirs], FULL, steering=known), {}) == []


def test_a_priority_at_slurms_least_tells_nothing():
    jobs = [job("1", 900), BETWEEN, job("2", 1)]
    assert nices(jobs, ["2"]) == {}
    low = [replace(DOWN, priority=1), BETWEEN, UP]
    assert nices(low, ["2"], state=after_an_exchange(), steering=EXCHANGED) == {}


def test_a_nice_of_somebody_else_is_left_alone():
    known = wrote(0, 200)
    shown = job("1", 900, nice=5)
    ours = kept_fields.without_foreign({"1": known}, {"1": shown}, site(), (), NOW)
    assert ours["1"].foreign == ("Nice",) and "Nice" not in ours["1"].was
    assert nices([shown, job("2", 700)], ["2"], steering=ours) == {}


def test_top_of_scontrol_takes_both_out_and_is_kept():
    """``scontrol top 1`` gives job 1 a lesser Nice and all other waiting jobs of its owner a
    greater one."""
    steering = {"1": wrote(0, 200), "2": wrote(0, -200)}
    topped = [job("1", 1000, nice=-100), job("2", 600, nice=100), job("3", 500, nice=100)]
    ours = kept_fields.without_foreign(steering, {one.id: one for one in topped}, site(), (), NOW)
    assert ours["1"].foreign == ours["2"].foreign == ("Nice",)
    assert nices([*topped, BETWEEN], ["3"], state=after_an_exchange(), steering=ours) == {}
    shown = observation([*topped, BETWEEN], FULL, steering=ours)
    plan = dictate(look(shown).view, {})
    found = hints(look(shown), plan, HintInput(shown, site()))
    assert all("Nice" not in action.fields for action in found)


DAY_S = 86400.0
THEIRS = Steering(time=NOW - 60, foreign=("Nice",))
STARTED = running("2", {"v1": {"v100": 1}}, nice=-200, priority=910)


def changed_by_owner(*jobs, state=None, also=EXCHANGED, ids=("1",), now=NOW):
    """The tick that sees another Nice than its own at these jobs first."""
    known = {**also, **dict.fromkeys(ids, THEIRS)}
    more = {"state": state or after_an_exchange(), "steering": known, "now": now}
    return places(jobs, ["2", "4"], nice_changed=frozenset(ids), **more)


def test_a_nice_that_the_owner_sets_after_its_place_was_used_is_not_written_again():
    state = kept([DOWN, BETWEEN, STARTED], [], state=after_an_exchange(), steering=EXCHANGED)
    reset = job("1", 910)
    for before in (after_an_exchange(), state):
        found = changed_by_owner(reset, BETWEEN, STARTED, state=before)
        assert found.nices == {} and found.memory.lost == {}
        assert found.memory.barred == {reset.uid: NOW + DAY_S}
        (said,) = found.messages
        assert said.startswith("job 1: Nice 0 is not what the exchange of places gave it")
        again = {"state": as_state(found.memory), "steering": {"1": THEIRS}}
        assert places([reset, BETWEEN], **again).nices == {}
        assert places([reset, BETWEEN], **again).messages == ()


def test_an_exchange_under_way_is_undone_where_an_owner_has_changed_a_nice():
    others = [job("3", 600), job("4", 500)]
    found = changed_by_owner(job("1", 900), BETWEEN, UP, *others)
    assert found.nices == {}
    # Nor does another job that waits, and may not start now, keep the place that it was given.
    for off in ({"held": True, "priority": 0}, {"reason": "QOSMaxGRESPerUser"}):
        found = changed_by_owner(job("1", 900), BETWEEN, replace(UP, **off))
        assert found.nices == {}


def test_no_job_of_an_owner_who_changed_such_a_nice_exchanges_its_place_for_a_day():
    pair = [job("3", 600), ordinary("8", priority=550), job("4", 500)]
    state = as_state(changed_by_owner(job("1", 900), BETWEEN, UP).memory)
    state = json.loads(json.dumps(state))
    assert nices(pair, ["4"], state=state, now=NOW + DAY_S - 1) == {}
    assert nices(pair, ["4"], state=state, now=NOW + DAY_S) == {"3": "100", "4": "-100"}
    theirs = [replace(one, uid=1001, user="bob") for one in pair]
    assert nices(theirs, ["4"], state=state) == {"3": "100", "4": "-100"}
    shown = observation([*pair, BETWEEN, replace(pair[0], id="7", uid=1001)], FULL)
    said = notes(remembered(state), shown)
    assert said.keys() == {"3", "4"} and "exchanges no place in the queue until" in said["3"]


def test_a_job_that_gave_up_its_place_stays_behind_though_the_other_one_has_a_new_nice():
    """Nobody knows whether the other one started from its place or from its own."""
    started = replace(STARTED, nice=0)
    for one in (started, replace(started, state=JobState.FINISHED)):
        found = changed_by_owner(DOWN, BETWEEN, one, ids=("2",))
        assert found.nices == {"1": "200"} and DOWN.uid in found.memory.barred


def test_a_job_that_opts_out_after_its_place_was_used_bars_its_owner_too():
    out = replace(DOWN, declaration=None)
    state = kept([DOWN, BETWEEN, STARTED], [], state=after_an_exchange(), steering=EXCHANGED)
    for before in (after_an_exchange(), state):
        found = places([out, BETWEEN, STARTED], state=before, steering=EXCHANGED)
        assert found.memory.barred == {out.uid: NOW + DAY_S}
        assert "job 1: it opted out after" in found.messages[0]
        after = {"state": as_state(found.memory), "steering": EXCHANGED}
        assert places([out, BETWEEN], **after).messages == ()
    # Before the other one starts both have their own again.
    found = places([out, BETWEEN, UP], state=after_an_exchange(), steering=EXCHANGED)
    assert found.memory.barred == {} and found.messages == ()


LEFT_BY_ITSELF = [
    {"held": True, "priority": 0, "reason": "JobHeldUser"},
    {"dependency": "afterok:5", "reason": "Dependency"},
    {"eligible_s": NOW + 60, "reason": "BeginTime"},
    {"state": JobState.FINISHED, "priority": 0},
    {"declaration": None},
]


@pytest.mark.parametrize("out", LEFT_BY_ITSELF)
def test_who_leaves_the_place_of_another_users_job_gets_none_for_a_day(out):
    """Until the tick that sees it the other one waits in the worse place."""
    theirs = replace(DOWN, uid=1001, user="bob")
    left = replace(UP, **out)
    more = {"state": after_an_exchange(), "steering": EXCHANGED, "level": "all"}
    found = places([theirs, BETWEEN, left], ["2"], **more)
    assert found.nices == {} and found.memory.barred == {UP.uid: NOW + DAY_S}
    (said,) = found.messages
    assert said.startswith(f"job 2: it left the place of another user's job; no job of {UP.user}")
    # It is said once, and the other user exchanges places as before.
    own = [replace(theirs, nice=0, priority=900), BETWEEN, replace(left, nice=0)]
    state = json.loads(json.dumps(as_state(found.memory)))
    assert places(own, ["2"], state=state, level="all").messages == ()
    # Among a user's own jobs, and by a limit or an admin's hold, nothing is left to gain.
    for jobs in (
        [DOWN, BETWEEN, left],
        [theirs, BETWEEN, replace(UP, reason="QOSMaxGRESPerUser")],
        [theirs, BETWEEN, replace(UP, held=True, priority=0, reason="JobHeldAdmin")],
        [replace(theirs, **out), BETWEEN, UP],
    ):
        assert places(jobs, ["2"], **more).memory.barred == {}


def test_a_place_is_used_by_a_job_that_starts_while_its_nice_stands_for_its_age():
    ours = {**EXCHANGED, "2": wrote(0, -740)}
    started = replace(STARTED, nice=-740)
    jobs = [DOWN, BETWEEN, started]
    assert nices(jobs, ["1"], state=after_an_exchange(), steering=ours) == {"1": "200"}


def test_only_a_nice_that_the_controller_gave_is_seen_as_changed():
    theirs = {"1": job("1", 900, nice=0)}
    for state in (JobState.PENDING, JobState.RUNNING, JobState.FINISHED):
        shown = {"1": replace(theirs["1"], state=state)}
        assert kept_fields.nice_changed({"1": wrote(0, 200)}, shown, site(), ()) == {"1"}
    assert kept_fields.nice_changed({"1": wrote(0, 200)}, theirs, site(), ("1",)) == set()
    assert kept_fields.nice_changed({"1": wrote(0, 200)}, {"1": DOWN}, site(), ()) == set()
    assert kept_fields.nice_changed({"1": THEIRS}, theirs, site(), ()) == set()


@pytest.mark.parametrize("differs", [{"priority_tier": 2}, {"priority_factor": 2}])
def test_a_list_of_partitions_with_several_priorities_takes_no_part(differs):
    """Such a job has a priority in each of them."""
    own = {"partitions": ("v100", "p100")}
    jobs = [job("1", 900, **own), BETWEEN, job("2", 700, **own)]
    parts = partitions_of(FULL)
    unequal = [replace(part, **differs) if part.name == "p100" else part for part in parts]
    assert nices(jobs, ["2"], partitions=parts) == {"1": "200", "2": "-200"}
    assert nices(jobs, ["2"], partitions=unequal) == {}


@pytest.mark.parametrize(
    ("rights", "how", "exchanges"),
    [
        ("operator", "priority/multifactor", True),
        ("operator", "priority/basic", False),
        ("user", "priority/multifactor", False),
    ],
)
def test_only_an_operator_exchanges_and_under_multifactor_only(tmp_path, rights, how, exchanges):
    """Under priority/basic a Nice changes no order; an owner may not give a job more priority."""
    known = config(f'[site]\nrights = "{rights}"\n[queue]\nexchange = "association"\n')
    cluster = SimpleNamespace(
        traffic=Traffic(lambda: NOW), queries=Counter(), read_config=lambda: {"PriorityType": how}
    )
    shown = observation([job("1", 900), BETWEEN, job("2", 700)], nodes(), steering={})

    def decide(view, memory):
        return dictate(view, {"2": {"v100": 1}}), memory

    with closing(Store.open(tmp_path / "state")) as store:
        controller = Looking(known, cluster, store, RATES, 0, lambda: NOW, decide=decide)
        controller.shown = shown
        controller.rules.read(NOW)
        sent = controller.plan().diff.of(Kind.HINT)
    assert {a.job.id for a in sent if "Nice" in a.fields} == ({"1", "2"} if exchanges else set())


def test_those_that_move_down_are_sent_before_those_that_move_up(tmp_path):
    """Slurm may start a job between the two updates: the one between must not have both ahead."""
    with closing(Store.open(tmp_path / "state")) as store:
        slurm = Shown()
        (tmp_path / "exchange").mkdir()
        own = config(f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}/exchange"\n')
        context = ActionContext(as_cluster(slurm), store, own, clock=lambda: NOW)
        send_hints(context, list(reversed(actions())), NOW)
    assert slurm.sent == [("1", {"Nice": "200"}), ("2", {"Nice": "-200"})]


def test_those_that_move_down_go_back_before_those_that_move_up(tmp_path):
    pairs = [*actions(), Action(Kind.HINT, job("3", 500), {"Nice": "5"}, wrote(0, 5), "it waits")]
    with closing(Store.open(tmp_path / "state")) as store:
        slurm = Shown(job("1", 700, nice=200), job("2", 900, nice=-200), job("3", 500, nice=0))
        confirm(ActionContext(as_cluster(slurm), store, site(), clock=lambda: NOW), pairs, ())
    assert slurm.sent == [("2", {"Nice": "0"}), ("1", {"Nice": "0"})]


def test_a_job_that_slurm_refused_takes_no_part():
    jobs = [job("1", 900), job("2", 700)]
    assert nices(jobs, ["2"], refused={"1"}) == {}


def test_the_nice_comes_with_the_other_hints_and_goes_back():
    shown = observation([job("1", 900), job("2", 700)], FULL)
    view = look(shown)
    plan = dictate(view.view, {"2": {"v100": 1}})
    first = hints(view, plan, HintInput(shown, site()), {"1": "200", "2": "-200"})
    assert {a.job.id: dict(a.fields) for a in first} == {
        "1": {"Nice": "200"},
        "2": {"Nice": "-200"},
    }
    assert all(a.steering.was == {"Nice": "0"} for a in first)
    down = job("1", 700, nice=200)
    then = observation([down], FULL, steering={"1": wrote(0, 200)})
    for left_out in ({}, {"1": "it opted out"}):
        found = hints(replace(look(then), excluded=left_out), plan, HintInput(then, site()))
        assert [dict(a.fields) for a in found] == [{"Nice": "0"}] * len(found) and found
        assert found[0].steering.was == {}


class Shown:
    """What Slurm shows after the updates; it takes all of them."""

    def __init__(self, *jobs):
        self.jobs, self.sent = jobs, []

    def read_jobs(self, ids):
        return [job for job in self.jobs if job.id in ids]

    def apply(self, updates):
        self.sent += [(update.job_id, dict(update.fields)) for update in updates]
        return [None] * len(updates)


def actions():
    return [
        Action(Kind.HINT, job(id_, priority), {"Nice": str(nice)}, wrote(0, nice), "it waits")
        for id_, priority, nice in (("1", 900, 200), ("2", 700, -200))
    ]


def confirmed(tmp_path, *jobs, refused=()):
    store = Store.open(tmp_path / "state")
    slurm = Shown(*jobs)
    context = ActionContext(as_cluster(slurm), store, site(), clock=lambda: NOW)
    said = confirm(context, actions(), refused).messages
    known = {id_: context.steering_of(job(id_, 1)) for id_ in ("1", "2")}
    store.close()
    return slurm.sent, said, known


def left_to_send(*jobs, shown=Shown):
    other = Action(Kind.HINT, job("3", 500), {"Partition": "k80"}, Steering(time=NOW), "its list")
    context = ActionContext(as_cluster(shown(*jobs)), None, site(), clock=lambda: NOW)
    found, sent = unchanged_since_observed(context, [*actions(), other])
    return [action.job.id for action in found], sent


def test_a_nice_that_was_set_since_the_tick_looked_is_not_overwritten():
    as_seen = (job("1", 900), job("2", 700))
    assert left_to_send(*as_seen) == (["1", "2", "3"], Sent())
    # One that has begun has no place any more, and what is gone neither.
    begun = running("2", {"v1": {"v100": 1}}, nice=7)
    assert left_to_send(as_seen[0], begun)[0] == ["1", "2", "3"]
    assert left_to_send(as_seen[0])[0] == ["1", "2", "3"]
    for changed in (job("2", 693, nice=7), job("2", 0, held=True)):
        ids, sent = left_to_send(as_seen[0], changed)
        assert ids == ["3"] and sent.refused == {"1", "2"}
        assert "the Nice of job 2 has just been changed" in sent.messages[0]


class Dead(Shown):
    """Slurm does not say what the jobs have."""

    def read_jobs(self, ids):
        raise SlurmError("slurmctld does not answer")


@pytest.mark.parametrize(
    ("shown", "sent"), [(None, True), (-900, True), (77, False), (0, False), (Dead, False)]
)
def test_a_nice_that_the_owner_of_a_moved_job_set_since_the_tick_looked_stays(shown, sent):
    """The job runs again, and would get the Nice that it had before its move."""
    moved = running("1", {"v1": {"v100": 1}}, restarts=1, nice=-900)
    back = Action(Kind.HINT, moved, {"Nice": "0"}, Steering(time=NOW), "it runs")
    known = shown not in (None, Dead)
    slurm = Dead() if shown is Dead else Shown(*([replace(moved, nice=shown)] if known else []))
    context = ActionContext(as_cluster(slurm), None, site(), clock=lambda: NOW)
    found, unsent = unchanged_since_observed(context, [back])
    assert found == ([back] if sent else [])
    assert unsent == Sent(refused=frozenset() if sent else frozenset({"1"}))


def test_no_places_are_exchanged_where_slurm_does_not_say_what_the_jobs_have():
    ids, sent = left_to_send(shown=Dead)
    assert ids == ["3"] and sent.refused == {"1", "2"}
    assert "slurmctld does not answer" in sent.messages[0]


def test_an_exchange_that_slurm_carried_out_stands(tmp_path):
    sent, said, _ = confirmed(tmp_path, job("1", 702, nice=200), job("2", 899, nice=-200))
    assert sent == [] and said == ()
    # It began in its new place.
    begun = running("2", {"v1": {"v100": 1}}, nice=-200)
    assert confirmed(tmp_path, job("1", 700, nice=200), begun)[0] == []


@pytest.mark.parametrize(
    "first",
    [
        job("1", 900, nice=0),
        running("1", {"v1": {"v100": 1}}, nice=200),
    ],
)
def test_both_have_their_own_nice_again_where_one_was_ignored(tmp_path, first):
    sent, said, known = confirmed(tmp_path, first, job("2", 900, nice=-200))
    assert sent == [("2", {"Nice": "0"})]
    if first.state is JobState.PENDING:
        assert known["1"].foreign == ("Nice",) and len(said) == 1
    # Its owner's Nice is known although the controller may die before it is sent.
    assert known["2"].was == {"Nice": "0"} and "Nice" not in known["2"].wrote


def test_where_one_was_refused_the_other_goes_back(tmp_path):
    sent, _, _ = confirmed(tmp_path, job("1", 900), job("2", 900, nice=-200), refused={"1"})
    assert sent == [("2", {"Nice": "0"})]


def test_a_look_that_fails_is_said(tmp_path):
    class Dead(Shown):
        def read_jobs(self, ids):
            raise SlurmError("slurmctld does not answer")

    store = Store.open(tmp_path / "state")
    said = confirm(ActionContext(as_cluster(Dead()), store, site()), actions(), ()).messages
    store.close()
    assert "slurmctld does not answer" in said[0]


def test_what_is_kept_is_not_believed_blindly():
    jobs = [job("1", 900), job("2", 700)]
    for state in (
        {"lent": 5, "lost": [], "ours": 1, "promised": [], "barred": 3},
        {"lent": {"1": [1]}, "lost": {"1": "x"}, "ours": [5], "promised": {"1": "x"}},
        {"barred": {"x": NOW + 9, "1000": "x", "-1": 5}},
    ):
        assert nices(jobs, ["2"], state=state) == {"1": "200", "2": "-200"}
