"""From a plan to what is sent to Slurm."""

from dataclasses import replace

import pytest
from hand_made import (
    CONFIG,
    NOW,
    after,
    carried_out,
    decide,
    job,
    node,
    nodes,
    only,
    ordinary,
    running,
    seen,
    starts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.controller.acts.actions import Kind
from slurm_hadar.controller.picture.targets import Past
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest, JobState
from slurm_hadar.domain.node import Reservation
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering, merge

LEASED = Declaration(types=("any",), lease=True, checkpoint=True)


def told(gpus, was=None, at=NOW - 10, **more):
    """AdminComment of a job that was told to start."""
    return merge("", Steering(gpus=gpus, time=at, was=was or {}, **more))


def test_a_placed_job_is_sent_off_with_its_type():
    action = only(decide(seen([job()]), {"1": {"k80": 1}}), Kind.START)
    assert action.fields == {"Features": "k80", "StartTime": "now"}
    assert action.steering.gpus == {"k80": 1} and action.steering.was == {"Features": ""}


def test_a_job_that_must_not_start_yet_is_told_so_though_slurm_would_start_it():
    asked = job(
        features="k80", admin_comment=told({"k80": 1}), restarts=1, submit_s=NOW - 7,
        eligible_s=NOW - 1, reason="None",
    )  # fmt: skip
    assert starts(decide(seen([asked]), {"1": {"k80": 1}})) == set()
    late = replace(asked, not_before_s=NOW + 33)
    action = only(decide(seen([late]), {"1": {"k80": 1}}), Kind.START)
    assert action.fields["StartTime"] == f"uts{int(NOW) + 33}"
    # Until then nothing more is sent.
    knows = replace(late, eligible_s=NOW + 33)
    assert starts(decide(seen([knows]), {"1": {"k80": 1}})) == set()
    assert starts(decide(seen([replace(late, eligible_s=NOW + 120)]), {"1": {"k80": 1}})) == {"1"}


def test_a_job_without_a_place_keeps_its_lease_until_half_of_it_is_gone():
    fresh, old = job("1", eligible_s=NOW + 151), job("2", eligible_s=NOW + 149)
    action = only(decide(seen([fresh, old]), {}), Kind.WAIT)
    assert action.job.id == "2" and action.steering.leased


def test_a_lease_from_before_the_clock_was_set_back_is_made_short_again():
    set_back = job("1", submit_s=NOW + 3590, eligible_s=NOW + 3890)
    renewed = job("2", eligible_s=NOW + 3890, admin_comment=told({}, at=NOW + 3590, leased=True))
    for one in (set_back, renewed):
        action = only(decide(seen([one]), {}), Kind.WAIT)
        assert action.fields["StartTime"] == f"uts{int(NOW) + 300}"
    placed = only(decide(seen([set_back]), {"1": {"k80": 1}}), Kind.START)
    assert placed.fields["StartTime"] == "now+2"


def test_a_start_that_came_to_nothing_is_taken_back_with_all_its_fields():
    was = {"Features": "a|b", "Partition": "gpu", "TresPerNode": "gpu:1"}
    late = job(
        features="(a|b)&k80",
        partitions=("k80",),
        request=GpuRequest(per_node={UNTYPED: 2}),
        reason="Resources",
        eligible_s=NOW - 900,
        admin_comment=told({"k80": 2}, was, NOW - 900),
    )
    action = only(decide(seen([late]), {}), Kind.WAIT)
    begin = action.fields["StartTime"]
    assert action.fields == {**was, "StartTime": begin}
    assert action.steering.leased and not action.steering.gpus


@pytest.mark.parametrize("expected_s", [0.0, NOW + 3600])
def test_slurms_expected_start_is_no_begin_time(expected_s):
    """Backfill writes when a waiting job may start into the same field as its begin time."""
    sent = job(
        features="k80",
        reason="Resources",
        eligible_s=NOW - 5,
        start_s=expected_s,
        admin_comment=told({"k80": 1}, {"Features": ""}),
    )
    assert decide(seen([sent]), {"1": {"k80": 1}}).actions == ()
    # Nor does it need a lease as long as it is on its way.
    assert decide(seen([sent]), {}).actions == ()


def test_a_job_of_an_opted_in_partition_is_steered_though_slurm_expects_it_later():
    waits = job(
        declaration=Declaration(types=("any",)),
        reason="Resources",
        eligible_s=NOW - 5,
        start_s=NOW + 3600,
    )
    assert starts(decide(seen([waits]), {"1": {"k80": 1}})) == {"1"}


def test_a_begin_time_of_the_owner_stands():
    own = job(declaration=replace(LEASED, lease=False), eligible_s=NOW + 100)
    later = job("2", eligible_s=NOW + 86_400, start_s=NOW + 86_400)
    assert decide(seen([own, later]), {"1": {"k80": 1}, "2": {"k80": 1}}).actions == ()


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
    "SomethingNewIn2031",
]


