"""HadarE: what must hold of its plans on random views, and what forking comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar import policies
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import RoundSetting, simulate
from slurm_hadar.simulator.workload import Workload
from slurm_hadar.testing import NOW, ROUND_S, jobs_of, nodes_of, place_of, view_of
from slurm_hadar.testing.strategies import views

pytestmark = pytest.mark.filterwarnings("error")

_QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
decide = policies.get("hadare")


@st.composite
def forkable(draw: st.DrawFn, /, **more: Any) -> View:
    """Random views whose jobs may be forked, some of them."""
    view = draw(views(**more))
    number = len(view.jobs.ids)
    copies = draw(st.lists(st.integers(1, 4), min_size=number, max_size=number))
    averaging = draw(st.sampled_from([0.0, 0.02, 0.5]))
    stay = draw(st.sampled_from([0.0, 600.0]))
    options = {"averaging": averaging, "min_stay_s": stay}
    jobs = replace(view.jobs, copies=np.array(copies, dtype=np.int64))
    return replace(view, jobs=jobs, options=options)


def seats(view: View, id_: str) -> set[tuple[int, int, int]]:
    job = view.jobs.ids.index(id_)
    return {(node, kind, n) for j, node, kind, n in view.jobs.held.tolist() if j == job}


def check(view: View, plan: Plan) -> None:
    jobs = view.jobs
    assert sorted([*plan.placements, *plan.waiting]) == sorted(jobs.ids)
    assert all(plan.waiting.values())
    left = {"gpus": view.nodes.gpus.astype(float), "cpus": view.nodes.cpus.astype(float)}
    left["mem"] = view.nodes.mem_mb.astype(float)
    came: list[tuple[int, dict[tuple[int, int], int]]] = []
    for job, id_ in enumerate(jobs.ids):
        held = {(node, kind): n for node, kind, n in seats(view, id_)}
        if held and not jobs.movable[job]:
            assert id_ in plan.placements, "a job that may not be moved was stopped"
        if id_ not in plan.placements:
            continue
        placement = plan.placements[id_]
        assert placement.reason
        place = place_of(view, placement)
        assert sum(place.values()) == placement.gpu_count
        _check_shares(view, job, placement)
        if place == held:
            _take(view, job, place, left)
            continue
        assert not held or jobs.movable[job], "a job that may not be moved was moved"
        _check_new(view, job, placement, place)
        came.append((job, place))
    left = {name: np.maximum(free, 0.0) for name, free in left.items()}
    for job, place in came:
        _take(view, job, place, left)
    assert all((free >= -1e-3).all() for free in left.values()), "more is given than there is"


def _check_shares(view: View, job: int, placement: Placement) -> None:
    if placement.copies == 1:
        assert placement.shares == ()
        return
    assert placement.copies == len(placement.nodes) == len(placement.shares)
    assert sum(placement.shares) == pytest.approx(1.0, abs=1e-9)
    assert min(placement.shares) > 0.0
    rates = []
    for gpus in placement.nodes.values():
        ((kind, count),) = gpus.items()
        column = view.counts.index(count)
        rates.append(view.jobs.rate[job, view.types.index(kind), column])
    if min(rates) > 0:
        parts = np.array(rates) / sum(rates)
        assert np.allclose(parts, placement.shares), "a share is not in proportion to the speed"


def _check_new(
    view: View, job: int, placement: Placement, place: Mapping[tuple[int, int], int]
) -> None:
    jobs, nodes = view.jobs, {node for node, _ in place}
    assert all(jobs.groups[job, view.nodes.group[node]] for node in nodes)
    assert placement.copies <= jobs.copies[job], "more copies than allowed"
    if placement.copies > 1:
        for (_, kind), count in place.items():
            assert jobs.rate[job, kind, view.counts.index(count)] > 0, "a copy cannot run there"
    else:
        assert len(nodes) <= jobs.max_nodes[job]
        column = view.counts.index(sum(place.values()))
        assert all(jobs.rate[job, kind, column] > 0 for _, kind in place)


def _take(
    view: View, job: int, place: Mapping[tuple[int, int], int], left: Mapping[str, np.ndarray]
) -> None:
    for (node, kind), count in place.items():
        left["gpus"][node, kind] -= count
        left["cpus"][node] -= count * view.jobs.cpus_per_gpu[job]
        left["mem"][node] -= count * view.jobs.mem_per_gpu_mb[job]


def applied(view: View, plan: Plan, trained: float = 0.0) -> View:
    """A round later; ``trained``: part of the work that is left and was done meanwhile."""
    rows: list[tuple[int, ...]] = []
    since = view.jobs.since_s.copy()
    for job, id_ in enumerate(view.jobs.ids):
        if id_ not in plan.placements:
            continue
        place = place_of(view, plan.placements[id_])
        rows += [(job, node, kind, count) for (node, kind), count in place.items()]
        if {(*at, n) for at, n in place.items()} != seats(view, id_):
            since[job] = view.now
    held = np.array(rows, dtype=np.int64).reshape(-1, 4)
    running = np.zeros(len(view.jobs.ids), dtype=bool)
    running[held[:, 0]] = True
    left = np.where(running, view.jobs.left * (1.0 - trained), view.jobs.left)
    jobs = replace(view.jobs, held=held, since_s=since, running=running, left=left)
    return replace(view, now=view.now + ROUND_S, jobs=jobs)


@given(forkable())
@_QUICK
def test_keeps_to_what_there_is(view: View) -> None:
    plan, _ = decide(view, {})
    check(view, plan)


@given(forkable(degenerate=False), st.integers(0, 2), st.booleans())
@_QUICK
def test_keeps_to_what_there_is_with_copies_running(
    view: View, pinned: int, forgotten: bool
) -> None:
    plan, state = decide(view, {})
    for step in range(4):
        view = applied(view, plan, trained=0.3)
        if len(view.jobs.ids) > pinned and step == 1:
            movable = view.jobs.movable.copy()
            movable[pinned] = False
            view = replace(view, jobs=replace(view.jobs, movable=movable))
        if len(view.jobs.ids) and step == 2:
            # The first job has become another one, that waits.
            others = view.jobs.held[view.jobs.held[:, 0] != 0]
            running = view.jobs.running & (np.arange(len(view.jobs.ids)) != 0)
            view = replace(view, jobs=replace(view.jobs, held=others, running=running))
        plan, state = decide(view, {} if forgotten else state)
        check(view, plan)


@given(forkable())
@_QUICK
def test_same_view_same_plan(view: View) -> None:
    first, second = decide(view, {}), decide(view, {})
    assert first == second


@given(forkable(degenerate=False))
@_QUICK
def test_copies_stay_where_they_are_when_nothing_changes(view: View) -> None:
    # Jobs that restart for nothing may change places, and copies of other sizes come out as even.
    view = replace(view, jobs=replace(view.jobs, restart_s=np.maximum(view.jobs.restart_s, 1.0)))
    first, state = decide(view, {})
    after = applied(view, first)
    second, _ = decide(after, state)
    for id_, placement in first.placements.items():
        if placement.copies > 1:
            assert second.placements[id_].nodes == placement.nodes


@given(forkable())
@_QUICK
def test_without_forks_it_is_hadar(view: View) -> None:
    view = replace(view, jobs=replace(view.jobs, copies=np.ones_like(view.jobs.copies)))
    # Jobs on several nodes that are no gang would be taken for copies, of which there are none.
    plan, _ = decide(view, {})
    hadar, _ = policies.get("hadar")(view, {})
    assert plan.placements == hadar.placements
    assert plan.waiting == hadar.waiting


@given(forkable(running=False, degenerate=False))
@_QUICK
def test_no_node_idles_that_a_copy_would_speed_up(view: View) -> None:
    """Nothing runs yet and averaging is free: a further copy always pays."""
    view = replace(view, options={"averaging": 0.0})
    plan, _ = decide(view, {})
    jobs = view.jobs
    gpus = view.nodes.gpus.astype(float)
    left = {"gpus": gpus, "cpus": view.nodes.cpus * 1.0, "mem": view.nodes.mem_mb * 1.0}
    for id_, placement in plan.placements.items():
        _take(view, jobs.ids.index(id_), place_of(view, placement), left)
    for id_, placement in plan.placements.items():
        job = jobs.ids.index(id_)
        gang = placement.copies == 1 and len(placement.nodes) > 1
        if gang or placement.copies >= jobs.copies[job] or jobs.weight[job] <= 0:
            continue
        for node, name in enumerate(view.nodes.names):
            if name in placement.nodes or not jobs.groups[job, view.nodes.group[node]]:
                continue
            for kind, column in np.argwhere(jobs.rate[job] > 0).tolist():
                count = view.counts[column]
                fits = left["gpus"][node, kind] >= count
                fits &= left["cpus"][node] >= count * jobs.cpus_per_gpu[job]
                fits &= left["mem"][node] >= count * jobs.mem_per_gpu_mb[job]
                assert not fits, f"{id_} could have a copy on {name}"


def _five(jobs: int, copies: int, left: float | Sequence[float] = 36_000.0, **more: Any) -> View:
    """Nodes of speeds 8, 5 and 3, one GPU each."""
    rate = np.broadcast_to(np.array([8.0, 5.0, 3.0])[None, :, None], (jobs, 3, 1))
    arrays = replace(jobs_of(rate, left=left, **more), copies=np.full(jobs, copies, dtype=np.int64))
    return view_of(nodes_of([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), arrays)


def test_one_job_gets_all_nodes_in_proportion_to_their_speed() -> None:
    plan, state = decide(_five(1, 8), {})
    placement = plan.placements["j0"]
    assert placement.copies == 3
    assert list(placement.nodes) == ["n0", "n1", "n2"]
    assert placement.shares == (8 / 16, 5 / 16, 3 / 16)
    assert "3 copies" in placement.reason
    assert state["forked"] == {"j0": 3}


def test_the_limit_of_copies_keeps_the_fastest_nodes() -> None:
    plan, _ = decide(_five(1, 2), {})
    assert list(plan.placements["j0"].nodes) == ["n0", "n1"]


@pytest.mark.parametrize(
    ("nodes", "need"),
    [
        ({"cpus": [8, 8, 3]}, {"cpus_per_gpu": 4.0}),
        ({"mem_mb": [8, 8, 3]}, {"mem_per_gpu_mb": 4.0}),
    ],
)
def test_a_copy_needs_its_cpus_and_memory(
    nodes: dict[str, list[int]], need: dict[str, float]
) -> None:
    view = replace(_five(1, 8, **need), nodes=nodes_of([[1, 0, 0], [0, 1, 0], [0, 0, 1]], **nodes))
    plan, _ = decide(view, {})
    assert list(plan.placements["j0"].nodes) == ["n0", "n1"]


def test_copies_on_one_node_share_its_cpus() -> None:
    """Two jobs on a node of two GPUs with CPUs for one copy beside the main copies."""
    rate = np.full((2, 1, 1), 1.0)
    jobs = replace(jobs_of(rate, cpus_per_gpu=4.0), copies=np.array([2, 2]))
    nodes = nodes_of([[1], [1], [2]], cpus=[4, 4, 4])
    plan, _ = decide(view_of(nodes, jobs), {})
    assert sorted(p.copies for p in plan.placements.values()) == [1, 2]


def test_copies_make_room_for_a_job_that_would_wait_and_stay_for_one_that_may_not_move() -> None:
    held = [(0, 0, 0, 1), (0, 1, 1, 1), (0, 2, 2, 1)]
    state: State = {"forked": {"j0": 3}}
    plan, _ = decide(_five(2, 3, held=held, since_s=NOW - 3600.0), state)
    assert not plan.waiting
    assert plan.placements["j0"].copies + plan.placements["j1"].copies == 3
    view = _five(2, 3, held=held, movable=[False, True])
    plan, _ = decide(view, state)
    assert set(plan.waiting) == {"j1"}
    assert plan.placements["j0"].copies == 3


def test_a_running_job_is_forked_only_where_that_pays_for_its_restart() -> None:
    held = [(0, 1, 1, 1), (1, 0, 0, 1)]
    for left, copies in ((5.0 * 100.0, 1), (5.0 * 7200.0, 2)):
        view = _five(2, 3, [left, 8.0 * 60.0], held=held, since_s=NOW - 3600.0)
        plan, _ = decide(view, {})
        assert plan.placements["j0"].copies == copies


def test_a_forked_job_may_become_a_gang() -> None:
    """Two copies of two slow GPUs each; two fast GPUs come free, on two nodes."""
    rate = [[[100.0], [1.0], [0.0]]]
    held = [(0, 2, 1, 2), (0, 3, 1, 2)]
    jobs = jobs_of(rate, held=held, max_nodes=2, mixable=True, since_s=NOW - 9e4)
    jobs = replace(jobs, copies=np.array([2]))
    nodes = nodes_of([[1, 0, 0], [1, 0, 0], [0, 2, 0], [0, 2, 0]])
    plan, state = decide(view_of(nodes, jobs, (2,)), {"forked": {"j0": 2}})
    placement = plan.placements["j0"]
    assert placement.gpus == {"fast": 2}
    assert placement.copies == 1
    assert placement.shares == ()
    assert state["forked"] == {}


def test_averaging_that_eats_the_gain_forks_nobody() -> None:
    view = replace(_five(1, 3), options={"averaging": 0.6})
    plan, _ = decide(view, {})
    assert plan.placements["j0"].copies == 1
    with pytest.raises(UsageError, match="averaging"):
        decide(replace(view, options={"averaging": 1.0}), {})


def test_simulated_copies_share_the_work_and_pay_for_averaging() -> None:
    pretend = cluster.parse("a=1,b=1,c=1", "1")
    none = np.zeros(1)
    one = Workload(
        "one", pretend.types, (1,), ("j0",), none, np.ones(1, np.int64), np.array([57_600.0]),
        np.array([[[8.0], [5.0], [3.0]]]), np.ones(1), ("",), np.ones(1, np.int64), none, none,
    )  # fmt: skip
    assert simulate(one, pretend, decide).finish_s[0] == pytest.approx(7200.0)
    out = simulate(one.forked(3), pretend, decide, RoundSetting(costs=Costs(10.0, copies_loss=0.1)))
    assert out.finish_s[0] == pytest.approx(3600.0 / 0.9)
    assert out.moves.sum() == 0
    assert out.utilization == pytest.approx(1.0)


def test_a_job_of_fixed_tasks_is_forked_onto_no_more_gpus_than_it_has_tasks() -> None:
    pretend = cluster.parse("a=1,b=1,c=1", "1")
    none = np.zeros(1)
    one = Workload(
        "one", pretend.types, (1,), ("j0",), none, np.ones(1, np.int64), np.array([57_600.0]),
        np.array([[[8.0], [8.0], [8.0]]]), np.ones(1), ("",), np.ones(1, np.int64), none, none,
    )  # fmt: skip
    averaged = simulate(one.forked(3), pretend, decide)
    assert averaged.finish_s[0] == pytest.approx(2400.0)
    dealt = simulate(replace(one.forked(3), tasks=np.array([2])), pretend, decide)
    assert dealt.finish_s[0] == pytest.approx(3600.0)
    assert dealt.utilization == pytest.approx(2 / 3)
