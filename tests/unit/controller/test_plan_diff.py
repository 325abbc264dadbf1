"""From a plan to what is sent to Slurm."""

from dataclasses import replace

import pytest
from hand_made import (
    CONFIG,
    NOW,
    decide,
    dictate,
    job,
    look,
    node,
    nodes,
    observation,
    only,
    ordinary,
    running,
)

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.plan_diff import MoveBudget, diff
from slurm_hadar.controller.decision_records import decisions
from slurm_hadar.controller.idle_training.decision import IdleTrainingPlan
from slurm_hadar.controller.presentation.tick_text import format_plan
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.snapshot import movability, pending_demand
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory, schedulable_jobs
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest, JobState
from slurm_hadar.domain.node import Reservation
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering, merge

DECLARED = Declaration(types=("any",), checkpoint="yes")


LIMITS = [
    "QOSMaxJobsPerUserLimit",
    "QOSGrpGRES",
    "AssocGrpGRESMinutes",
    "AssocMaxJobsLimit",
    "AssociationJobLimit",
    "Dependency",
    "DependencyNeverSatisfied",
    "JobArrayTaskLimit",
    "Licenses",
    "MaxGRESPerAccount",
    "MaxMemPerLimit",
    "InvalidQOS",
    "InvalidAccount",
    "NodeDown",
    "PartitionDown",
    "PartitionInactive",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "ReqNodeNotAvail",
    "ReqNodeNotAvail, UnavailableNodes:k1",
    "Reservation",
    "ReservationDeleted",
]
"""Reasons for which Slurm itself keeps a job waiting though GPUs are free."""


ROOM = [node("k1", gpus=99, gpus_used={"k80": 33}), node("v1", gpus=99)]


def record(gpus, was=None, at=NOW - 10, **more):
    """AdminComment of a job that was moved."""
    return merge("", Steering(gpus=gpus, time=at, was=was or {}, **more))


def test_a_job_held_by_its_owner_is_left_alone():
    for held in (job(held=True, priority=0), job(held=True, priority=0, eligible_s=NOW - 1)):
        assert decide(observation([held]), {"1": {"k80": 1}}).actions == ()


@pytest.mark.parametrize(
    ("reason", "by"),
    [
        ("JobHeldUser", "it is held by its owner or an admin"),
        ("JobHeldAdmin", "it is held by its owner or an admin"),
        ("Priority", "it is held by its owner or an admin"),
        ("Dependency", "it is held by its owner or an admin"),
        ("BadConstraints", "it is held, and Slurm's reason is BadConstraints; once"),
        ("launch failed requeued held", "it is held, and Slurm's reason is launch failed"),
    ],
)
def test_who_holds_a_job_is_named_and_what_ends_it(reason, by):
    held = job(held=True, priority=0, reason=reason)
    _, excluded = schedulable_jobs(observation([held]), CONFIG, {})
    assert excluded["1"].startswith(by)
    assert ("scontrol release 1" in excluded["1"]) == ("Slurm's" in by)


CLOSED = (
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
)


@pytest.mark.parametrize("reason", [CLOSED, CLOSED.replace("_", " ")])
@pytest.mark.parametrize("usable", [True, False])
def test_nodes_that_slurm_keeps_for_a_job_ahead_are_not_down(reason, usable):
    """Slurm says it of both: such a job waits for its turn while a node of its partition is up."""
    waits = job(partitions=("k80",), reason=reason)
    shown = observation([waits], [replace(node("k1"), usable=usable), node("p1")])
    why = look(shown).excluded.get("1", "")
    assert why == ("" if usable else f"Slurm keeps it waiting: {reason}")
    other = replace(waits, id="9", raw_id=9, declaration=None)
    takers = pending_demand.unmanaged_jobs(replace(shown, jobs={"9": other}), [])
    assert bool(takers) is usable


def test_a_job_of_unknown_state_is_left_alone():
    for state in (JobState.UNKNOWN, JobState.SUSPENDED, JobState.COMPLETING, JobState.FINISHED):
        assert decide(observation([job(state=state)]), {"1": {"k80": 1}}).actions == ()


def test_what_did_not_opt_in_is_left_alone():
    jobs = [
        ordinary("1"),
        job("2", declaration=replace(DECLARED, off=True)),
        job("3", batch=False),
        job("4+0", het=True),
        running("5", {"k1": {"k80": 1}}, declaration=None),
    ]
    assert decide(observation(jobs), {j.id: {"v100": 1} for j in jobs}).actions == ()