@pytest.mark.parametrize("reason", LIMITS)
def test_a_job_that_slurm_itself_keeps_waiting_is_never_chosen(reason):
    stuck = job(reason=reason, eligible_s=NOW - 5, admin_comment=told({"k80": 1}))
    intended = decide(seen([stuck, job("2", uid=1005)], nodes(k1=2, k2=1)))
    assert "1" not in starts(intended)
    dictated = decide(
        seen([stuck, job("2", uid=1005)], nodes(k1=2, k2=1)), {"1": {"k80": 1}, "2": {"k80": 1}}
    )
    assert starts(dictated) == {"2"}


@pytest.mark.parametrize("reason", LIMITS)
def test_a_job_that_slurm_itself_keeps_waiting_blocks_nobody(reason):
    stuck = ordinary(reason=reason)
    assert starts(decide(seen([stuck, job()], nodes(k1=2, k2=1)), {"1": {"k80": 1}})) == {"1"}


@pytest.mark.parametrize("reason", LIMITS)
def test_what_we_changed_goes_back_where_slurm_keeps_the_job_waiting(reason):
    laid = job(
        features="k80",
        partitions=("k80",),
        reason=reason,
        eligible_s=NOW - 5,
        admin_comment=told({"k80": 1}, {"Features": "", "Partition": "gpu"}),
    )
    first = decide(seen([laid]), {"1": {"k80": 1}})
    action = only(first, Kind.LET_GO)
    assert action.fields == {"Features": "", "Partition": "gpu"}
    again = seen([replace(carried_out(laid, action), reason=reason)])
    assert decide(again, {"1": {"k80": 1}}).actions == ()


def test_a_job_that_was_just_let_go_is_given_time_until_slurm_says_why_it_waits():
    laid = job(
        features="k80",
        reason="JobArrayTaskLimit",
        eligible_s=NOW - 5,
        admin_comment=told({"k80": 1}, {"Features": ""}),
    )
    action = only(decide(seen([laid]), {"1": {"k80": 1}}), Kind.LET_GO)
    cleared = carried_out(laid, action)
    cleared = replace(cleared, reason="None")
    assert decide(seen([cleared], now=NOW + 10), {"1": {"k80": 1}}).actions == ()
    assert starts(decide(seen([cleared], now=NOW + 500), {"1": {"k80": 1}})) == {"1"}


def test_a_throttled_task_keeps_its_lease_until_it_runs_out():
    assert decide(seen([job("5_1", reason="JobArrayTaskLimit")]), {}).actions == ()


def test_a_job_that_nothing_suits_is_slurms_at_once():
    choosy = job(declaration=replace(LEASED, gpu_mem=80 * 1024))
    action = only(decide(seen([choosy])), Kind.LET_GO)
    assert action.fields == {"StartTime": "now"}
    assert decide(seen([carried_out(choosy, action, reason="Priority")])).actions == ()


def test_a_job_held_by_its_owner_is_left_alone():
    for held in (job(held=True, priority=0), job(held=True, priority=0, eligible_s=NOW - 1)):
        assert decide(seen([held]), {"1": {"k80": 1}}).actions == ()


def test_a_job_of_unknown_state_is_left_alone():
    for state in (JobState.UNKNOWN, JobState.SUSPENDED, JobState.COMPLETING, JobState.FINISHED):
        assert decide(seen([job(state=state)]), {"1": {"k80": 1}}).actions == ()


def test_what_did_not_opt_in_is_left_alone():
    jobs = [
        ordinary("1"),
        job("2", declaration=replace(LEASED, off=True)),
        job("3", batch=False),
        job("4+0", het=True),
        running("5", {"k1": {"k80": 1}}, declaration=None),
    ]
    assert decide(seen(jobs), {j.id: {"v100": 1} for j in jobs}).actions == ()


# -- moves ------------------------------------------------------------------------------------


def test_a_move_is_meant_only_where_the_type_or_count_changes():
    here = running("1", {"k1": {"k80": 1}})
    assert decide(seen([here]), {"1": {"k80": 1}}).actions == ()
    action = only(decide(seen([here]), {"1": {"v100": 1}}), Kind.MOVE)
    assert action.fields["Features"] == "v100" and action.steering.moves == 1


