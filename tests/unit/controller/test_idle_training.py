"""Idle nodes: which are, who gets them, and what is sent."""

from dataclasses import replace

import pytest
from hand_made import NOW, RATES, carried_out, config, job, node, observation, ordinary

from slurm_hadar.controller.actuation import actions
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.pending.lent_places import Memory
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.idle_training import decision, idle_nodes
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.controller.snapshot.restart_costs import RestartCosts
from slurm_hadar.controller.tick_context import TickContext
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest, JobState
from slurm_hadar.domain.node import Partition, Reservation
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering, merge
from slurm_hadar.exchange.progress import Progress

SITE = config('[backfill]\nenabled = true\npartitions = ["idle"]\n')
TRAINS = Declaration(
    model="resnet18", types=("any",), checkpoint="yes", backfill=True, nodes=(1, 4)
)
NAMES = ("v1", "v2", "p1", "k1")


def site(**more):
    return config(
        '[backfill]\nenabled = true\npartitions = ["idle"]\n'
        + "".join(f"{key} = {value}\n" for key, value in more.items())
    )


def nodes(**more):
    """Four nodes of one GPU; ``v1={...}``: what differs there."""
    return [
        replace(node(name, gpus=1, partitions=("gpu", "idle")), **more.get(name, {}))
        for name in NAMES
    ]


PARTITIONS = [Partition("gpu", NAMES, priority_tier=10), Partition("idle", NAMES, priority_tier=1)]


def trainer(id_="1", state=JobState.PENDING, **more):
    return job(id_, state, **{"partitions": ("idle",), "declaration": TRAINS, **more})


def on(id_, *names, **more):
    """A trainer that runs on these nodes."""
    kinds = {"v": "v100", "p": "p100", "k": "k80"}
    usual = {
        "nodes": names,
        "gpus": {name: {kinds[name[0]]: 1} for name in names},
        "node_count": len(names),
        "tasks": len(names),
        "cpus": len(names),
        "required_nodes": names,
        "admin_comment": "[hadarplan;t=1;was.NumNodes=1-1;was.ReqNodeList=]",
    }
    return trainer(id_, JobState.RUNNING, **{**usual, **more})


def used(*names):
    """Nodes on which a trainer runs."""
    return {n.name: {"gpus_used": dict(n.gpus), "cpus_used": 1} for n in nodes() if n.name in names}


def look(jobs, found=None, **more):
    return observation(jobs, nodes() if found is None else found, PARTITIONS, **more)


def started(id_, *names, **more):
    """A trainer that Slurm started, and that was never moved."""
    return on(id_, *names, **{"required_nodes": (), "admin_comment": "", **more})


OWN = {"NumNodes": "1-1", "NumTasks": "1", "ReqNodeList": ""}


def sent_away(**more):
    """A trainer that had to leave two nodes, and waits with what the last move gave it."""
    usual = {
        "nodes": (),
        "gpus": {},
        "restarts": 1,
        "reason": "BeginTime",
        "eligible_s": NOW + 100,
        "admin_comment": merge("", Steering({"v100": 2}, time=1.0, was=OWN)),
    }
    return replace(on("1", "v1", "v2"), state=JobState.PENDING, **{**usual, **more})


def decide(observed, settings=SITE, placed=(), refused=None, state=None, moves=100, past=None):
    trainers = idle_nodes.on_idle_nodes(observed, settings)
    tick = TickContext(
        settings,
        RATES,
        observed,
        trainers,
        idle_nodes.without(observed, trainers),
        past or ControllerHistory(),
        refused or {},
        Memory(),
    )
    return decision.decide(tick, placed, state or {}, moves)


def test_a_trainer_that_waits_is_left_to_slurm_and_planned_for():
    result = decide(look([trainer()]))
    assert not result.actions and result.idle == NAMES
    assert set(result.placements["1"].nodes) == set(NAMES) and not result.excluded


def test_a_trainer_gets_the_idle_nodes_as_copies():
    result = decide(look([started("1", "v1")], nodes(**used("v1"))))
    (action,) = result.actions
    assert action.kind is Kind.MOVE and result.idle == NAMES[1:]
    assert action.fields == {
        "NumNodes": "4-4",
        "NumTasks": "4",
        "NumCPUs": "4-4",
        "ReqNodeList": "k1,p1,v[1-2]",
    }
    assert set(action.placement.nodes) == set(NAMES) and action.placement.copies == 4
    assert sum(action.placement.shares) == pytest.approx(1)
    assert dict(action.steering.was)["ReqNodeList"] == ""