# -- moves ------------------------------------------------------------------------------------


def test_a_move_is_meant_only_where_the_type_or_count_changes():
    here = running("1", {"k1": {"k80": 1}})
    assert decide(observation([here]), {"1": {"k80": 1}}).actions == ()
    action = only(decide(observation([here]), {"1": {"v100": 1}}), Kind.MOVE)
    assert action.fields["Features"] == "v100" and action.steering.moves == 1


@pytest.mark.parametrize(
    "stays",
    [
        {"declaration": replace(DECLARED, checkpoint="")},
        {"declaration": replace(DECLARED, pin=True)},
        {"requeue": False},
        {"expedited": True},
        {"external": True},
        {"admin_comment": record({"k80": 1}, moves=50)},
    ],
)
def test_a_job_that_may_not_move_stays_whatever_the_policy_says(stays):
    here = running("1", {"k1": {"k80": 1}}, **stays)
    intended = decide(observation([here]), {"1": {"v100": 1}})
    assert intended.actions == () and "1" in intended.deferred


def test_a_job_with_our_runtime_that_never_reported_gets_no_signal():
    here = running("1", {"k1": {"k80": 1}})
    assert only(decide(observation([here]), {"1": {"v100": 1}}), Kind.MOVE).job.id == "1"
    unheard = observation([here], progress={})
    assert decide(unheard, {"1": {"v100": 1}}).actions == ()
    target = look(unheard).schedulable["1"]
    assert (
        movability.why_not(target, unheard, CONFIG, ControllerHistory())
        == "it has not reported yet"
    )


def test_a_job_that_just_moved_stays():
    site = CONFIG.model_copy(
        update={"guards": CONFIG.guards.model_copy(update={"min_between_moves_s": 600.0})}
    )
    here = running("1", {"k1": {"k80": 1}}, start_s=NOW - 700)
    past = ControllerHistory(last_moves={"1": NOW - 500})
    assert decide(observation([here]), {"1": {"v100": 1}}, site, past=past).actions == ()
    assert decide(observation([here]), {"1": {"v100": 1}}, site).of(Kind.MOVE)


def test_moves_are_counted_per_tick_and_per_hour():
    many = [running(str(n), {"k1": {"k80": 1}}) for n in range(1, 31)]
    want = {j.id: {"v100": 1} for j in many}
    assert (
        len(decide(observation(many, ROOM), want).actions) == CONFIG.guards.max_moves_per_tick == 20
    )
    few = decide(observation(many, ROOM), want, moves_left=3)
    assert len(few.actions) == 3 and len(few.deferred) == 27


def test_the_moves_of_an_hour_are_shared_among_users():
    many = [running(str(n), {"k1": {"k80": 1}}, uid=501) for n in range(1, 31)]
    few = [running(str(n), {"k1": {"k80": 1}}, uid=502) for n in range(31, 34)]
    want = {j.id: {"v100": 1} for j in many + few}

    def users(**more):
        sent = decide(observation(many + few, ROOM), want, **more).of(Kind.MOVE)
        return sorted(action.job.uid for action in sent)

    assert users(moves_left=4) == [501, 501, 502, 502]
    assert users(moves_left=4, had={502: 2}) == [501, 501, 501, 502]
    assert users(moves_left=4, had={501: 9}) == [501, 502, 502, 502]


def test_a_job_that_does_not_answer_is_asked_less_and_less_often():
    site = CONFIG.model_copy(
        update={"guards": CONFIG.guards.model_copy(update={"min_between_moves_s": 600.0})}
    )
    here = running("1", {"k1": {"k80": 1}}, start_s=NOW - 1_000_000)

    def moved(failed, ago_s):
        past = ControllerHistory(last_moves={"1": NOW - ago_s}, failed_moves={"1": failed})
        return bool(decide(observation([here]), {"1": {"v100": 1}}, site, past=past).of(Kind.MOVE))

    assert moved(0, 601) and not moved(1, 601) and moved(1, 1201)
    assert not moved(3, 4700) and moved(3, 4801)
    assert not moved(1000, 86_300) and moved(1000, 86_401)


