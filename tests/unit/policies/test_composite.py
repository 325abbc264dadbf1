"""Our own policy with everything that a view may tell of: batches, CPUs, racks and dealt rounds."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar import policies
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.traits import BatchTrait, CpuTrait, NetworkTrait
from slurm_hadar.domain.view import View
from slurm_hadar.policies.composite import completed_plan, with_attainable_rates
from slurm_hadar.testing import check_plan as check
from slurm_hadar.testing import held_by, jobs_of, nodes_of, place_of, view_of
from slurm_hadar.testing.strategies import views

pytestmark = pytest.mark.filterwarnings("error")

_QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_ROUNDING = 1e-3
decide = policies.get("timetable")


@st.composite
def told_all(draw: st.DrawFn) -> View:
    """Random views with all traits, each of which may also be missing."""
    view = draw(views())
    jobs, number = view.jobs, len(view.jobs.ids)
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    there = draw(st.lists(st.booleans(), min_size=4, max_size=4))
    racks = rng.integers(0, 3, len(view.nodes.names))
    view = replace(view, nodes=replace(view.nodes, rack=racks.astype(np.int64)))
    if there[0]:
        sizes = np.tile([32, 64, 128], (number, 1))
        gain = rng.choice([0.0, 0.7, 1.0, 1.6], (number, *jobs.rate.shape[1:], 3))
        gain[..., 0] = 1.0
        batches = BatchTrait(
            sizes=sizes,
            rate=jobs.rate[..., None] * gain,
            noise=rng.choice([20.0, 1000.0, np.inf], number),
            base=np.full(number, 32.0),
            present=np.where(jobs.running, rng.choice([32, 64], number), 0),
        )
        jobs = replace(jobs, batches=batches)
    if there[1]:
        least = np.full(number, 1.0)
        cpu_sensitivity = CpuTrait(
            np.array([1.0, 2.0, 6.0]),
            np.array([1.0, 8.0]),
            rng.choice([0.3, 1.0, 2.0], (number, 3, 2)),
            *(least, np.full(number, 6.0), least, np.full(number, 9.0)),
        )
        jobs = replace(jobs, cpu_sensitivity=cpu_sensitivity)
    if there[2]:
        factor = np.sort(rng.choice([0.1, 0.5, 0.9, 1.0], (number, 3)), axis=1)[:, ::-1]
        slowed = np.where(jobs.running, rng.choice([0.2, 0.9, 1.0], number), 1.0)
        jobs = replace(jobs, network=NetworkTrait(factor.copy(), slowed))
    if there[3]:
        jobs = replace(
            jobs,
            copies=rng.integers(1, 4, number),
            tasks=rng.choice([1, 2, 4], number).astype(np.int64),
        )
    return replace(view, jobs=jobs)


def keeps_to_what_there_is(view: View, plan: Plan) -> None:
    """GPUs, CPUs and memory of every node, who may not be moved, gangs, copies and batches."""
    jobs, held = view.jobs, held_by(view)
    left = view.nodes.gpus.copy()
    host_free = np.stack([view.nodes.cpus, view.nodes.mem_mb], axis=1).astype(float)
    new: set[int] = set()
    for row, id_ in enumerate(jobs.ids):
        if id_ not in plan.placements:
            assert not (row in held and not jobs.movable[row]), "taken from one who may not move"
            continue
        one = plan.placements[id_]
        place = place_of(view, one)
        if place != held.get(row):
            assert not (row in held and not jobs.movable[row]), "moved one who may not be"
        for (node, kind), count in place.items():
            left[node, kind] -= count
        cpus = jobs.cpus_per_gpu[row] if one.cpus_per_gpu is None else one.cpus_per_gpu
        mem = jobs.mem_per_gpu_mb[row] if one.mem_per_gpu_mb is None else one.mem_per_gpu_mb
        for (node, _), count in place.items():
            host_free[node] -= (count * cpus, count * mem)
        if place == held.get(row) and one.cpus_per_gpu is None:
            continue
        new |= {node for node, _ in place}
        if one.copies > 1:
            assert one.copies == len(place) == len(one.shares) <= jobs.copies[row]
            assert sum(one.shares) == pytest.approx(1.0)
        elif place != held.get(row):
            assert one.gpu_count in view.counts
            column = view.counts.index(one.gpu_count)
            assert all(jobs.rate[row, kind, column] > 0 for _, kind in place)
            assert len(place) <= jobs.max_nodes[row]
        if one.batch is not None and jobs.batches is not None and place != held.get(row):
            assert one.batch in jobs.batches.sizes[row]
    crowded = (view.nodes.gpus - _given(view)).min(axis=1, initial=0) < 0
    for node in range(len(view.nodes.names)):
        # A node that shrank below what its jobs hold may stay so, but nobody comes to it.
        assert crowded[node] or (left[node] >= 0).all(), "GPUs are given twice"
    counted = jobs.cpu_sensitivity is not None and view.nodes.cpus.any() and view.nodes.mem_mb.any()
    if counted:
        still = {node for row in held for node, _ in held[row]}
        for node in new - still:
            assert (host_free[node] >= -_ROUNDING).all(), "CPUs or memory are given twice"


def _given(view: View) -> np.ndarray:
    held = np.zeros_like(view.nodes.gpus)
    for _, node, kind, count in view.jobs.held.tolist():
        held[node, kind] += count
    return held


@given(told_all())
@_QUICK
def test_a_plan_with_everything_keeps_to_what_there_is(view: View) -> None:
    plan, state = decide(view, {})
    keeps_to_what_there_is(view, plan)
    assert decide(view, {}) == (plan, state)
    assert decide(view, json.loads(json.dumps(state))) == decide(view, state)
    named = {*plan.placements, *plan.waiting}
    assert named == set(view.jobs.ids) or not view.jobs.ids


@given(views())
@_QUICK
def test_without_traits_nothing_is_added(view: View) -> None:
    plan, _ = decide(view, {})
    check(view, plan)
    assert with_attainable_rates(view) is view
    assert completed_plan(view, plan) == plan


def test_each_part_takes_part() -> None:
    """Two nodes in one rack and two in another; a job of four GPUs that wants a larger batch and
    more CPUs, and loses much when it is spread over racks."""
    nodes = replace(
        nodes_of([[2], [2], [2], [2]], cpus=[16] * 4, mem_mb=[64] * 4),
        rack=np.array([0, 1, 0, 1]),
    )
    rate = np.array([[[1.0, 1.9]]])
    jobs = jobs_of(rate, max_nodes=4, cpus_per_gpu=2.0, mem_per_gpu_mb=4.0)
    one = np.ones(1)
    jobs = replace(
        jobs,
        batches=BatchTrait(
            np.array([[32, 64]]), np.stack([rate, rate * 1.8], axis=3),
            np.array([1e6]), np.array([32.0]), np.zeros(1, dtype=np.int64),
        ),
        cpu_sensitivity=CpuTrait(
            np.array([2.0, 8.0]), np.array([4.0, 8.0]), np.array([[[1.0, 1.0], [2.0, 2.0]]]),
            one, one * 8, one, one * 8,
        ),
        network=NetworkTrait(np.array([[1.0, 0.9, 0.1]]), one),
    )  # fmt: skip
    view = view_of(nodes, jobs, (2, 4))
    assert (with_attainable_rates(view).jobs.rate > 1.5 * rate).all()
    placement = decide(view, {})[0].placements["j0"]
    assert placement.batch == 64
    assert placement.cpus_per_gpu == pytest.approx(8.0)
    assert placement.gpu_count == 4
    assert {nodes.rack[view.nodes.names.index(name)] for name in placement.nodes} in ({0}, {1})


def test_a_running_job_is_drawn_nearer_where_that_pays() -> None:
    nodes = replace(nodes_of([[2], [2], [2], [2]]), rack=np.array([0, 1, 0, 1]))
    held = [(0, 0, 0, 2), (0, 1, 0, 2)]
    jobs = jobs_of([[[1.0]]], max_nodes=4, held=held)
    for left, nearer in ((50.0, False), (36_000.0, True)):
        trait = NetworkTrait(np.array([[1.0, 1.0, 0.5]]), np.array([0.5]))
        view = view_of(nodes, replace(jobs, network=trait, left=np.array([left])), (4,))
        placement = decide(view, {})[0].placements["j0"]
        racks = {nodes.rack[view.nodes.names.index(name)] for name in placement.nodes}
        assert (len(racks) == 1) == nearer


def crowded(left_s: float, movable: bool, gang: list[tuple[int, int, int, int]]) -> View:
    """Two racks of two nodes with two GPUs, a small job in each, and a gang of four GPUs that runs
    at a tenth of its speed over two racks."""
    nodes = replace(nodes_of([[2]] * 4), rack=np.array([0, 0, 1, 1]))
    held = [(0, 0, 0, 1), (1, 2, 0, 1), *gang]
    jobs = jobs_of(
        [[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]], max_nodes=4, held=held, movable=movable
    )
    far = 0.1 if gang else 1.0
    trait = NetworkTrait(np.array([[1.0, 1.0, 0.1]] * 3), np.array([1.0, 1.0, far]))
    left = np.array([36_000.0, 36_000.0, left_s])
    return view_of(nodes, replace(jobs, network=trait, left=left, total=left), (1, 4))


@pytest.mark.parametrize("gang", [[], [(2, 1, 0, 2), (2, 3, 0, 2)]], ids=["starts", "runs"])
@pytest.mark.parametrize(
    ("left_s", "movable", "near"),
    [(36_000.0, True, True), (1.0, True, False), (36_000.0, False, False)],
)
def test_a_small_job_changes_nodes_for_a_gang_that_would_be_apart(
    gang: list[tuple[int, int, int, int]], left_s: float, movable: bool, near: bool
) -> None:
    view = crowded(left_s, movable, gang)
    plan, _ = decide(view, {})
    check(view, plan)
    assert set(plan.placements) == {"j0", "j1", "j2"}
    rack = {name: int(at) for name, at in zip(view.nodes.names, view.nodes.rack, strict=True)}
    racks = {rack[name] for name in plan.placements["j2"].nodes}
    moved = [
        id_ for id_ in ("j0", "j1") if "so that the GPUs of job j2" in plan.placements[id_].reason
    ]
    assert (len(racks) == 1) == near
    assert len(moved) == int(near)
    if near:
        small = plan.placements[moved[0]]
        assert not racks & {rack[name] for name in small.nodes}
        assert small.gpus == {view.types[0]: 1}


def forkable(copies: int, tasks: int, **more: Any) -> View:
    """Three nodes with one GPU each, of speeds 4, 2 and 2, and a job of one GPU."""
    nodes = nodes_of([[1, 0], [0, 1], [0, 1]])
    jobs = jobs_of([[[4.0], [2.0]]], **more)
    jobs = replace(jobs, copies=np.array([copies]), tasks=np.array([tasks]))
    return view_of(nodes, jobs, (1,))


def test_a_job_that_may_be_forked_gets_copies_on_nodes_that_no_job_has() -> None:
    plan, state = decide(forkable(3, 1), {})
    placement = plan.placements["j0"]
    assert placement.copies == 3
    assert placement.shares == pytest.approx((0.5, 0.25, 0.25))
    # Once it runs so it stays so, and it is still one job with its main on the fastest GPU.
    held = [(0, 0, 0, 1), (0, 1, 1, 1), (0, 2, 1, 1)]
    again, _ = decide(forkable(3, 1, held=held), json.loads(json.dumps(state)))
    assert again.placements["j0"].nodes == placement.nodes
    assert decide(forkable(1, 1), {})[0].placements["j0"].copies == 1


def test_a_job_of_fixed_tasks_is_dealt_over_nodes_and_not_averaged() -> None:
    placement = decide(forkable(3, 2), {})[0].placements["j0"]
    assert placement.copies == 1
    assert decide(forkable(3, 4), {})[0].placements["j0"].shares == pytest.approx((0.5, 0.25, 0.25))


def test_a_copy_gives_its_node_to_a_job_that_would_wait() -> None:
    held = [(0, 0, 0, 1), (0, 1, 1, 1), (0, 2, 1, 1)]
    nodes = nodes_of([[1, 0], [0, 1], [0, 1]])
    jobs = jobs_of([[[4.0], [2.0]], [[0.0], [2.0]]], held=held)
    view = view_of(nodes, replace(jobs, copies=np.array([3, 1])), (1,))
    plan, _ = decide(view, {"forked": {"j0": 3}})
    assert set(plan.placements) == {"j0", "j1"}
    assert plan.placements["j0"].copies == 2
