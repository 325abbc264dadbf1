"""Hare: what must hold of its plans on random views, how tasks are dealt, and what it comes to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar import policies
from slurm_hadar.domain.dealing import deal, dealt_rate, seconds
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import View
from slurm_hadar.policies.hare.completion import with_dealt_rounds
from slurm_hadar.policies.hare.policy import queues
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.workload import Workload
from slurm_hadar.testing import NOW, ROUND_S, jobs_of, nodes_of, place_of, view_of
from slurm_hadar.testing import check_plan as check
from slurm_hadar.testing.strategies import views

pytestmark = pytest.mark.filterwarnings("error")

_QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
decide = policies.get("hare")


@st.composite
def dealable(draw: st.DrawFn, /, **more: Any) -> View:
    """Random views whose jobs have tasks and may be forked, some of them."""
    view = draw(views(**more))
    number = len(view.jobs.ids)
    copies = draw(st.lists(st.integers(1, 4), min_size=number, max_size=number))
    tasks = draw(st.lists(st.sampled_from([1, 2, 3, 7]), min_size=number, max_size=number))
    jobs = replace(
        view.jobs, copies=np.array(copies, dtype=np.int64), tasks=np.array(tasks, dtype=np.int64)
    )
    options = {"exchange": draw(st.sampled_from([0.0, 0.02])), "weighted": draw(st.booleans())}
    return replace(view, jobs=jobs, options=options)


def whole(view: View, plan: Plan) -> None:
    """As for all policies, but that a dealt job is no gang: its tasks are, over all its seats."""
    jobs = view.jobs
    held = set(jobs.held[:, 0].tolist())
    plain: dict[str, Placement] = {}
    for job, id_ in enumerate(jobs.ids):
        if id_ not in plan.placements:
            continue
        one = plan.placements[id_]
        plain[id_] = replace(one, copies=1, shares=())
        if one.copies == 1:
            continue
        assert one.copies == len(one.nodes) == len(one.shares)
        assert sum(one.shares) == pytest.approx(1.0)
        if job in held and not jobs.movable[job]:
            continue
        assert one.copies <= jobs.copies[job]
        tasks = np.array(one.shares) * jobs.tasks[job]
        assert np.allclose(tasks, np.round(tasks)) and min(tasks) >= 1 - 1e-9, "no whole tasks"
        for (node, kind), count in place_of(view, one).items():
            assert jobs.rate[job, kind, view.counts.index(count)] > 0
            assert jobs.groups[job, view.nodes.group[node]]
    # A dealt job counts as several gangs of one node for the checks of nodes and capacity.
    rate = jobs.rate.copy()
    dealt = [job for job, id_ in enumerate(jobs.ids) if id_ in plan.placements
             and plan.placements[id_].copies > 1]  # fmt: skip
    sizes = {n for one in plan.placements.values() for n in (one.gpu_count,)}
    counts = tuple(sorted({*view.counts, *sizes}))
    wide = np.zeros((*rate.shape[:2], len(counts)))
    wide[:, :, [counts.index(n) for n in view.counts]] = rate
    wide[dealt] = 1.0
    most = jobs.max_nodes.copy()
    most[dealt] = 1000
    mixable = jobs.mixable.copy()
    mixable[dealt] = True
    looser = replace(jobs, rate=wide, max_nodes=most, mixable=mixable)
    check(replace(view, jobs=looser, counts=counts), replace(plan, placements=plain))


@given(dealable())
@_QUICK
def test_keeps_to_what_there_is(view: View) -> None:
    whole(view, decide(view, {})[0])


@given(dealable())
@_QUICK
def test_same_view_same_plan_and_state_goes_through_json(view: View) -> None:
    plan, state = decide(view, {})
    assert decide(view, {}) == (plan, state)
    assert decide(view, json.loads(json.dumps(state))) == decide(view, state)


@given(views())
@_QUICK
def test_without_tasks_it_places_gangs(view: View) -> None:
    plan, _ = decide(view, {})
    check(view, plan)
    assert all(one.copies == 1 for one in plan.placements.values())


@given(dealable(running=False, degenerate=False))
@_QUICK
def test_nobody_is_stopped_for_nothing(view: View) -> None:
    """A job that was dealt fewer GPUs than its tasks would take may leave room for somebody whose
    turn is before that of a running one: then that one stops, and for no other reason."""
    plan, state = decide(view, {})
    for number in range(1, 4):
        rows = [
            (job, node, kind, count)
            for job, id_ in enumerate(view.jobs.ids)
            if id_ in plan.placements
            for (node, kind), count in place_of(view, plan.placements[id_]).items()
        ]
        held = np.array(rows, dtype=np.int64).reshape(-1, 4)
        running = np.isin(np.arange(len(view.jobs.ids)), held[:, 0])
        jobs = replace(view.jobs, held=held, running=running, movable=np.ones_like(running))
        before = plan
        plan, state = decide(replace(view, now=NOW + number * ROUND_S, jobs=jobs), state)
        if set(before.placements) - set(plan.placements):
            assert set(plan.placements) - set(before.placements)


def test_room_that_is_too_small_for_a_waiting_job_is_not_kept_for_it() -> None:
    """The second job needs four GPUs of this type and two of one that no node has; two are free
    beside the first. The third, which runs there, comes after it and keeps its place."""
    rate = [[[1.0, 2.0], [0.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]]
    jobs = replace(
        jobs_of(rate),
        arrival_s=np.array([0.0, 1.0, 2.0]),
        copies=np.array([2, 1, 1]),
        tasks=np.array([7, 1, 1]),
        held=np.array([[0, 0, 0, 4], [2, 1, 0, 2]]),
        running=np.array([True, False, True]),
        movable=np.array([True, False, True]),
    )
    view = view_of(nodes_of([[4, 0], [2, 0]]), jobs, (2, 4), {"exchange": 0.0})
    plan, _ = decide(view, {})
    assert set(plan.placements) == {"j0", "j2"}


@pytest.mark.parametrize("name", ["hadar", "srtf"])
@given(view=dealable(degenerate=False))
@_QUICK
def test_another_policys_plan_is_completed_and_nobody_loses(name: str, view: View) -> None:
    plan, _ = policies.get(name)(view, {})
    more = with_dealt_rounds(view, plan)
    whole(view, more)
    assert set(plan.placements) <= set(more.placements)
    for job, id_ in enumerate(view.jobs.ids):
        if view.jobs.copies[job] == 1 or view.jobs.tasks[job] == 1:
            assert more.placements.get(id_) == plan.placements.get(id_)


def test_what_a_plan_leaves_spare_goes_to_rounds() -> None:
    view = one_job(7, (4.0, 2.0, 1.0), [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    plan, _ = policies.get("hadar")(view, {})
    assert plan.placements["j0"].gpus == {"fast": 1}
    placed = with_dealt_rounds(view, plan, 0.0).placements["j0"]
    assert placed.copies == 3 and np.allclose(placed.shares, (4 / 7, 2 / 7, 1 / 7))


def test_gpus_that_a_gang_gives_up_are_no_seats_of_its_rounds() -> None:
    # It cannot run on 2 GPUs alone: on n1 and n2 no task would be its own.
    held = [[0, 0, 0, 4], [0, 1, 0, 2], [0, 2, 0, 2]]
    jobs = jobs_of([[[0.0, 2.0, 2.0]]], held=held, max_nodes=4, running=True)
    jobs = replace(jobs, copies=np.array([4]), tasks=np.array([4]))
    view = view_of(nodes_of([[4], [4], [4]]), jobs, (2, 4, 8))
    kept = Placement({"fast": 4}, {"n0": {"fast": 4}})
    busy = replace(view, nodes=replace(view.nodes, gpus=np.array([[4], [2], [2]])))
    assert with_dealt_rounds(busy, Plan({"j0": kept})).placements == {"j0": kept}


def test_a_large_view_does_not_crash() -> None:
    rng = np.random.default_rng(0)
    rate = rng.choice([0.0, 1.0, 4.0], (2000, 3, 2))
    gpus = np.zeros((300, 3), dtype=np.int64)
    gpus[np.arange(300), np.arange(300) % 3] = 4
    jobs = jobs_of(rate, left=rng.lognormal(9, 1, 2000))
    jobs = replace(jobs, copies=np.full(2000, 8), tasks=rng.choice([1, 4, 8], 2000))
    view = view_of(nodes_of(gpus.tolist()), jobs, (1, 4))
    whole(view, decide(view, {})[0])


def one_job(tasks: int, rate: Sequence[float], gpus: Sequence[Sequence[int]], **more: Any) -> View:
    jobs = jobs_of([[[value] for value in rate]])
    jobs = replace(jobs, copies=np.array([8]), tasks=np.array([tasks]), **more)
    return view_of(nodes_of(gpus), jobs, (1,), {"exchange": 0.0})


@pytest.mark.parametrize(
    ("speeds", "tasks", "wanted"),
    [
        ([4.0, 2.0, 1.0], 7, (4, 2, 1)),
        ([4.0, 2.0, 1.0], 1, (1, 0, 0)),
        ([10.0, 1.0], 8, (8, 0)),
        ([1.0, 0.0], 3, (3, 0)),
        ([0.0], 3, (0,)),
        ([], 3, ()),
    ],
)
def test_tasks_are_dealt_by_speed(speeds, tasks, wanted) -> None:
    assert deal(speeds, tasks) == wanted


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6), st.integers(0, 400))
def test_dealing_ahead_is_dealing_one_by_one(speeds: list[float], tasks: int) -> None:
    counts = [0] * len(speeds)
    for _ in range(tasks):
        counts[min(range(len(speeds)), key=lambda i: ((counts[i] + 1) / speeds[i], i))] += 1
    assert deal(speeds, tasks) == tuple(counts)


def test_a_round_of_more_tasks_than_anybody_could_count_is_dealt_at_once() -> None:
    got = deal([3.0, 1.0, 0.0, 2.0], 6 * 10**15)
    assert sum(got) == 6 * 10**15 and abs(got[0] - 3 * 10**15) <= 10**4 and got[2] == 0


@given(st.lists(st.floats(0.1, 50.0), min_size=1, max_size=4), st.integers(1, 9))
def test_no_other_dealing_is_faster(speeds: list[float], tasks: int) -> None:
    got = deal(speeds, tasks)
    assert sum(got) == tasks
    best = min(
        seconds(speeds, counts)
        for counts in np.ndindex(*(tasks + 1,) * len(speeds))
        if sum(counts) == tasks
    )
    assert seconds(speeds, got) == pytest.approx(best)


def test_a_fast_gpu_gets_several_tasks_and_a_useless_one_none() -> None:
    view = one_job(7, (4.0, 2.0, 1.0), [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    placed = decide(view, {})[0].placements["j0"]
    assert placed.copies == 3 and np.allclose(placed.shares, (4 / 7, 2 / 7, 1 / 7))
    assert "4 on 1 x fast of n0, 2 on 1 x middle of n1, 1 on 1 x slow of n2" in placed.reason
    # Eight tasks: all on the fast GPU in 8, or seven there and one in 10 on the slow one.
    view = one_job(8, (10.0, 0.0, 1.0), [[1, 0, 0], [0, 0, 1]])
    placed = decide(view, {})[0].placements["j0"]
    assert placed.gpus == {"fast": 1} and placed.copies == 1


def test_who_has_received_least_comes_first_and_the_running_job_gives_way() -> None:
    rate = [[[1.0]], [[1.0]]]
    # One GPU at reference speed: 5,000 s of service are the second queue.
    jobs = jobs_of(rate, total=[36_000.0] * 2, left=[31_000.0, 36_000.0], held=[(0, 0, 0, 1)])
    view = view_of(nodes_of([[1]]), jobs)
    plan, _ = decide(view, {})
    assert set(plan.placements) == {"j1"}
    assert "queue 2" in plan.waiting["j0"]
    bound = replace(view, jobs=replace(jobs, movable=np.array([False, True])))
    assert set(decide(bound, {})[0].placements) == {"j0"}


def test_service_counts_speeds_and_weights() -> None:
    # 8,000 samples at 4/s are 2,000 s of the best GPU, at 1/s 8,000.
    jobs = jobs_of([[[4.0], [1.0]], [[1.0], [0.5]]], total=[9_000.0] * 2, left=[1_000.0] * 2)
    view = view_of(nodes_of([[1, 1]]), replace(jobs, weight=np.array([1.0, 2.0])))
    assert queues(view, (3250.0, 7200.0, 18000.0)).tolist() == [0, 2]
    assert queues(view, (3250.0, 7200.0, 18000.0), weighted=True).tolist() == [0, 1]


def test_nothing_to_run_on_is_reported() -> None:
    empty = replace(nodes_of([]), gpus=np.zeros((0, 2), dtype=np.int64))
    plan, _ = decide(view_of(empty, jobs_of([[[1.0], [1.0]]])), {})
    assert set(plan.waiting) == {"j0"} and not plan.placements
    plan, _ = decide(view_of(nodes_of([[4]]), jobs_of([[[0.0]]])), {})
    assert plan.waiting == {"j0": "no GPU type and count that it can run with"}
    plan, _ = decide(view_of(nodes_of([[4]]), jobs_of(np.zeros((0, 1, 1)))), {})
    assert plan.notes


@pytest.mark.parametrize("options", [{"exchange": 1.0}, {"weighted": "much"}, {"queues": "5,1"}])
def test_options_that_make_no_sense_are_named(options: Mapping[str, object]) -> None:
    view = view_of(nodes_of([[1]]), jobs_of([[[1.0]]]), options=options)
    with pytest.raises(UsageError, match="policy option"):
        decide(view, {})


def test_the_simulation_charges_the_dealt_round() -> None:
    work = Workload(
        name="one",
        types=("a", "b"),
        counts=(1,),
        ids=("0",),
        arrival_s=np.zeros(1),
        request=np.ones(1, dtype=np.int64),
        total=np.array([7_000.0]),
        rate=np.array([[[5.0], [2.0]]]),
        weight=np.ones(1),
        models=("",),
        max_nodes=np.ones(1, dtype=np.int64),
        cpus_per_gpu=np.zeros(1),
        mem_per_gpu_mb=np.zeros(1),
        copies=np.array([2]),
        tasks=np.array([3]),
    )
    out = simulate(
        work,
        cluster.build({"a": 1, "b": 1}, 1),
        decide,
        RoundSetting(costs=Costs(), clock=Clock(0.0), options={"exchange": 0.0}),
    )
    # Three tasks 2:1, so a round of 3 takes max(2 / 5, 1 / 2) s: 6 a second.
    assert out.finish_s[0] == pytest.approx(7_000.0 / 6.0)


def test_a_gpu_without_a_task_makes_a_job_no_faster() -> None:
    assert dealt_rate([4.0], [2], 2) == pytest.approx(4.0)
    assert dealt_rate([4.0, 4.0], [2, 2], 2) == pytest.approx(4.0)
    assert dealt_rate([4.0, 4.0], [2, 2], 4) == pytest.approx(8.0)
    assert dealt_rate([4.0, 1.0], [1, 1], 5) == pytest.approx(5.0)
    assert dealt_rate([0.0, 1.0], [1, 1], 3) == pytest.approx(1.0)