def test_a_job_whose_place_slurm_refused_waits_also_where_moves_need_not():
    here = running("1", {"k1": {"k80": 1}}, start_s=NOW - 1_000_000)

    def moved(refused, ago_s, failed=0):
        past = ControllerHistory(
            last_moves={"1": NOW - ago_s},
            failed_moves={"1": failed or refused},
            refused_moves={"1": refused},
        )
        return bool(decide(observation([here]), {"1": {"v100": 1}}, past=past).of(Kind.MOVE))

    assert CONFIG.guards.min_between_moves_s == 0
    assert moved(0, 1) and moved(0, 1, failed=3)
    assert not moved(1, 59) and moved(1, 61)
    assert not moved(3, 239) and moved(3, 241)


def test_no_job_moves_to_where_a_reservation_begins_before_its_time_limit_ends():
    here = running("1", {"k1": {"k80": 1}}, time_limit_s=7200.0)

    def moved(start_s, nodes=("v1", "v2", "v3", "v4")):
        books = (Reservation("r", nodes, NOW + start_s, NOW + start_s + 600),)
        shown = replace(observation([here]), reservations=books)
        return decide(shown, {"1": Placement({"v100": 1}, {"v1": {"v100": 1}})})

    assert moved(7201).of(Kind.MOVE) and moved(3600, ("k1",)).of(Kind.MOVE)
    late = moved(3600)
    assert not late.of(Kind.MOVE)
    assert late.deferred["1"] == "a reservation of v1 begins before its time limit ends"


# -- jobs that wait ---------------------------------------------------------------------------

K2 = Placement({"k80": 1}, {"k2": {"k80": 1}})
HERE = running("1", {"v1": {"v100": 1}})
TWO = GpuRequest(per_node={UNTYPED: 2})


@pytest.mark.parametrize("expected_s", [0.0, NOW + 3600])
@pytest.mark.parametrize("managed", [True, False])
def test_a_job_moves_only_to_what_nobody_who_waits_can_use(managed, expected_s):
    """Until it starts again Slurm gives it to the next job that fits, of any priority. So too where
    backfill expects a later start: what is free now may have become so since its last pass."""
    other = job("9", uid=1001, priority=1) if managed else ordinary(priority=1)
    other = replace(other, start_s=expected_s)
    found = nodes(v1=2, v2=2, p1=2, p2=2, k1=2, k2=1)
    intended = decide(observation([HERE, other], found), {"1": K2})
    assert not intended.of(Kind.MOVE)
    assert intended.deferred["1"] == "job 9, which waits, gets these GPUs first"
    # There is one for each of them.
    two = nodes(v1=2, v2=2, p1=2, p2=2, k1=2)
    assert decide(observation([HERE, other], two), {"1": K2}).of(Kind.MOVE)


ALONE = job("3", partitions=("v100",), request=TWO, priority=1500, reason="Resources")
"""It waits for two GPUs of one V100 node, of which each has one that is free."""


@pytest.mark.parametrize(
    ("waits", "moves"),
    [
        (ALONE, False),
        (replace(ALONE, declaration=None), False),
        # What backfill expects later is tried, and fails, as well.
        (replace(ALONE, start_s=NOW + 900), False),
        # Behind it, or as far ahead and submitted later.
        (replace(ALONE, priority=900), True),
        (replace(ALONE, priority=1000, raw_id=3), True),
        (replace(ALONE, priority=1000, raw_id=1), False),
        (replace(ALONE, reason="Dependency"), True),
        # It closes its own node only; the other one stays open.
        (replace(ALONE, required_nodes=("v1",)), True),
        (replace(ALONE, required_nodes=("v2",)), False),
        (replace(ALONE, partitions=("p100",), request=GpuRequest(per_node={UNTYPED: 3})), True),
        # Where all nodes are closed backfill starts the moved job, in the first of its partitions.
        (replace(ALONE, partitions=("gpu",), request=GpuRequest(per_node={UNTYPED: 3})), True),
    ],
)
def test_no_job_moves_to_a_partition_that_slurm_closes_for_a_job_ahead(waits, moves):
    here, v100 = running("2", {"k1": {"k80": 1}}), Placement({"v100": 1}, {"v2": {"v100": 1}})
    shown = observation([here, waits], nodes(v1=1, v2=1, p1=2, p2=2, k1=2, k2=2))
    meant = decide(replace(shown, priority_returns=True), {"2": v100})
    assert bool(meant.of(Kind.MOVE)) is moves
    if not moves:
        assert "Slurm keeps that partition for job 3" in meant.deferred["2"]