def test_a_second_tick_sends_nothing():
    here = started("1", "v1")
    first = decide(look([here], nodes(**used("v1"))))
    sent = carried_out(here, first.actions[0])
    # It was requeued, and waits for its nodes.
    waits = replace(sent, state=JobState.PENDING, nodes=(), gpus={}, restarts=1, submit_s=NOW)
    again = decide(look([waits], now=NOW + 2), state=first.state)
    assert not again.actions and set(again.schedulable["1"].held) == set(NAMES)
    runs = on("1", *NAMES, admin_comment=sent.admin_comment, start_s=NOW + 3, restarts=1)
    third = decide(look([runs], nodes(**used(*NAMES)), now=NOW + 5), state=again.state)
    assert not third.actions and not third.deferred


def test_nobody_who_did_not_opt_in_is_a_trainer():
    plain = trainer("2", declaration=None)
    off = trainer("3", declaration=replace(TRAINS, off=True))
    unwilling = trainer("4", declaration=replace(TRAINS, backfill=False))
    elsewhere = trainer("5", partitions=("gpu",))
    assert not idle_nodes.on_idle_nodes(look([plain, off, unwilling, elsewhere]), SITE)
    assert not idle_nodes.on_idle_nodes(look([trainer()]), config())


def test_switched_off_a_request_is_its_owners_again_and_nothing_else_happens():
    off = site().model_copy(
        update={"backfill": site().backfill.model_copy(update={"enabled": False})}
    )
    result = decide(look([sent_away(), on("2", "v1"), trainer("3")], nodes(**used("v1"))), off)
    (action,) = result.actions
    assert action.kind is Kind.HINT and action.job.id == "1"
    assert dict(action.fields) == OWN
    assert "switched off" in result.excluded["2"]


def test_a_trainer_says_that_it_saves():
    left = decide(look([trainer(declaration=replace(TRAINS, checkpoint=""))])).excluded["1"]
    assert "checkpoint=yes" in left


def moved(one, *names):
    """The fields with which a trainer is sent to these nodes."""
    found = look([one], nodes(**used(*one.nodes)))
    nodes_ = {name: {"v100": 1} for name in names}
    there = Placement({"v100": len(names)}, nodes_, copies=len(names))
    action = actions.move(decide(found).schedulable["1"], there, found, SITE, pin=True)
    return dict(action.fields)


def test_a_trainer_on_one_node_is_moved_by_the_nodes_name():
    alone = started("1", "k1", declaration=replace(TRAINS, nodes=None))
    assert moved(alone, "v2") == {"ReqNodeList": "v2"}


def test_per_job_requests_are_left_to_slurm():
    whole = trainer(request=GpuRequest(per_job={UNTYPED: 2}))
    assert "--gres" in decide(look([whole])).excluded["1"]


@pytest.mark.parametrize(
    "different",
    [
        {"usable": False},
        {"cpus_used": 1},
        {"gpus_used": {"v100": 1}},
        {"asleep": True},
        {"partitions": ("gpu",)},
        {"gpus": {}},
    ],
)
def test_nodes_that_are_not_idle(different):
    found = nodes(v1=different)
    assert idle_nodes.idle(look([], found), SITE) == list(NAMES[1:])


def test_reserved_nodes_and_partitions_that_are_down_are_not_idle():
    soon = Reservation("r", ("v1",), NOW + 100, NOW + 5000)
    assert idle_nodes.idle(look([], reservations=(soon,)), SITE) == list(NAMES[1:])
    down = [PARTITIONS[0], replace(PARTITIONS[1], state="DOWN")]
    assert not idle_nodes.idle(observation([], nodes(), down), SITE)


def test_a_trainer_does_not_stand_in_anybodys_way():
    observed = look([on("1", "v1", "v2")], nodes(**used("v1", "v2")))
    others = idle_nodes.without(observed, idle_nodes.on_idle_nodes(observed, SITE))
    assert not others.jobs and idle_nodes.idle(others, SITE) == list(NAMES)
    assert idle_nodes.idle(observed, SITE) == ["p1", "k1"]


def test_nodes_that_a_pending_job_gets_now_are_left_to_it():
    waits = ordinary(features="v100", partitions=("gpu",))
    result = decide(look([trainer(), waits]))
    assert len(result.taken) == 1 and set(result.taken) < {"v1", "v2"}
    assert len(result.placements["1"].nodes) == 3


@pytest.mark.parametrize(("start", "left"), [(30, 2), (300, 0)])
def test_slurms_own_estimates_count_within_the_margin(start, left):
    gang = ordinary(partitions=("gpu",), features="v100", node_count=3, cpus=3, start_s=NOW + start)
    assert len(decide(look([trainer(), gang])).taken) == left


def test_a_begin_time_within_the_margin_counts_too():
    soon = ordinary(partitions=("gpu",), features="k80", eligible_s=NOW + 20, start_s=NOW + 20)
    assert set(decide(look([trainer(), soon])).taken) == {"k1"}


