"""What must hold of the plans of the policies that place jobs node by node, on random views."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar import policies
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import View
from slurm_hadar.policies.hadar.settings import UTILITIES
from slurm_hadar.testing import NOW, applied, crowd, jobs_of, nodes_of, places, view_of
from slurm_hadar.testing import check_plan as check
from slurm_hadar.testing.strategies import views

pytestmark = pytest.mark.filterwarnings("error")

_QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_BASELINES = ("fifo", "srtf")

_OPTIONS: st.SearchStrategy[Mapping[str, object]] = st.fixed_dictionaries(
    {},
    optional={
        "utility": st.sampled_from(UTILITIES),
        "preempt": st.booleans(),
        "beam": st.sampled_from([1, 2, 8]),
        "branch": st.integers(1, 3),
        "min_stay_s": st.sampled_from([0.0, 600.0]),
        "least_gain": st.sampled_from([0.0, 0.1]),
        "gain_over_cost": st.sampled_from([0.0, 2.0]),
        "patience": st.sampled_from([0.0, 0.5, 1.0]),
        "critical": st.sampled_from([0.0, 0.8, 10.0]),
        "communication": st.sampled_from([0.0, 0.05]),
    },
)


@given(views(options=_OPTIONS))
@_QUICK
def test_hadar_keeps_to_what_there_is(view: View) -> None:
    plan, _ = policies.get("hadar")(view, {})
    check(view, plan)


@pytest.mark.parametrize("name", _BASELINES)
@given(view=views())
@_QUICK
def test_baselines_keep_to_what_there_is(name: str, view: View) -> None:
    plan, _ = policies.get(name)(view, {})
    check(view, plan)
    held = {view.jobs.ids[job] for job in view.jobs.held[:, 0].tolist()}
    assert held <= set(plan.placements), "a baseline stops nobody"


@given(views(options=_OPTIONS))
@_QUICK
def test_same_view_same_plan(view: View) -> None:
    decide = policies.get("hadar")
    first, second = decide(view, {}), decide(view, {})
    assert first == second


@given(views(options=st.just({"preempt": False}), degenerate=False))
@_QUICK
def test_second_round_changes_nothing(view: View) -> None:
    decide = policies.get("hadar")
    first, state = decide(view, {})
    after = applied(view, first)
    second, _ = decide(after, state)
    assert places(after, second) == places(view, first)


@given(views(options=st.just({"min_stay_s": 0.0, "preempt": False}), degenerate=False))
@_QUICK
def test_second_round_changes_nothing_even_if_moves_are_allowed_at_once(view: View) -> None:
    decide = policies.get("hadar")
    first, state = decide(view, {})
    after = applied(view, first)
    second, _ = decide(after, state)
    assert places(after, second) == places(view, first)


@pytest.mark.parametrize("seed", range(12))
def test_a_crowd_settles_at_once_and_after_some_have_ended(seed: int) -> None:
    decide = policies.get("hadar")
    view = crowd(seed, {"min_stay_s": 0.0, "preempt": False})
    for _ in range(3):
        plan, _ = decide(view, {})
        check(view, plan)
        after = applied(view, plan)
        again, _ = decide(after, {})
        assert places(after, again) == places(view, plan)
        # A few running jobs end; the others go on from where they are.
        ended = np.flatnonzero(after.jobs.running)[seed % 3 :: 4]
        rate = after.jobs.rate.copy()
        rate[ended] = 0.0
        held = after.jobs.held[~np.isin(after.jobs.held[:, 0], ended)]
        running = after.jobs.running & ~np.isin(np.arange(len(rate)), ended)
        view = replace(after, jobs=replace(after.jobs, rate=rate, held=held, running=running))


@given(views(running=False, degenerate=False))
@_QUICK
def test_no_gpu_is_idle_that_a_waiting_job_could_use(view: View) -> None:
    """As seen by a policy that takes anything: shortest first finds no place for those left."""
    plan, _ = policies.get("hadar")(view, {})
    after = applied(view, plan)
    smallest = np.where(after.jobs.rate > 0, 1.0, 0.0)
    more, _ = policies.get("srtf")(replace(after, jobs=replace(after.jobs, rate=smallest)), {})
    assert set(more.placements) == set(plan.placements)


def test_a_node_that_shrank_is_given_to_nobody_else() -> None:
    # j0 holds four GPUs where two are left, and goes to the fast ones; j1 needs four.
    jobs = jobs_of([[[10.0], [1.0]], [[0.0], [1.0]]], held=[(0, 1, 1, 4)])
    view = view_of(nodes_of([[4, 0], [0, 2]]), jobs, counts=(4,))
    plan, _ = policies.get("hadar")(view, {})
    check(view, plan)
    assert plan.placements["j0"].gpus == {"fast": 4}
    assert "j1" in plan.waiting


@pytest.mark.parametrize("name", ["hadar", *_BASELINES])
def test_nothing_at_all(name: str) -> None:
    none = jobs_of(np.zeros((0, 2, 1)))
    plan, _ = policies.get(name)(view_of(nodes_of([[1, 1]]), none), {})
    assert not plan.placements
    assert not plan.waiting
    assert plan.notes
    empty = replace(nodes_of([]), gpus=np.zeros((0, 2), dtype=np.int64))
    plan, _ = policies.get(name)(view_of(empty, jobs_of([[[1.0], [1.0]]])), {})
    assert set(plan.waiting) == {"j0"}


def test_no_types_and_no_counts() -> None:
    nodes = replace(nodes_of([[1]]), gpus=np.zeros((1, 0), dtype=np.int64))
    for rate in (np.zeros((1, 0, 1)), np.zeros((1, 0, 0))):
        view = view_of(nodes, jobs_of(rate), counts=(1,) * rate.shape[2])
        plan, _ = policies.get("hadar")(view, {})
        assert set(plan.waiting) == {"j0"}


def test_priority_breaks_ties_and_then_age() -> None:
    one = nodes_of([[1]])
    twins = jobs_of([[[1.0]], [[1.0]], [[1.0]]], priority=[1.0, 2.0, 1.0])
    plan, _ = policies.get("hadar")(view_of(one, twins), {})
    assert set(plan.placements) == {"j1"}
    twins = jobs_of([[[1.0]], [[1.0]]], arrival_s=[NOW - 5.0, NOW - 500.0])
    plan, _ = policies.get("hadar")(view_of(one, twins), {})
    assert set(plan.placements) == {"j1"}


def test_priority_does_not_beat_payoff() -> None:
    jobs = jobs_of([[[1.0]], [[1.0]]], left=[360_000.0, 3_600.0], priority=[9.0, 0.0])
    view = view_of(nodes_of([[1]]), jobs, options={"critical": 10.0})
    plan, _ = policies.get("hadar")(view, {})
    assert set(plan.placements) == {"j1"}


def test_fifo_goes_by_priority_then_age_and_nobody_overtakes() -> None:
    jobs = jobs_of(
        [[[0.0, 1.0]], [[1.0, 0.0]], [[0.0, 1.0]]],
        arrival_s=[2.0, 3.0, 1.0],
        priority=[1.0, 0.0, 1.0],
    )
    view = view_of(nodes_of([[3]]), jobs, counts=(1, 2))
    plan, _ = policies.get("fifo")(view, {})
    assert set(plan.placements) == {"j2"}
    assert "j0" in plan.waiting["j1"]
    plan, _ = policies.get("srtf")(view, {})
    assert set(plan.placements) == {"j0", "j1"} or set(plan.placements) == {"j2", "j1"}


def test_unknown_policy() -> None:
    with pytest.raises(UsageError, match="there is no policy 'nonsense'; known: "):
        policies.get("nonsense")


@pytest.mark.parametrize("name", policies.names())
def test_every_name_leads_to_a_policy(name: str) -> None:
    assert callable(policies.get(name))
