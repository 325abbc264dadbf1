"""A job that has more than it asked for gives it back to a job that is not managed and waits."""

from dataclasses import replace

import pytest
from hand_made import CONFIG, NOW, dictate, job, look, node, observation, ordinary, running

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.destinations.surplus import (
    given_back,
    what_was_given_back,
    without_surplus,
)
from slurm_hadar.controller.actuation.plan_diff import MoveBudget, diff
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.node import Partition, Reservation
from slurm_hadar.domain.steering import Steering

ELASTIC = Declaration(
    types=("any",), checkpoint="yes", model="resnet50", gpus=(1, 2), batch=(64, 64)
)
COPIES = Declaration(
    types=("any",), checkpoint="yes", model="resnet50", fork=(1, 4), batch=(64, 64)
)
GREW = {"1": Steering(gpus={"v100": 2}, time=NOW - 30, moves=1, was={"TresPerNode": "gres/gpu:1"})}
OWN = CONFIG.model_copy(update={"site": CONFIG.site.model_copy(update={"rights": "user"})})
"""A researcher's own controller, which may make no reservation."""
V1 = node("v1", gpus_used={"v100": 2})


def returned(jobs, found, steering=None, site=CONFIG, partitions=None, **more):
    """Job -> nodes that it keeps, and the jobs that are moved for it."""
    more |= {"steering": steering} if steering else {}
    shown = observation(jobs, found, partitions, **more)
    snapshot = look(shown, site)
    stay = {id_: one.held for id_, one in snapshot.schedulable.items() if one.held}
    plan = dictate(snapshot.view, {id_: _kinds(held) for id_, held in stay.items()})
    places = given_back(snapshot, plan, shown, site)
    snapshot = replace(snapshot, returning=frozenset(places))
    means = diff(snapshot, without_surplus(plan, places), shown, site, MoveBudget(100))
    assert {one.job.id for one in means.of(Kind.MOVE)} == {*places}, means.deferred
    return {id_: {n: dict(g) for n, g in place.nodes.items()} for id_, place in places.items()}


def _kinds(held):
    found: dict[str, int] = {}
    for gpus in held.values():
        for kind, count in gpus.items():
            found[kind] = found.get(kind, 0) + count
    return found


def grown(**more):
    return running(
        "1",
        {"v1": {"v100": 2}},
        **{
            "declaration": ELASTIC,
            "request": GpuRequest(per_node={UNTYPED: 2}),
            "start_s": NOW - 20,
            **more,
        },
    )


def copies(where):
    return running("1", where, declaration=COPIES, request=GpuRequest(per_node={UNTYPED: 1}))


FORKED = {"1": Steering(time=NOW - 30, moves=1, was={"NumNodes": "1-1", "ReqNodeList": ""})}


def test_a_grown_job_goes_back_to_what_it_asked_for():
    found = returned([grown(), ordinary(reason="Resources")], [V1], GREW)
    assert found == {"1": {"v1": {"v100": 1}}}


def test_afterwards_its_reason_says_what_it_gave_back_and_for_which_job():
    shown = observation([grown(), ordinary(reason="Resources")], [V1], steering=GREW)
    snapshot = look(shown)
    plan = dictate(snapshot.view, {"1": {"v100": 2}})
    reason = given_back(snapshot, plan, shown, CONFIG)["1"].reason
    assert what_was_given_back(reason) == (
        "it had grown beyond its request and gave 1 GPU back, which job 9 waited for"
    )
    assert what_was_given_back("1 x v100 on v1: ends in 1 min") == ""


def test_it_does_so_however_short_its_move_was_ago():
    site = CONFIG.model_copy(
        update={"guards": CONFIG.guards.model_copy(update={"min_between_moves_s": 600.0})}
    )
    shown = look(observation([grown(), ordinary()], [V1], steering=GREW), site)
    assert "min_between_moves_s" in shown.staying["1"]
    assert returned([grown(), ordinary()], [V1], GREW, site) == {"1": {"v1": {"v100": 1}}}


@pytest.mark.parametrize(
    "waiting",
    [
        [],
        [job("9", priority=2000)],
        [ordinary(partitions=("k80",))],
        [ordinary(reason="Dependency")],
        [ordinary(request=GpuRequest(per_node={UNTYPED: 2}))],
        [ordinary(request=GpuRequest(per_node={UNTYPED: 2})), ordinary("10", priority=1500)],
    ],
    ids=[
        "none waits",
        "a managed one is for the policy",
        "no use of it",
        "not its turn",
        "too large",
        "a larger one ahead",
    ],
)
def test_it_keeps_all_where_that_helps_no_job(waiting):
    assert not returned([grown(), *waiting], [V1], GREW)