def test_a_moved_job_whose_priority_does_not_return_is_behind_all_who_wait():
    """priority/basic gives a requeued job a new, last priority."""
    here, v100 = running("2", {"k1": {"k80": 1}}), Placement({"v100": 1}, {"v2": {"v100": 1}})
    shown = observation(
        [here, replace(ALONE, priority=900)], nodes(v1=1, v2=1, p1=2, p2=2, k1=2, k2=2)
    )
    assert "Slurm keeps that partition for job 3" in decide(shown, {"2": v100}).deferred["2"]


def test_a_job_that_waits_takes_what_its_list_names_first():
    found = nodes(v1=2, v2=2, p1=1, p2=2, k1=2, k2=1)
    for first, rest in (("k80", "p100"), ("p100", "k80")):
        other = ordinary(partitions=(first, rest))
        moved = decide(observation([HERE, other], found), {"1": K2}).of(Kind.MOVE)
        assert bool(moved) == (first == "p100")


def test_a_job_moves_to_no_place_of_one_that_is_on_its_way():
    found = nodes(v1=2, v2=2, p1=1, p2=2, k1=2, k2=1)
    sent = record({"k80": 1})
    other = job("2", restarts=1, admin_comment=sent, reason="None")
    assert not decide(observation([HERE, other], found), {"1": K2}).of(Kind.MOVE)
    two = nodes(v1=2, v2=2, p1=1, p2=2, k1=2)
    assert decide(observation([HERE, other], two), {"1": K2}).of(Kind.MOVE)


def test_a_job_that_waits_keeps_others_only_from_what_it_can_use():
    found = nodes(v1=2, v2=2, p1=2, p2=2, k1=2, k2=1)
    for other in (
        ordinary(features="v100"),
        ordinary(partitions=("v100",)),
        ordinary(excluded_nodes=("k2",), features="k80"),
        ordinary(required_nodes=("v1",)),
        ordinary(cpus=64, features="k80"),
        ordinary(mem_per_node_mb=10**6, features="k80"),
        ordinary(held=True),
        ordinary(priority=0),
        ordinary(eligible_s=NOW + 50),
        ordinary(request=GpuRequest()),
        ordinary(reservation="mine"),
        # A limit that does not count the moved job.
        *(ordinary(reason=reason, uid=4321, account="a", qos="b") for reason in LIMITS),
    ):
        assert decide(observation([HERE, other], found), {"1": K2}).of(Kind.MOVE), other


def test_what_a_job_leaves_goes_to_who_waits_before_it_comes_back():
    """It would grow into its own GPUs and free ones beside them, which a job that waits can use."""
    both = Declaration(types=("any",), gpus=(1, 2), checkpoint="yes")
    here = running("1", {"k1": {"k80": 1}}, declaration=both)
    found = nodes(v1=2, v2=2, p1=2, p2=2, k1=1, k2=2)
    grown = {"1": Placement({"k80": 2}, {"k1": {"k80": 2}})}
    assert decide(observation([here], found), grown).of(Kind.MOVE)
    waits = ordinary(request=GpuRequest(per_node={UNTYPED: 2}))
    assert not decide(observation([here, waits], found), grown).of(Kind.MOVE)


TWO_OF_K1 = [
    running(str(number), {"k1": {"k80": 1}}, uid=1000 + number, cpus=4, mem_per_node_mb=4000)
    for number in (1, 2)
]
TO_V2 = {str(number): Placement({"v100": 1}, {"v2": {"v100": 1}}) for number in (1, 2)}


def on_k1(waits, first, *others, **more):
    """What becomes of the jobs on k1 that the plan sends to v2, the only free node."""
    beside = running("8", {"p1": {"p100": 2}}, declaration=None)
    used = {"cpus_used": 8, "memory_used_mb": 8000, "gpus_used": {"k80": 2}, **more}
    found = nodes(v1=2, p1=2, p2=2, k2=2)
    found = [replace(one, **used) if one.name == "k1" else one for one in found]
    return decide(observation([first, *others, beside, waits], found), TO_V2)