@pytest.mark.parametrize(
    "stays",
    [
        {"declaration": replace(LEASED, checkpoint=False)},
        {"declaration": replace(LEASED, pin=True)},
        {"requeue": False},
        {"expedited": True},
        {"external": True},
        {"admin_comment": told({"k80": 1}, moves=50)},
    ],
)
def test_a_job_that_may_not_move_stays_whatever_the_policy_says(stays):
    here = running("1", {"k1": {"k80": 1}}, **stays)
    intended = decide(seen([here]), {"1": {"v100": 1}})
    assert intended.actions == () and "1" in intended.deferred


def test_a_job_that_just_moved_stays():
    site = CONFIG.model_copy(
        update={"guards": CONFIG.guards.model_copy(update={"min_between_moves_s": 600.0})}
    )
    here = running("1", {"k1": {"k80": 1}}, start_s=NOW - 700)
    past = Past(last_moves={"1": NOW - 500})
    assert decide(seen([here]), {"1": {"v100": 1}}, site, past=past).actions == ()
    assert decide(seen([here]), {"1": {"v100": 1}}, site).of(Kind.MOVE)


def test_moves_are_counted_per_tick_and_per_hour():
    many = [running(str(n), {"k1": {"k80": 1}}) for n in range(1, 31)]
    want = {j.id: {"v100": 1} for j in many}
    assert len(decide(seen(many), want).actions) == CONFIG.guards.max_moves_per_tick == 20
    few = decide(seen(many), want, moves_left=3)
    assert len(few.actions) == 3 and len(few.deferred) == 27


def test_the_moves_of_an_hour_are_shared_among_users():
    many = [running(str(n), {"k1": {"k80": 1}}, uid=501) for n in range(1, 31)]
    few = [running(str(n), {"k1": {"k80": 1}}, uid=502) for n in range(31, 34)]
    want = {j.id: {"v100": 1} for j in many + few}

    def users(**more):
        sent = decide(seen(many + few), want, **more).of(Kind.MOVE)
        return sorted(action.job.uid for action in sent)

    assert users(moves_left=4) == [501, 501, 502, 502]
    assert users(moves_left=4, had={502: 2}) == [501, 501, 501, 502]
    assert users(moves_left=4, had={501: 9}) == [501, 502, 502, 502]


def test_a_job_that_does_not_answer_is_asked_less_and_less_often():
    site = CONFIG.model_copy(
        update={"guards": CONFIG.guards.model_copy(update={"min_between_moves_s": 600.0})}
    )
    here = running("1", {"k1": {"k80": 1}}, start_s=NOW - 1_000_000)

    def moved(unanswered, ago_s):
        past = Past(last_moves={"1": NOW - ago_s}, unanswered={"1": unanswered})
        return bool(decide(seen([here]), {"1": {"v100": 1}}, site, past=past).of(Kind.MOVE))

    assert moved(0, 601) and not moved(1, 601) and moved(1, 1201)
    assert not moved(3, 4700) and moved(3, 4801)
    assert not moved(1000, 86_300) and moved(1000, 86_401)


def test_no_job_moves_to_where_a_reservation_begins_before_its_time_limit_ends():
    here = running("1", {"k1": {"k80": 1}}, time_limit_s=7200.0)

    def moved(start_s, nodes=("v1", "v2", "v3", "v4")):
        books = (Reservation("r", nodes, NOW + start_s, NOW + start_s + 600),)
        shown = replace(seen([here]), reservations=books)
        return decide(shown, {"1": Placement({"v100": 1}, {"v1": {"v100": 1}})})

    assert moved(7201).of(Kind.MOVE) and moved(3600, ("k1",)).of(Kind.MOVE)
    late = moved(3600)
    assert not late.of(Kind.MOVE)
    assert late.deferred["1"] == "a reservation of v1 begins before its time limit ends"


# -- jobs of others ---------------------------------------------------------------------------


def test_a_pending_job_of_others_with_a_higher_priority_goes_first():
    rival = ordinary(features="k80", request=GpuRequest(per_node={UNTYPED: 2}))
    found = nodes(k1=2)
    intended = decide(seen([rival, job()], found), {"1": {"k80": 1}})
    assert starts(intended) == set() and "job 9 has a higher priority" in intended.deferred["1"]
    lower = replace(rival, priority=10)
    assert starts(decide(seen([lower, job()], found), {"1": {"k80": 1}})) == {"1"}


def test_a_pending_job_blocks_only_what_it_can_use():
    found = nodes(k1=2, k2=1)
    for rival in (
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
    ):
        assert starts(decide(seen([rival, job()], found), {"1": {"k80": 1}})) == {"1"}, rival


