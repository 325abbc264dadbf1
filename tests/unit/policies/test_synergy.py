"""Synergy: CPUs and memory by need, nobody below his fair share."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synergy_views import CURVES, HUNGRY, LIGHT, MEMORY, MIDDLE, factor, given_cpus, servers

from slurm_hadar import policies
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.traits import CpuTrait
from slurm_hadar.domain.view import View
from slurm_hadar.policies.synergy.completion import at_best, at_fair_share, with_cpus_and_memory
from slurm_hadar.policies.synergy.settings import ORDERS
from slurm_hadar.testing import applied, crowd, held_by, place_of
from slurm_hadar.testing import check_plan as check
from slurm_hadar.testing.strategies import views

pytestmark = pytest.mark.filterwarnings("error")

_QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = ("synergy_tune", "synergy_opt", "gpu_proportional")
_ROUNDING = 1e-3

_OPTIONS: st.SearchStrategy[Mapping[str, object]] = st.fixed_dictionaries(
    {},
    optional={
        "order": st.sampled_from(ORDERS),
        "preempt": st.booleans(),
        "leftover": st.booleans(),
        "gain_over_cost": st.sampled_from([0.0, 2.0]),
        "wrap": st.sampled_from(["", "", "", "srtf", "hadar", "tiresias"]),
    },
)


@st.composite
def beside_views(
    draw: st.DrawFn, options: st.SearchStrategy[Mapping[str, object]] = _OPTIONS
) -> View:
    """Random views that tell how speed hangs on CPUs and memory, in any way."""
    view = draw(views(options=options))
    jobs = len(view.jobs.ids)
    cpus = np.array(sorted(draw(st.sets(st.sampled_from([1.0, 2.0, 3.0, 5.5, 9.0]), min_size=1))))
    mem = np.array(sorted(draw(st.sets(st.sampled_from([1.0, 4.0, 9.5, 30.0]), min_size=1))))

    def row(of: st.SearchStrategy[float], length: int = jobs) -> np.ndarray:
        return np.array(draw(st.lists(of, min_size=length, max_size=length)), dtype=float)

    cells = row(st.sampled_from([0.1, 0.5, 1.0, 1.5, 3.0]), jobs * len(cpus) * len(mem))
    least = row(st.sampled_from([0.5, 1.0, 2.0])), row(st.sampled_from([1.0, 3.0]))
    most = least[0] + row(st.sampled_from([0.0, 1.0, 8.0])), least[1] + row(st.sampled_from([0, 9]))
    now = row(st.sampled_from([0.0, 1.0, 2.0])) * view.jobs.running
    return replace(
        view,
        jobs=replace(
            view.jobs,
            cpu_sensitivity=CpuTrait(
                cpus,
                mem,
                cells.reshape(jobs, len(cpus), len(mem)),
                *(least[0], most[0], least[1], most[1]),
                present_cpus=now,
                present_mem_mb=now,
            ),
        ),
    )


def per_gpu(view: View, job: int, placement: Placement) -> tuple[float, float]:
    """CPUs and MB of each of a job's GPUs under this plan."""
    if placement.cpus_per_gpu is not None and placement.mem_per_gpu_mb is not None:
        return placement.cpus_per_gpu, placement.mem_per_gpu_mb
    return present(view, job)


def present(view: View, job: int) -> tuple[float, float]:
    trait = view.jobs.cpu_sensitivity
    assert trait is not None
    if trait.present_cpus[job] > 0:
        return float(trait.present_cpus[job]), float(trait.present_mem_mb[job])
    return float(view.jobs.cpus_per_gpu[job]), float(view.jobs.mem_per_gpu_mb[job])