def test_it_keeps_its_part_before_all_that_wait():
    many = [ordinary(str(number)) for number in range(9, 20)]
    assert returned([grown(), *many], [V1], GREW) == {"1": {"v1": {"v100": 1}}}


def test_it_keeps_all_where_its_part_could_be_taken():
    both = [ordinary(), ordinary("10")]
    assert not returned([grown(), *both], [V1], GREW, OWN)
    higher = [Partition("gpu", ("v1",)), Partition("v100", ("v1",), priority_tier=2)]
    ahead = ordinary("11", partitions=("v100",))
    assert not returned([grown(), *both, ahead], [V1], GREW, partitions=higher)
    # One that has no job that waits takes nothing.
    assert returned([grown(), *both], [V1], GREW, partitions=higher)


def test_it_keeps_all_where_the_job_that_waits_starts_on_free_gpus():
    assert not returned([grown(), ordinary()], [V1, node("k1")], GREW)


def test_a_job_with_what_it_asked_for_keeps_it():
    own = running("1", {"v1": {"v100": 2}}, declaration=replace(ELASTIC, gpus=(2, 2)),
                  request=GpuRequest(per_node={UNTYPED: 2}))  # fmt: skip
    assert not returned([own, ordinary()], [V1])


def test_a_job_that_cannot_be_moved_keeps_all():
    pinned = grown(declaration=replace(ELASTIC, pin=True))
    assert not returned([pinned, ordinary()], [V1], GREW)


def test_copies_leave_the_nodes_that_are_waited_for():
    there = {"v1": {"v100": 1}, "k1": {"k80": 1}, "p1": {"p100": 1}}
    found = [node(name, 1, gpus_used=gpus) for name, gpus in there.items()]
    # It keeps its fastest copy, but for the one that the other asks for.
    assert returned([copies(there), ordinary(partitions=("k80",))], found, FORKED) == {
        "1": {"v1": {"v100": 1}}
    }
    assert returned([copies(there), ordinary(partitions=("v100",))], found, FORKED) == {
        "1": {"p1": {"p100": 1}}
    }
    both = [ordinary(), ordinary("10"), ordinary("11")]
    assert returned([copies(there), *both], found, FORKED) == {"1": {"v1": {"v100": 1}}}
    # Without its node kept one that may run on any of them could take it, the only one of its type.
    assert not returned([copies(there), ordinary()], found, FORKED, OWN)
    there["v2"] = {"v100": 1}
    found.append(node("v2", 1, gpus_used={"v100": 1}))
    assert returned([copies(there), ordinary()], found, FORKED, OWN) == {"1": {"v1": {"v100": 1}}}
    assert not returned([copies(there), ordinary(), ordinary("10")], found, FORKED, OWN)
    # With as many nodes as it was submitted with, it has nothing to give back.
    assert not returned([copies(there), ordinary()], found)


def test_copies_with_a_list_of_partitions_may_start_again_on_any_type():
    there = {"v1": {"v100": 1}, "k1": {"k80": 1}, "p1": {"p100": 1}}
    found = [node(name, 1, gpus_used=gpus) for name, gpus in there.items()]
    listed = replace(copies(there), partitions=("v100", "k80", "p100"))
    assert returned([listed, ordinary(), ordinary("10")], found, FORKED, OWN) == {
        "1": {"v1": {"v100": 1}}
    }


def test_it_keeps_no_node_that_a_reservation_takes_before_its_time_limit():
    there = {"v1": {"v100": 1}, "k1": {"k80": 1}, "p1": {"p100": 1}}
    found = [node(name, 1, gpus_used=gpus) for name, gpus in there.items()]
    both = [ordinary(), ordinary("10")]
    for start_s in (NOW - 60, NOW + 900):
        maintenance = (Reservation("maintenance", ("v1",), start_s, NOW + 9000),)
        kept = returned([copies(there), *both], found, FORKED, reservations=maintenance)
        assert kept == {"1": {"p1": {"p100": 1}}}
    # Requeued it would not start before the end of the maintenance.
    assert not returned([grown(), ordinary()], [V1], GREW, reservations=maintenance)