def test_where_managed_jobs_are_placed_nobody_trains():
    there = Placement({"p100": 1}, {"p1": {"p100": 1}})
    assert set(decide(look([trainer()]), placed=[there]).taken) == {"p1"}


def test_slurm_takes_free_nodes_before_it_sends_somebody_away():
    observed = look(
        [on("1", "v1"), ordinary(partitions=("gpu",), features="v100")], nodes(**used("v1"))
    )
    assert set(decide(observed).taken) == {"v2"}


def test_caps_hold():
    two = [trainer("1"), trainer("2", submit_s=NOW - 5)]
    for settings, most in ((site(max_nodes=3), 3), (site(max_nodes_per_user=2), 2)):
        places = decide(look(two), settings).placements
        assert sum(len(place.nodes) for place in places.values()) == most
    per_job = decide(look([trainer()]), site(max_nodes_per_job=2)).placements["1"]
    assert len(per_job.nodes) == 2
    first = decide(look(two), site(at_once=1))
    assert set(first.placements) == {"1"} and "at a time" in first.waiting["2"]


def test_none_is_stopped_for_a_cap():
    """Slurm started them beyond it, and would start them again."""
    three = [started(str(number), name) for number, name in enumerate(NAMES[:3], 1)]
    settings = site(max_nodes_per_user=2)
    preempts = settings.guards.model_copy(update={"preempt": True})
    result = decide(
        look(three, nodes(**used(*NAMES[:3]))), settings.model_copy(update={"guards": preempts})
    )
    assert not result.actions and len(result.placements) == 3


def test_a_trainer_that_no_guard_lets_stop_runs_on_and_says_so(monkeypatch):
    monkeypatch.setattr(
        "slurm_hadar.controller.idle_training.idle_view.IdleNodeView.placements", lambda *_: {}
    )
    result = decide(look([on("1", "v1")], nodes(**used("v1"))))
    assert not result.actions and result.deferred == {"1": actions.NOT_STOPPED}


def test_types_that_its_owner_excludes_are_left_alone():
    only = replace(TRAINS, types=("v100",))
    places = decide(look([trainer(declaration=only)])).placements
    assert set(places["1"].nodes) == {"v1", "v2"}
    both = decide(look([trainer(declaration=only), trainer("2")])).placements
    assert set(both["1"].nodes) <= {"v1", "v2"}
    taken = [name for place in both.values() for name in place.nodes]
    assert sorted(taken) == sorted(NAMES), "each node once, none unused"


def test_of_more_idle_nodes_than_it_can_use_a_trainer_takes_the_fastest():
    few = replace(TRAINS, nodes=(1, 2))
    assert set(decide(look([trainer(declaration=few)])).placements["1"].nodes) == {"v1", "v2"}
    stays = on("1", "k1", declaration=few)
    moved = decide(look([stays], nodes(**used("k1")))).placements["1"]
    assert "k1" in moved.nodes and len(moved.nodes) == 2 and "p1" not in moved.nodes
    alone = trainer("2", declaration=replace(TRAINS, nodes=(1, 1)))
    both = decide(look([trainer(declaration=few), alone])).placements
    names = [name for place in both.values() for name in place.nodes]
    assert len(set(names)) == len(names) == 3 and {"v1", "v2"} <= set(names)


def test_a_trainer_grows_when_nodes_become_idle_and_it_may_be_moved():
    observed = look([on("1", "v1", "p1")], nodes(**used("v1", "p1")))
    result = decide(observed)
    (action,) = result.actions
    assert action.kind is Kind.MOVE and action.fields["NumNodes"] == "4-4"
    assert "limit on moves" in decide(observed, moves=0).deferred["1"]
    lately = ControllerHistory(last_moves={"1": NOW - 1})
    guarded = config('[backfill]\nenabled = true\npartitions = ["idle"]\n').model_copy(
        update={"guards": SITE.guards.model_copy(update={"min_between_moves_s": 600.0})}
    )
    settled = decide(observed, guarded, past=lately)
    assert not settled.actions and not settled.deferred, "its nodes stay, nothing is promised to it"


def test_a_growth_that_does_not_pay_within_the_time_looked_ahead_is_not_done():
    costly = replace(TRAINS, restart_cost=100.0)
    observed = look([on("1", "v1", "v2", "p1", declaration=costly)], nodes(**used(*NAMES[:3])))
    assert not decide(observed).actions
    # Once a move of the owner's jobs of this model has shown that it costs less, it pays.
    measured = ControllerHistory(restarts=RestartCosts({(1000, "resnet18"): 5.0}))
    assert decide(observed, past=measured).actions


