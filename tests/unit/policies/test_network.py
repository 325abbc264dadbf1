"""Network-sensitive scheduling: tiers, timers, moves; and its two baselines."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar import policies
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.traits import NetworkTrait
from slurm_hadar.domain.view import View
from slurm_hadar.policies.network.compose import near_rates, placed_near
from slurm_hadar.policies.network.policy import Timers
from slurm_hadar.policies.network.settings import NetworkOptions
from slurm_hadar.testing import NOW, applied, jobs_of, nodes_of, places, view_of
from slurm_hadar.testing import check_plan as check
from slurm_hadar.testing.strategies import views

pytestmark = pytest.mark.filterwarnings("error")

NAMES = ("network", "network_consolidate", "network_never_wait")
_QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def racked(draw: st.DrawFn) -> View:
    """Random views with racks and, mostly, with what jobs lose to the network."""
    view = draw(views())
    nodes, jobs = view.nodes, view.jobs
    racks = draw(st.lists(st.integers(0, 2), min_size=len(nodes.names), max_size=len(nodes.names)))
    view = replace(view, nodes=replace(nodes, rack=np.array(racks, dtype=np.int64)))
    if draw(st.integers(0, 3)) == 0:
        return view
    some = st.lists(
        st.sampled_from([1e-9, 0.1, 0.5, 0.9, 1.0]),
        min_size=3 * len(jobs.ids),
        max_size=3 * len(jobs.ids),
    )
    factor = np.sort(np.array(draw(some)).reshape(-1, 3))[:, ::-1]
    slowed = np.where(jobs.running, factor.min(axis=1, initial=1.0), 1.0)
    return replace(view, jobs=replace(jobs, network=NetworkTrait(factor, slowed)))


@pytest.mark.parametrize("name", NAMES)
@given(view=racked())
@_QUICK
def test_plans_keep_to_what_there_is(name: str, view: View) -> None:
    decide = policies.get(name)
    plan, state = decide(view, {})
    check(view, plan)
    assert (plan, state) == decide(view, {})
    kept = json.loads(json.dumps(state))
    after = applied(view, plan)
    again, _ = decide(after, kept)
    check(after, again)
    assert (again, _) == decide(after, state)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_place_and_nowhere_to_place_it(name: str) -> None:
    decide = policies.get(name)
    none = jobs_of(np.zeros((0, 1, 1)))
    plan, _ = decide(view_of(nodes_of([[1]]), none), {})
    assert not plan.placements and plan.notes
    nowhere = replace(nodes_of([]), gpus=np.zeros((0, 1), dtype=np.int64))
    plan, _ = decide(view_of(nowhere, jobs_of([[[1.0]]])), {})
    assert plan.waiting["j0"]
    plan, _ = decide(view_of(nodes_of([[1]]), jobs_of([[[0.0]]])), {})
    assert plan.waiting["j0"] == "no GPU type and count that it can run with"
    no_types = replace(nodes_of([[1]]), gpus=np.zeros((1, 0), dtype=np.int64))
    plan, _ = decide(view_of(no_types, jobs_of(np.zeros((1, 0, 1)))), {})
    assert plan.waiting["j0"]


def two_racks(
    free: list[int],
    factor: tuple[float, float, float] = (1.0, 0.9, 0.3),
    jobs: int = 1,
    count: int = 4,
    **more: Any,
) -> View:
    """Four nodes of ``free`` GPUs in two racks; gangs of four on up to four nodes."""
    nodes = nodes_of([[n] for n in free])
    nodes = replace(nodes, rack=np.array([0, 0, 1, 1]))
    arrays = jobs_of([[[1.0]]] * jobs, max_nodes=4, **more)
    trait = NetworkTrait(np.tile(factor, (jobs, 1)), np.ones(jobs))
    return view_of(nodes, replace(arrays, network=trait), (count,))


def test_a_place_on_one_machine_is_taken_at_once_and_the_fullest_one() -> None:
    plan, _ = policies.get("network")(two_racks([4, 6, 8, 5]), {})
    assert plan.placements["j0"].nodes == {"n0": {"fast": 4}}
    assert plan.placements["j0"].tier == "machine"


def test_tiers_that_could_never_hold_it_are_skipped() -> None:
    # No node has four GPUs: a rack is the nearest there is, so it is taken at once.
    plan, _ = policies.get("network")(two_racks([2, 2, 2, 3]), {})
    assert plan.placements["j0"].tier == "rack"
    # Nor has a rack: it goes anywhere at once.
    plan, _ = policies.get("network")(two_racks([1, 1, 1, 1]), {})
    assert plan.placements["j0"].tier == "network"


def held_up(free: list[int], waited_s: float, **more: Any) -> View:
    """Another job holds GPUs, so that for the moment only ``free`` ones are there."""
    taken = [4 - n for n in free]
    held = [(1, node, 0, n) for node, n in enumerate(taken) if n]
    view = two_racks([4, 4, 4, 4], jobs=2, arrival_s=[NOW - waited_s, NOW - 9e4], held=held,
                     movable=False, **more)  # fmt: skip
    return view


def test_it_waits_for_a_nearer_place_and_then_takes_what_there_is() -> None:
    decide = policies.get("network")
    plan, _ = decide(held_up([2, 0, 2, 0], 60.0), {})
    assert "declines 4 GPUs over several racks" in plan.waiting["j0"]
    # 3.3 times as long far away, and 1.1 times that on the other job's cards: 2.7 hours.
    plan, _ = decide(held_up([2, 0, 2, 0], 9_500.0), {})
    assert "declines" in plan.waiting["j0"]
    plan, _ = decide(held_up([2, 0, 2, 0], 9_700.0), {})
    assert plan.placements["j0"].tier == "network"
    plan, _ = decide(held_up([2, 2, 0, 0], 3_700.0), {})
    assert plan.placements["j0"].tier == "rack"


def test_who_loses_nothing_does_not_wait() -> None:
    view = held_up([2, 0, 2, 0], 0.0)
    same = replace(view.jobs, network=NetworkTrait(np.ones((2, 3)), np.ones(2)))
    plan, _ = policies.get("network")(replace(view, jobs=same), {})
    assert plan.placements["j0"].tier == "network"
    assert "a nearer place would not make it faster" in plan.placements["j0"].reason
    # Nor one that is over before a nearer place could pay.
    short = replace(view.jobs, left=np.array([1.0, 1.0]))
    view = replace(view, jobs=replace(short, arrival_s=np.array([NOW - 30.0, NOW])))
    plan, _ = policies.get("network")(view, {})
    assert plan.placements["j0"].tier == "network"


def test_the_baselines_never_wait_and_wait_for_ever() -> None:
    view = held_up([2, 0, 2, 0], 9e4)
    plan, _ = policies.get("network_never_wait")(view, {})
    assert plan.placements["j0"].tier == "network"
    plan, _ = policies.get("network_consolidate")(view, {})
    assert plan.waiting["j0"] == "waits for 4 GPUs on one machine"


def test_a_borrower_gives_way_to_a_job_that_is_near_on_its_gpus() -> None:
    # j1 runs over both racks at a fifth of its speed; on one of its nodes j0 is near.
    nodes = replace(nodes_of([[2], [0], [2], [0]]), rack=np.array([0, 0, 1, 1]))
    nodes = replace(nodes, whole=replace(nodes, gpus=np.full((4, 1), 4)))
    rate = [[[1.0, 0.0]], [[0.0, 1.0]]]
    arrays = jobs_of(rate, max_nodes=4, held=[(1, 0, 0, 2), (1, 2, 0, 2)], left=[4e5, 4e4],
                     since_s=NOW - 7200.0, attained=[0.0, 1.0])  # fmt: skip
    hurt = NetworkTrait(np.tile([1.0, 0.9, 0.3], (2, 1)), np.array([1.0, 0.2]))
    view = view_of(nodes, replace(arrays, network=hurt), (2, 4))
    plan, _ = policies.get("network")(view, {})
    check(view, plan)
    assert plan.placements["j0"].tier == "machine" and "j1" in plan.waiting
    options: list[dict[str, object]] = [
        {"preempt": False}, {"hurt": 0.1}, {"min_stay_s": 1e5}, {"critical": 0.0}
    ]  # fmt: skip
    for one in options:
        plan, _ = policies.get("network")(replace(view, options=one), {})
        assert "j1" in plan.placements and "j0" in plan.waiting
    unhurt = replace(view.jobs, network=NetworkTrait(hurt.factor, np.ones(2)))
    plan, _ = policies.get("network")(replace(view, jobs=unhurt), {})
    assert "j1" in plan.placements


def test_a_rack_that_is_nearly_free_is_kept_for_a_job_that_decides_the_end() -> None:
    # j0 needs four GPUs of a rack, three are free there; j1 would take one of them.
    nodes = replace(nodes_of([[2], [1], [1], [0]]), rack=np.array([0, 0, 1, 1]))
    nodes = replace(nodes, whole=replace(nodes, gpus=np.full((4, 1), 2)))
    arrays = jobs_of([[[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 0.0]]], max_nodes=4,
                     left=[4e6, 100.0, 100.0], arrival_s=NOW)  # fmt: skip
    trait = NetworkTrait(np.tile([1.0, 0.9, 0.3], (3, 1)), np.ones(3))
    view = view_of(nodes, replace(arrays, network=trait), (1, 4))
    plan, _ = policies.get("network")(view, {})
    assert "j0" in plan.waiting and len(plan.placements) == 1
    assert [set(p.nodes) for p in plan.placements.values()] == [{"n2"}]
    plan, _ = policies.get("network")(replace(view, options={"critical": 2.0}), {})
    assert {"j1", "j2"} <= set(plan.placements)


def test_a_job_that_decides_the_end_waits_where_others_hold_every_gpu() -> None:
    view = two_racks([0, 0, 0, 0], count=2)
    nodes = replace(view.nodes, whole=replace(view.nodes, gpus=np.full((4, 1), 1)))
    plan, _ = policies.get("network")(replace(view, nodes=nodes), {})
    assert "j0" in plan.waiting and not plan.placements


def test_a_request_per_node_gets_its_gpus_on_so_many_nodes() -> None:
    view = two_racks([4, 4, 4, 4])
    trait = replace(view.jobs.network, per_node=np.array([2]))
    view = replace(view, jobs=replace(view.jobs, network=trait))
    plan, _ = policies.get("network")(view, {})
    assert [row["fast"] for row in plan.placements["j0"].nodes.values()] == [2, 2]
    assert plan.placements["j0"].tier == "rack"
    one_left = replace(view.nodes, gpus=np.array([[4], [1], [3], [1]]))
    plan, _ = policies.get("network")(replace(view, nodes=one_left), {})
    assert set(plan.placements["j0"].nodes) == {"n0", "n2"}


def test_how_near_a_job_could_ever_be_follows_from_what_nodes_have_in_all() -> None:
    view = two_racks([2, 0, 2, 0], arrival_s=NOW - 60.0)
    plan, _ = policies.get("network")(view, {})
    assert plan.placements["j0"].tier == "network"
    whole = replace(view.nodes, gpus=np.full((4, 1), 4))
    plan, _ = policies.get("network")(replace(view, nodes=replace(view.nodes, whole=whole)), {})
    assert "on one machine it would end" in plan.waiting["j0"]


def test_near_places_are_offered_to_all_before_far_ones() -> None:
    # j0 has waited for days and would take three nodes; on one of them j1 is near.
    nodes = replace(nodes_of([[4], [2], [2]]), rack=np.array([0, 1, 2]))
    rate = [[[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 0.0]]]
    jobs = jobs_of(rate, max_nodes=4, arrival_s=[0.0, NOW, NOW])
    trait = NetworkTrait(np.tile([1.0, 0.9, 0.8], (3, 1)), np.ones(3))
    view = view_of(nodes, replace(jobs, network=trait), (2, 4))
    taken = replace(view.jobs, held=np.array([[2, 0, 0, 2]]), movable=np.array([True, True, False]))
    plan, _ = policies.get("network")(replace(view, jobs=taken), {})
    assert plan.placements["j1"].tier == "machine"
    assert plan.placements["j0"].tier == "network"


def running_far(slowed: float, **more: Any) -> View:
    view = two_racks([4, 4, 4, 4], jobs=2, held=[(0, 0, 0, 2), (0, 2, 0, 2), (1, 1, 0, 1),
                     (1, 3, 0, 3)], since_s=NOW - 7200.0, **more)  # fmt: skip
    trait = NetworkTrait(view.jobs.network.factor, np.array([slowed, 0.9]))
    return replace(view, jobs=replace(view.jobs, network=trait))


def test_the_job_that_the_network_hurts_most_moves_first() -> None:
    # Once j0 has left, there is no machine for j1 that is better for it.
    plan, _ = policies.get("network")(running_far(0.3), {})
    assert plan.placements["j0"].tier == "machine"
    assert plan.placements["j0"].reason.startswith("moves: on one machine it ends")


@pytest.mark.parametrize(
    "more",
    [
        {"restart_s": 1e9},
        {"movable": False},
        {"left": 10.0},
    ],
)
def test_no_move_that_does_not_pay_or_may_not_be(more: dict[str, object]) -> None:
    view = running_far(0.3, **more)
    plan, _ = policies.get("network")(view, {})
    assert places(view, plan)["j0"] == {(0, 0): 2, (2, 0): 2}


def test_no_move_soon_after_the_last_one() -> None:
    view = running_far(0.3)
    view = replace(view, jobs=replace(view.jobs, since_s=np.full(2, NOW - 60.0)))
    plan, _ = policies.get("network")(view, {})
    assert places(view, plan)["j0"] == {(0, 0): 2, (2, 0): 2}
    plan, _ = policies.get("network")(replace(view, options={"min_stay_s": 30.0}), {})
    assert plan.placements["j0"].tier == "machine"


def test_timers_are_the_mean_and_deviations_of_a_window() -> None:
    timers = Timers({}, NetworkOptions(window=3, spread=2.0))
    assert timers.wait_s(0, 4) == 3600.0
    for waited in (9e9, 10.0, 20.0, 30.0):
        timers.accepted(0, 4, waited)
    deviation = (200 / 3) ** 0.5
    assert timers.wait_s(0, 4) == pytest.approx(20.0 + 2 * deviation)
    assert timers.wait_s(1, 4) == timers.wait_s(0, 8) == 3600.0
    kept = Timers(json.loads(json.dumps({"waits": timers.plain()})), NetworkOptions(spread=0.0))
    assert kept.wait_s(0, 4) == pytest.approx(20.0)
    clamped = NetworkOptions(spread=0.0, least_wait_s=25.0, most_wait_s=28.0)
    assert Timers({"waits": timers.plain()}, clamped).wait_s(0, 4) == 25.0
    assert Timers({}, clamped).wait_s(0, 4) == 28.0


@pytest.mark.parametrize("name", ["far_capacity", "carries"])
def test_a_memory_that_was_written_by_somebody_else_is_passed_over(name: str) -> None:
    odd = {"waits": {"0:4": "soon", "1:4": ["x"]}, "ran": 7, name: "much"}
    plan, _ = policies.get("network")(two_racks([4, 4, 4, 4]), odd)
    assert set(plan.placements) == {"j0"}


@pytest.mark.parametrize(
    "option", [{"spread": "x"}, {"rack_loss": 1.0}, {"window": True}, {"preempt": 1}]
)
def test_an_option_that_cannot_be_is_named(option: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))):
        policies.get("network")(replace(two_racks([4, 4, 4, 4]), options=option), {})


@pytest.mark.parametrize("name", ["far_capacity", "carries"])
def test_far_links_that_were_seen_full_make_it_wait_longer(name: str) -> None:
    """``carries``: as a release before wrote it."""
    # Before links were full, four on two racks lose a little; with their traffic much more.
    view = held_up([2, 0, 2, 0], 3_700.0)
    factor = np.tile([1.0, 0.9, 0.6], (2, 1))
    calm = replace(view, jobs=replace(view.jobs, network=NetworkTrait(factor, np.ones(2))))
    plan, _ = policies.get("network")(calm, {})
    assert plan.placements["j0"].tier == "network"
    plan, state = policies.get("network")(calm, {name: 0.05})
    assert "declines" in plan.waiting["j0"] and state["far_capacity"] == 0.05


def crowd(jobs: int, racks: int) -> View:
    """Many jobs on many racks of eight nodes with four GPUs."""
    rng = np.random.default_rng(jobs)
    nodes = replace(nodes_of([[4]] * (8 * racks)), rack=np.repeat(np.arange(racks), 8))
    rate = np.zeros((jobs, 1, 5))
    rate[np.arange(jobs), 0, rng.integers(5, size=jobs)] = 1.0
    arrays = jobs_of(rate, max_nodes=100, left=rng.lognormal(9.0, 1.0, jobs))
    factor = np.sort(rng.uniform(0.2, 1.0, (jobs, 3)))[:, ::-1]
    network = NetworkTrait(factor, np.ones(jobs))
    return view_of(nodes, replace(arrays, network=network), (1, 2, 4, 8, 16))


@pytest.mark.parametrize("name", NAMES)
def test_two_thousand_jobs_are_placed(name: str) -> None:
    view = crowd(2000, 64)
    plan, state = policies.get(name)(view, {})
    check(view, plan)
    after = applied(view, plan)
    again, _ = policies.get(name)(after, state)
    check(after, again)
    assert set(plan.placements) <= set(again.placements)


@pytest.mark.parametrize("name", ["hadar", "fifo"])
@given(view=racked())
@_QUICK
def test_another_policys_plan_can_be_laid_near(name: str, view: View) -> None:
    plan, _ = policies.get(name)(view, {})
    near = placed_near(view, plan)
    check(view, near)
    assert near.placements.keys() == plan.placements.keys()
    for id_, placement in plan.placements.items():
        assert near.placements[id_].gpus == placement.gpus
    assert near_rates(view).jobs.rate.shape == view.jobs.rate.shape
    assert (near_rates(view).jobs.rate <= view.jobs.rate).all()


def test_the_most_hurt_is_laid_nearest_and_rates_count_the_network_in() -> None:
    nodes = replace(nodes_of([[2], [2], [2], [2]]), rack=np.array([0, 1, 0, 1]))
    arrays = jobs_of([[[1.0, 1.0]], [[1.0, 1.0]]], max_nodes=4)
    trait = NetworkTrait(np.array([[1.0, 1.0, 0.9], [1.0, 0.8, 0.2]]), np.ones(2))
    view = view_of(nodes, replace(arrays, network=trait), (2, 4))
    # Four GPUs fit on no node: a rack is the nearest. Two do.
    assert near_rates(view).jobs.rate[1, 0].tolist() == [1.0, 0.8]
    view = replace(view, jobs=replace(view.jobs, rate=np.tile([0.0, 1.0], (2, 1, 1))))
    plan, _ = policies.get("fifo")(view, {})
    assert {len({n[1] for n in p.nodes}) for p in plan.placements.values()} == {2}
    near = placed_near(view, plan).placements
    assert {p.tier for p in near.values()} == {"rack"}