def test_a_partition_of_a_higher_tier_goes_first_whatever_the_priority():
    found = [node("k1", gpus=1, partitions=("gpu", "urgent"))]
    shown = seen([ordinary(partitions=("urgent",), priority=5), job()], found)
    urgent = replace(shown.partitions["urgent"], priority_tier=50)
    shown = replace(shown, partitions={**shown.partitions, "urgent": urgent})
    assert starts(decide(shown, {"1": {"k80": 1}})) == set()


def test_the_begin_time_of_a_rival_that_has_just_come_counts():
    rival = ordinary(features="k80", reason="BeginTime", eligible_s=NOW - 1, start_s=NOW - 1)
    shown = seen([rival, job()], nodes(k1=2, k2=1))
    assert starts(decide(shown, {"1": {"k80": 1}})) == set()


# -- a second tick ----------------------------------------------------------------------------

JOBS = st.lists(
    st.builds(
        lambda lease, typed, counts, ahead, count, priority, part, constraint: {
            "declaration": Declaration(
                types=("any",), lease=lease, gpus=(1, 2) if counts else None, checkpoint=True
            ),
            "request": GpuRequest(per_node={"v100" if typed else UNTYPED: count}),
            "eligible_s": NOW + ahead if lease else NOW - 5,
            "start_s": NOW + ahead,
            "reason": "BeginTime" if lease else "Resources",
            "priority": priority,
            "partitions": part,
            "features": constraint,
        },
        lease=st.booleans(),
        typed=st.booleans(),
        counts=st.booleans(),
        ahead=st.sampled_from([20.0, 140.0, 290.0]),
        count=st.integers(1, 2),
        priority=st.integers(1, 5000),
        part=st.sampled_from([("gpu",), ("v100",), ("gpu", "k80")]),
        constraint=st.sampled_from(["", "", "v100|k80", "p100"]),
    ),
    max_size=8,
)
USED = st.fixed_dictionaries({name: st.integers(0, 2) for name in ("v1", "v2", "p1", "k1", "k2")})


@settings(max_examples=50, deadline=None)
@given(JOBS, USED)
def test_a_second_tick_sends_nothing(described, used):
    first = seen([job(str(n), **more) for n, more in enumerate(described, 1)], nodes(**used))
    second = after(first, decide(first))
    assert [(a.kind, a.job.id, dict(a.fields)) for a in decide(second).actions] == []


@settings(max_examples=50, deadline=None)
@given(JOBS, USED, st.lists(st.integers(1, 5000), min_size=1, max_size=3))
def test_beside_jobs_of_others_it_comes_to_rest(described, used, rivals):
    """Whoever was held back for one of them may find another place in the next tick."""
    jobs = [job(str(n), **more) for n, more in enumerate(described, 1)]
    jobs += [ordinary(str(100 + n), priority=p) for n, p in enumerate(rivals)]
    shown = seen(jobs, nodes(**used))
    for _ in range(len(jobs) + 1):
        shown = after(shown, decide(shown))
    assert decide(shown).actions == ()


@settings(max_examples=50, deadline=None)
@given(JOBS, USED)
def test_a_tick_never_plans_more_than_a_node_has_free(described, used):
    jobs = [job(str(n), **more) for n, more in enumerate(described, 1)]
    shown = seen(jobs, nodes(**used))
    taken = {}
    for action in decide(shown).of(Kind.START):
        assert isinstance(action.placement, Placement)
        for name, gpus in action.placement.nodes.items():
            for kind, count in gpus.items():
                taken[name, kind] = taken.get((name, kind), 0) + count
    for (name, kind), count in taken.items():
        free = shown.nodes[name].gpus[kind] - shown.nodes[name].gpus_used[kind]
        assert count <= free


# -- limits of Slurm's -------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["QOSMaxJobsPerUserLimit", "AssocGrpGRES", "MaxGRESPerAccount"])
def test_who_is_at_a_limit_gets_no_more_starts_that_would_block_others(reason):
    """One of his jobs shows the reason; the leased ones would meet the same limit."""
    at_limit = job("1", reason=reason, eligible_s=NOW - 5)
    same, other, other_qos = job("2"), job("3", uid=1005, user="eve"), job("4", qos="high")
    shown = seen([at_limit, same, other, other_qos])
    want = {id_: {"v100": 1} for id_ in "1234"}
    done = decide(shown, want)
    assert starts(done) == {"3", "4"} and len(done.actions) == 2
    # A limit on the size of one job says nothing about another.
    large = seen([job("1", reason="QOSMaxGRESPerJob", eligible_s=NOW - 5), same])
    assert starts(decide(large, want)) == {"2"}
    # What runs of his is still his, and may move.
    here = running("5", {"k1": {"k80": 1}})
    assert decide(seen([at_limit, here]), {"5": {"v100": 1}}).of(Kind.MOVE)