@pytest.mark.parametrize("expected_s", [0.0, NOW + 3600])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    "request_", [GpuRequest(per_node={UNTYPED: 2}), GpuRequest(per_job={UNTYPED: 4})]
)
def test_no_job_moves_to_what_a_job_on_several_nodes_could_use_with_what_moves_leave(
    request_, alone, expected_s
):
    """Neither v2 nor k1 is enough for it, but both are while the two jobs of k1 are requeued. So
    too where backfill expects it to start when those end."""
    waits = job("9", uid=1009, request=request_, node_count=2, cpus=2, priority=2000)
    waits = replace(waits, exclusive=alone, whole_nodes=alone, reason="Resources")
    waits = replace(waits, start_s=expected_s)
    meant = on_k1(waits, *TWO_OF_K1)
    assert not meant.of(Kind.MOVE)
    assert set(meant.deferred.values()) == {"job 9, which waits, gets these GPUs first"}
    # k1 is not enough for a part of it while one of them stays.
    staying = replace(TWO_OF_K1[1], declaration=None)
    if request_.per_node or alone:
        assert on_k1(waits, TWO_OF_K1[0], staying).of(Kind.MOVE)
    # Nor is it where it may not use k1.
    for other in ({"excluded_nodes": ("k1",)}, {"features": "v100"}, {"cpus": 140}):
        assert len(on_k1(replace(waits, **other), *TWO_OF_K1).of(Kind.MOVE)) == 2, other


def test_what_a_job_leaves_that_has_its_node_alone_counts_with_its_cpus():
    here = running("1", {"k1": {"k80": 1}}, cpus=32)
    waits = ordinary(request=TWO, node_count=2, cpus=16)
    assert not on_k1(waits, here, cpus_used=32, gpus_used={"k80": 1}).of(Kind.MOVE)


def test_a_job_of_an_earlier_tick_that_still_runs_leaves_its_node_as_well():
    waits = ordinary(request=TWO, node_count=2, exclusive=True)
    found = [
        replace(one, cpus_used=8) if one.name == "k1" else one
        for one in nodes(v1=2, p1=2, p2=2, k1=2, k2=2)
    ]
    under_way = ControllerHistory(moving={"2": {"v2": {"v100": 1}}})
    wanted = {"1": TO_V2["1"]}
    alone = decide(observation(TWO_OF_K1, found), wanted, past=under_way)
    assert [action.job.id for action in alone.of(Kind.MOVE)] == ["1"]
    assert not decide(observation([*TWO_OF_K1, waits], found), wanted, past=under_way).of(Kind.MOVE)


def test_a_job_moves_to_what_another_leaves_only_where_jobs_may_be_stopped():
    other = running("2", {"k2": {"k80": 1}}, uid=1001)
    found = nodes(v1=1, v2=2, p1=2, p2=2, k1=2, k2=2)
    swap = {"1": K2, "2": Placement({"v100": 1}, {"v1": {"v100": 1}})}
    assert [a.job.id for a in decide(observation([HERE, other], found), swap).of(Kind.MOVE)] == [
        "2"
    ]
    guards = CONFIG.guards.model_copy(update={"preempt": True})
    site = CONFIG.model_copy(update={"guards": guards})
    swapped = decide(observation([HERE, other], found), swap, site).of(Kind.MOVE)
    assert {a.job.id for a in swapped} == {"1", "2"}


@pytest.fixture
def stopped_for():
    """What becomes of job 1, alone on k1, where the plan stops it for job 2; beside ``others``."""
    guards = CONFIG.guards.model_copy(update={"preempt": True})
    site = CONFIG.model_copy(update={"guards": guards})
    found = nodes(v1=2, v2=2, p1=2, p2=2, k1=2, k2=2)
    here = running("1", {"k1": {"k80": 2}}, time_limit_s=10_000.0)

    def decided(newcomer, *others):
        plan = {"2": Placement({"k80": 2}, {"k1": {"k80": 2}})}
        return decide(observation([here, newcomer, *others], found), plan, site)

    return decided


def test_a_job_is_stopped_for_one_that_gets_its_gpus(stopped_for):
    later = {"start_s": NOW + 5000, "reason": "Resources"}
    for newcomer in (job("2", request=TWO), job("2", request=TWO, **later)):
        assert [a.kind for a in stopped_for(newcomer).of(Kind.STOP)] == [Kind.STOP]
        # Others behind it, or who do not fit, are no matter.
        behind = ordinary("3", priority=10, request=TWO)
        larger = ordinary("4", request=GpuRequest(per_node={UNTYPED: 4}))
        assert stopped_for(newcomer, behind, larger).of(Kind.STOP)


@pytest.mark.parametrize("own", [True, False])
def test_no_job_is_stopped_for_one_behind_somebody_else(stopped_for, own):
    """Slurm would give what it leaves to the other one."""
    newcomer = job("2", request=TWO)
    first = replace(job("3", request=TWO, priority=2000)) if own else ordinary("3", request=TWO)
    for one in (first, replace(first, start_s=NOW + 5000)):
        meant = stopped_for(newcomer, one)
        assert not meant.of(Kind.STOP)
        assert meant.deferred["1"] == "job 3, which waits, gets these GPUs first"