def check_beside(view: View, plan: Plan) -> None:
    """GPUs as in :func:`check`; CPUs and memory as they are given, and never too few of them."""
    none = np.zeros(len(view.jobs.ids))
    check(replace(view, jobs=replace(view.jobs, cpus_per_gpu=none, mem_per_gpu_mb=none)), plan)
    trait = view.jobs.cpu_sensitivity
    assert trait is not None
    if not (view.nodes.cpus.any() and view.nodes.mem_mb.any()):
        assert all(p.cpus_per_gpu is None for p in plan.placements.values())
        return
    left = np.stack([view.nodes.cpus, view.nodes.mem_mb], axis=1).astype(float)
    held = held_by(view)
    order = [(row, plan.placements[id_]) for row, id_ in enumerate(view.jobs.ids)
             if id_ in plan.placements]  # fmt: skip
    stay = [
        (row, p)
        for row, p in order
        if place_of(view, p) == held.get(row) and per_gpu(view, row, p) == present(view, row)
    ]
    for row, placement in stay:
        _take(view, row, placement, left)
    left = np.maximum(left, 0.0)
    for row, placement in order:
        if (row, placement) in stay:
            continue
        _take(view, row, placement, left)
        if placement.cpus_per_gpu is not None:
            assert trait.least_cpus[row] - 1e-6 <= placement.cpus_per_gpu
            assert placement.cpus_per_gpu <= trait.most_cpus[row] + 1e-6
            memory = placement.mem_per_gpu_mb or 0
            assert trait.least_mem_mb[row] <= memory <= trait.most_mem_mb[row]
    assert (left >= -_ROUNDING).all(), "more CPUs or memory are given than there are"


def _take(view: View, row: int, placement: Placement, left: np.ndarray) -> None:
    cpus, mem = per_gpu(view, row, placement)
    for (node, _), count in place_of(view, placement).items():
        left[node] -= (count * cpus, count * mem)


@pytest.mark.parametrize("name", NAMES)
@given(view=beside_views())
@_QUICK
def test_nothing_is_given_twice(name: str, view: View) -> None:
    decide = policies.get(name)
    plan, state = decide(view, {})
    check_beside(view, plan)
    assert decide(view, {}) == (plan, state)
    assert json.loads(json.dumps(state)) == state
    again = applied(view, plan)
    check_beside(again, decide(again, state)[0])


@pytest.mark.parametrize("name", NAMES)
@given(view=views(options=_OPTIONS))
@_QUICK
def test_without_knowledge_everybody_has_what_he_asks_for(name: str, view: View) -> None:
    plan, _ = policies.get(name)(view, {})
    check(view, plan)
    assert all(p.cpus_per_gpu is None for p in plan.placements.values())


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 4])), max_size=14),
    st.sampled_from(NAMES),
    st.sampled_from(ORDERS),
)
@_QUICK
def test_no_job_is_slower_than_with_its_fair_share(
    nodes: int, jobs: list[tuple[int, int]], name: str, order: str
) -> None:
    view = servers(nodes, [(CURVES[kind], gpus) for kind, gpus in jobs], order=order)
    plan, _ = policies.get(name)(view, {})
    for row, id_ in enumerate(view.jobs.ids):
        if id_ in plan.placements:
            assert factor(view, row, plan.placements[id_]) >= 1.0 - 1e-9
    used = sum(p.gpu_count for p in plan.placements.values())
    for id_ in plan.waiting:
        gpus = jobs[view.jobs.ids.index(id_)][1]
        assert used + gpus > 8 * nodes or gpus > 1, "a GPU is idle for want of CPUs"


def test_a_job_gets_its_best_case_where_there_is_room() -> None:
    plan, _ = policies.get("synergy_tune")(servers(1, [(HUNGRY, 1), (LIGHT, 1)]), {})
    assert given_cpus(plan, "j0") == (12.0, 20)
    assert given_cpus(plan, "j1") == (1.0, 20)
    assert "no faster with more" in plan.placements["j0"].reason


def test_the_baseline_gives_each_gpu_its_share() -> None:
    view = servers(1, [(HUNGRY, 2), (LIGHT, 1)])
    plan, _ = policies.get("gpu_proportional")(view, {})
    assert given_cpus(plan, "j0") == given_cpus(plan, "j1") == (3.0, 60)