def test_with_nothing_idle_a_trainer_waits_as_it_is():
    busy = {n.name: {"gpus_used": dict(n.gpus)} for n in nodes()}
    result = decide(look([trainer()], nodes(**busy)))
    assert not result.actions and result.waiting["1"] == "no node is idle"


def test_what_was_sent_away_is_given_back_its_request_and_may_start_again():
    busy = {n.name: {"gpus_used": dict(n.gpus)} for n in nodes()}
    for found in (nodes(**busy), nodes()):
        (action,) = decide(look([sent_away()], found)).actions
        assert action.kind is Kind.HINT
        # Else the nodes that it was left idle for as long as Slurm's credentials last.
        assert dict(action.fields) == {**OWN, "StartTime": "now"}
        then = replace(carried_out(sent_away(), action), reason="BeginTime")
        assert not decide(look([then], found)).actions
    refused = {"1": Refusals(1, NOW - 10)}
    assert not decide(look([sent_away()]), refused=refused).actions


def test_not_before_its_last_attempt_has_left_a_node_that_went_down():
    waits = sent_away(submit_s=NOW - 5, not_before_s=NOW + 30)
    (action,) = decide(look([waits])).actions
    assert action.fields["StartTime"] == f"uts{NOW + 30:.0f}"
    then = carried_out(waits, action)
    assert not decide(look([then], now=NOW + 5)).actions


def test_the_begin_times_of_its_owner_and_of_a_stop_stand():
    (action,) = decide(look([sent_away(eligible_s=NOW + 3600)])).actions
    assert "StartTime" not in action.fields
    off = SITE.model_copy(update={"backfill": SITE.backfill.model_copy(update={"enabled": False})})
    assert "StartTime" not in decide(look([sent_away()]), off).actions[0].fields
    preempts = SITE.model_copy(update={"guards": SITE.guards.model_copy(update={"preempt": True})})
    for last_move, again in ((NOW - 60, False), (NOW - 600, True)):
        past = ControllerHistory(last_moves={"1": last_move})
        (action,) = decide(look([sent_away()]), preempts, past=past).actions
        assert ("StartTime" in action.fields) is again


def test_nodes_are_said_in_full_whatever_slurm_shows():
    # It was sent to four nodes a moment ago; Slurm still shows the one of the life before.
    waits = sent_away(required_nodes=NAMES, node_count=1)
    (action,) = decide(look([waits])).actions
    assert action.fields["NumNodes"] == "1-1" and action.fields["ReqNodeList"] == ""
    # And where the number of nodes stays.
    fields = moved(on("1", "p1", "k1"), "v1", "v2")
    assert fields["NumNodes"] == "2-2" and fields["ReqNodeList"] == "v[1-2]"


def test_measured_speeds_are_remembered():
    runs = on("1", "v1", "v2", start_s=NOW - 50)
    report = Progress(
        "1", NOW, 0, "h", 1, True, NOW - 40, "resnet18", 500, 77.0, 5.0, 8, 2, restart_s=9.0
    )
    observed = look([runs], nodes(**used("v1", "v2")), progress={"1": report})
    state = decide(observed).state
    assert state["curves"]["ratios"]["1000/resnet18"]["2"] < 0.5


def test_idle_times_begin_when_a_node_becomes_idle_and_end_with_it():
    first = decide(look([]))
    assert first.state["since"] == dict.fromkeys(NAMES, NOW)
    busy = nodes(v1={"gpus_used": {"v100": 1}})
    second = decide(look([], busy, now=NOW + 60), state=first.state)
    assert set(second.state["since"]) == set(NAMES[1:])
    third = decide(look([], now=NOW + 120), state=second.state)
    assert third.state["since"] == {**dict.fromkeys(NAMES[1:], NOW), "v1": NOW + 120}


def test_what_a_release_before_learned_of_idle_nodes_is_carried_on():
    first = decide(look([])).state
    later = look([], nodes(v1={"gpus_used": {"v100": 1}}), now=NOW + 60)
    older = {"stays": first["idle_survival"], "since": first["since"], "curves": first["curves"]}
    assert decide(later, state=older).state == decide(later, state=first).state
    assert decide(later, state=older).state != decide(later).state


@pytest.mark.parametrize(
    "state",
    [{"idle_survival": 3}, {"idle_survival": {}}, {"stays": 3}, {"since": 1}, {"curves": "x"}],
)
def test_damaged_memory_stops_nobody(state):
    assert decide(look([trainer()]), state=state).placements


def test_without_idle_nodes_and_without_trainers():
    none = nodes(**{name: {"usable": False} for name in NAMES})
    assert not decide(look([trainer()], none)).placements
    assert not decide(look([], none)).actions