@pytest.mark.parametrize(
    "newcomer",
    [
        job("2", request=GpuRequest(per_node={UNTYPED: 4})),
        job("2", request=TWO, reason="QOSMaxJobsPerUserLimit"),
        job("2", request=TWO, partitions=("v100",)),
    ],
    ids=["too large", "at a limit", "in another partition"],
)
def test_no_job_is_stopped_for_one_that_cannot_start_there(stopped_for, newcomer):
    meant = stopped_for(newcomer)
    at_limit = newcomer.reason.startswith("QOS")
    why = "job 2 waits for a limit" if at_limit else "no job that waits fits where it runs"
    assert not meant.of(Kind.STOP) and why in meant.deferred["1"]


def test_no_job_leaves_a_node_that_another_one_moves_to():
    """Who waits might start there with what both leave, and on a node that a job leaves Slurm
    starts nothing, so that the other one would start elsewhere."""
    other = running("2", {"k2": {"k80": 1}}, uid=1001)
    found = nodes(v1=1, v2=2, p1=1, p2=2, k1=2, k2=1)
    swap = {"1": K2, "2": Placement({"v100": 1}, {"v1": {"v100": 1}})}
    first = decide(observation([HERE, other], found), swap)
    assert [action.job.id for action in first.of(Kind.MOVE)] == ["1"]
    assert first.deferred["2"] == "job 1 is on its way to k2, which it would leave"
    # The first is on its way since an earlier tick, and leaves v1 still, or has left it.
    for state in (HERE, job("1", restarts=1, eligible_s=NOW + 100)):
        under_way = ControllerHistory(moving={"1": {"k2": {"k80": 1}}})
        meant = decide(observation([state, other], found), swap, past=under_way)
        assert not meant.of(Kind.MOVE) and "k2" in meant.deferred["2"]
    to_p1 = {"1": Placement({"p100": 1}, {"p1": {"p100": 1}}), "2": swap["2"]}
    aside = decide(observation([HERE, other], found), to_p1)
    assert aside.deferred["2"] == "job 1 leaves v1, where it would go"
    elsewhere = {**to_p1, "2": Placement({"k80": 1}, {"k2": {"k80": 1}})}
    assert len(decide(observation([HERE, other], found), elsewhere).of(Kind.MOVE)) == 1


def test_no_job_moves_to_a_node_that_backfill_keeps_for_another():
    found = [replace(one, state="IDLE+PLANNED") if one.name == "k2" else one for one in nodes()]
    kept = decide(observation([HERE], found), {"1": K2})
    assert not kept.of(Kind.MOVE)
    assert kept.deferred["1"] == "Slurm keeps k2 for a job ahead (PLANNED)"
    assert decide(observation([HERE]), {"1": K2}).of(Kind.MOVE)
    used = [replace(one, gpus_used={"k80": 2}) if one.name == "k2" else one for one in nodes()]
    assert (
        decide(observation([HERE], used), {"1": K2}).deferred["1"] == "these GPUs are not free yet"
    )


def test_who_is_at_a_limit_keeps_what_runs_and_it_stays():
    """Once it is requeued, the one that waits takes its share of the limit."""
    at_limit = job("2", reason="QOSMaxJobsPerUserLimit")
    assert not decide(observation([at_limit, HERE]), {"1": K2}).of(Kind.MOVE)
    assert decide(observation([replace(at_limit, uid=4321), HERE]), {"1": K2}).of(Kind.MOVE)


def test_where_no_job_is_stopped_for_others_the_decision_on_one_says_that_it_runs_on():
    here = running("1", {"k1": {"k80": 2}})
    observed = observation([here, job("2")])
    shown = look(observed)
    plan = dictate(shown.view, {"2": {"v100": 1}})
    means = diff(shown, plan, observed, CONFIG, MoveBudget(10))
    decided = decisions(observed, shown, plan, means, IdleTrainingPlan())
    (here_, _) = decided
    assert here_.placement == "2 x k80 on k1"
    assert here_.reason == (
        "runs on; the policy would stop it for other jobs, which this site does not do "
        "(guards.preempt)"
    )
    lines = format_plan(TickReport(observed, shown, plan, means, True))
    assert [line.partition(": ")[0] for line in lines if "job 1 " in line] == ["job 1 not now"]