def test_jobs_above_their_share_give_way_to_one_that_has_gpus_only() -> None:
    # 12 + 12 CPUs are taken when the third comes: one of the two goes back to 3.
    view = servers(1, [(HUNGRY, 1), (HUNGRY, 1), (HUNGRY, 1)], leftover=False)
    plan, _ = policies.get("synergy_tune")(view, {})
    assert sorted(given_cpus(plan, f"j{n}")[0] for n in range(3)) == [3.0, 3.0, 12.0]
    more = servers(1, [(HUNGRY, 1)] * 3)
    plan, _ = policies.get("synergy_tune")(more, {})
    assert sum(given_cpus(plan, f"j{n}")[0] for n in range(3)) == 24.0


def test_memory_moves_like_cpus() -> None:
    view = servers(1, [(MEMORY, 4), (LIGHT, 4)], leftover=False)
    plan, _ = policies.get("synergy_tune")(view, {})
    assert given_cpus(plan, "j0") == (3.0, 60)
    assert given_cpus(plan, "j1") == (1.0, 20)
    view = servers(1, [(MEMORY, 2), (LIGHT, 4), (LIGHT, 2)], leftover=False)
    plan, _ = policies.get("synergy_tune")(view, {})
    assert given_cpus(plan, "j0") == (3.0, 120)


def test_opt_gives_cpus_where_they_do_most() -> None:
    # 24 CPUs, 8 jobs: six need 1 each; of the 18 left the hungry one makes 12 worth 2.
    jobs = [(MIDDLE, 1), (HUNGRY, 1), *[(LIGHT, 1)] * 6]
    plan, _ = policies.get("synergy_opt")(servers(1, jobs), {})
    assert given_cpus(plan, "j1")[0] == 12.0
    assert given_cpus(plan, "j0")[0] == 6.0


def test_a_running_job_changes_its_cpus_only_where_that_pays() -> None:
    view = servers(1, [(HUNGRY, 1)], held=[(0, 0, 0, 1)], present=[(3.0, 60.0)], left=30.0)
    plan, _ = policies.get("synergy_tune")(view, {})
    assert given_cpus(plan, "j0") == (3.0, 60)
    assert plan.placements["j0"].reason.startswith("stays with")
    view = servers(1, [(HUNGRY, 1)], held=[(0, 0, 0, 1)], present=[(3.0, 60.0)])
    plan, _ = policies.get("synergy_tune")(view, {})
    assert given_cpus(plan, "j0") == (12.0, 20)


def test_a_running_job_leaves_for_cpus_on_another_node() -> None:
    held = [(0, 0, 0, 1), (1, 0, 0, 4)]
    view = servers(
        2,
        [(HUNGRY, 1), (HUNGRY, 4)],
        held=held,
        present=[(3.0, 60.0), (5.0, 60.0)],
        movable=[True, False],
    )
    plan, _ = policies.get("synergy_tune")(view, {})
    assert list(plan.placements["j0"].nodes) == ["n1"]
    assert plan.placements["j1"].cpus_per_gpu is None


def test_jobs_change_nodes_where_one_has_cpus_and_the_other_none() -> None:
    jobs = [(LIGHT, 1)] * 8 + [(HUNGRY, 1)] * 8
    held = [(row, row // 8, 0, 1) for row in range(16)]
    now = [(1.0, 20.0)] * 8 + [(3.0, 20.0)] * 8
    for left, moved in ((360_000.0, True), (600.0, False)):
        view = servers(2, jobs, held=held, present=now, left=left)
        plan, _ = policies.get("synergy_tune")(view, {})
        check_beside(view, plan)
        nodes = [next(iter(plan.placements[f"j{row}"].nodes)) for row in range(16)]
        assert ("n1" in nodes[:8]) == ("n0" in nodes[8:]) == moved
        assert (max(given_cpus(plan, f"j{row}")[0] for row in range(8, 16)) > 3.0) == moved
        plain = replace(view, options={"leftover": False})
        assert policies.get("synergy_tune")(plain, {})[0].placements["j8"].nodes == {
            "n1": {"fast": 1}
        }


def test_fifo_stops_nobody_where_preemption_is_off() -> None:
    held = [(1, 0, 0, 8)]
    for preempt, runs in ((True, "j0"), (False, "j1")):
        view = servers(
            1, [(LIGHT, 8), (LIGHT, 8)], held=held, present=[(0, 0), (3, 60)], preempt=preempt
        )
        plan, _ = policies.get("synergy_tune")(view, {})
        assert list(plan.placements) == [runs]
        assert ("stopped" in plan.waiting.get("j1", "")) == preempt


@pytest.mark.parametrize("inner", ["fifo", "srtf", "hadar", "gavel_las", "tiresias"])
def test_another_policys_gpus_get_their_cpus(inner: str) -> None:
    jobs = [(HUNGRY, 1), (LIGHT, 4), (MIDDLE, 2), (LIGHT, 8), (MEMORY, 1)]
    view = servers(2, jobs, wrap=inner)
    plan, state = policies.get("synergy_tune")(view, {})
    check_beside(view, plan)
    assert len(plan.placements) == 5
    assert all(factor(view, row, plan.placements[f"j{row}"]) >= 1.0 for row in range(5))
    assert list(state) == [inner]


def test_views_for_other_policies() -> None:
    view = servers(1, [(HUNGRY, 1), (LIGHT, 2)])
    assert at_best(view).jobs.rate.max(axis=(1, 2)).tolist() == pytest.approx([3.0, 1.0])
    easier = at_fair_share(view)
    assert easier.jobs.rate.max(axis=(1, 2)).tolist() == [1.0, 1.0]
    assert easier.jobs.cpus_per_gpu.tolist() == [3.0, 1.0]
    assert easier.jobs.mem_per_gpu_mb.tolist() == [20.0, 20.0]
    plan = Plan({"j0": Placement({"fast": 1}, {"n0": {"fast": 1}}, reason="first")})
    assert given_cpus(with_cpus_and_memory(view, plan), "j0") == (12.0, 20)
    assert (
        with_cpus_and_memory(replace(view, jobs=replace(view.jobs, cpu_sensitivity=None)), plan)
        == plan
    )


def test_no_nodes_and_no_rates_are_reported() -> None:
    view = servers(0, [(HUNGRY, 1)])
    nothing = servers(1, [(HUNGRY, 1)])
    nothing = replace(nothing, jobs=replace(nothing.jobs, rate=nothing.jobs.rate * 0))
    for name in NAMES:
        for each in (view, nothing):
            plan, _ = policies.get(name)(each, {})
            assert not plan.placements and all(plan.waiting.values())
        assert policies.get(name)(servers(1, []), {})[0].notes


@pytest.mark.parametrize(
    "options",
    [{"order": "lifo"}, {"leftover": 3}, {"gain_over_cost": "x"}, {"wrap": "synergy_opt"}],
)
def test_wrong_options_are_reported(options: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        policies.get("synergy_tune")(servers(1, [(LIGHT, 1)], **options), {})


@pytest.mark.parametrize("name", NAMES)
def test_two_thousand_jobs_are_served(name: str) -> None:
    random = np.random.default_rng(1)
    jobs = [
        (CURVES[int(kind)], int(gpus))
        for kind, gpus in zip(
            random.integers(0, 4, 2000), random.choice([1, 2, 4, 8], 2000), strict=True
        )
    ]
    view = servers(250, jobs, order="las")
    plan, _ = policies.get(name)(view, {})
    check_beside(view, plan)
    assert sum(p.gpu_count for p in plan.placements.values()) == 2000
    check(*((v := crowd(0, {})), policies.get(name)(v, {})[0]))
