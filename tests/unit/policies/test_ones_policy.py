"""The ones policy: its plans are valid and settle, its batches pay, its memory is plain."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.traits import BatchTrait
from slurm_hadar.domain.view import View
from slurm_hadar.policies import get
from slurm_hadar.policies.batches import best_batches, goodput_of, with_batches
from slurm_hadar.policies.ones.limits import limits_of
from slurm_hadar.policies.ones.policy import decide
from slurm_hadar.policies.ones.progress import beta_of, factors
from slurm_hadar.testing import applied, crowd, jobs_of, nodes_of, places, view_of
from slurm_hadar.testing import check_plan as check
from slurm_hadar.testing.strategies import views

pytestmark = pytest.mark.filterwarnings("error")

_QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_OPTIONS: st.SearchStrategy[Mapping[str, object]] = st.fixed_dictionaries(
    {"generations": st.sampled_from([0, 1, 4])},
    optional={
        "min_stay_s": st.sampled_from([0.0, 600.0]),
        "population": st.sampled_from([0, 2, 9]),
        "theta": st.sampled_from([0.0, 0.3, 0.5]),
        "price": st.sampled_from([0.0, 3.0]),
        "preempt": st.booleans(),
        "limits": st.sampled_from(["noise", "paper"]),
        "utility": st.just("makespan"),
    },
)


@st.composite
def elastic(draw: st.DrawFn, degenerate: bool = True) -> View:
    """Views whose jobs may have several batches, some of them without a choice."""
    view = draw(views(options=_OPTIONS, degenerate=degenerate))
    jobs = view.jobs
    number = len(jobs.ids)
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    sizes = np.tile([32, 64, 128], (number, 1)) * rng.integers(0, 2, (number, 1))
    sizes[rng.random(number) < 0.3, 2] = 0
    gain = rng.choice([0.0, 0.7, 1.0, 1.6], (number, *jobs.rate.shape[1:], 3))
    gain[..., 0] = 1.0
    batches = BatchTrait(
        sizes=sizes,
        rate=jobs.rate[..., None] * gain,
        noise=rng.choice([0.0, 20.0, 1000.0, np.inf], number),
        base=sizes[:, 0].astype(float),
        present=np.where(jobs.running, sizes[np.arange(number), rng.integers(0, 3, number)], 0),
    )
    return replace(view, jobs=replace(jobs, batches=batches))


def check_batches(view: View, plan: object) -> None:
    """Every batch is one of the job's, and it can train with it there unless it did already."""
    held: dict[int, dict[str, int]]
    batches, held = view.jobs.batches, {}
    assert batches is not None
    for job, _, kind, count in view.jobs.held.tolist():
        held.setdefault(job, {}).setdefault(view.types[kind], 0)
        held[job][view.types[kind]] += count
    for id_, placement in plan.placements.items():  # type: ignore[attr-defined]
        job = view.jobs.ids.index(id_)
        if placement.batch is None:
            continue
        assert placement.batch in batches.sizes[job]
        assert placement.batch > 0
        if held.get(job) == dict(placement.gpus):
            continue
        column = view.counts.index(placement.gpu_count)
        at = int(np.flatnonzero(batches.sizes[job] == placement.batch)[0])
        assert all(
            batches.rate[job, view.types.index(kind), column, at] > 0 for kind in placement.gpus
        )


@given(elastic())
@_QUICK
def test_plans_keep_to_what_there_is(view: View) -> None:
    plan, state = decide(view, {})
    check(view, plan)
    check_batches(view, plan)
    assert state == json.loads(json.dumps(state))


@given(views(options=_OPTIONS))
@_QUICK
def test_views_without_batches_do(view: View) -> None:
    plan, _ = decide(view, {})
    check(view, plan)
    assert all(placement.batch is None for placement in plan.placements.values())


@given(elastic())
@_QUICK
def test_same_view_same_plan(view: View) -> None:
    assert decide(view, {}) == decide(view, {})


@given(elastic(degenerate=False))
@_QUICK
def test_nobody_is_stopped_where_that_is_not_allowed(view: View) -> None:
    view = replace(view, options={**view.options, "preempt": False})
    plan, _ = decide(view, {})
    held = {view.jobs.ids[job] for job in view.jobs.held[:, 0].tolist()}
    assert held <= set(plan.placements)


def test_nobody_is_stopped_on_a_node_that_holds_more_than_it_has() -> None:
    jobs = jobs_of([[[1.0]], [[1.0]]], held=[[0, 0, 0, 1], [1, 0, 0, 1]], movable=[False, True],
                   mem_per_gpu_mb=[3.0, 0.0])  # fmt: skip
    options = {"preempt": False, "generations": 0}
    plan, _ = decide(view_of(nodes_of([[2]], mem_mb=[0]), jobs, options=options), {})
    assert set(plan.placements) == {"j0", "j1"}


@given(elastic(degenerate=False))
@_QUICK
def test_second_round_changes_nothing(view: View) -> None:
    first, state = decide(view, {})
    after = _trained(applied(view, first, later_s=1.0), first)
    second, _ = decide(after, json.loads(json.dumps(state)))
    check(after, second)
    assert places(after, second) == places(view, first)
    assert {k: p.batch for k, p in first.placements.items()} == {
        k: p.batch for k, p in second.placements.items()
    }


@given(elastic(degenerate=False), st.integers(0, 6))
@_QUICK
def test_memory_of_another_queue_does_no_harm(view: View, later: int) -> None:
    plan, state = decide(view, {})
    after = _trained(applied(view, plan, later_s=600.0 * later), plan)
    check(after, decide(after, state)[0])
    fewer = nodes_of([[1] * view.nodes.gpus.shape[1]])
    nobody = replace(view.jobs, held=np.zeros((0, 4), dtype=np.int64))
    nobody = replace(nobody, running=np.zeros(len(nobody.ids), dtype=bool))
    smaller = replace(view, nodes=fewer, jobs=nobody)
    if view.nodes.group.max(initial=0) == 0:
        check(smaller, decide(smaller, state)[0])


def _trained(view: View, plan: object) -> View:
    """With the batches that the plan gave."""
    batches = view.jobs.batches
    assert batches is not None
    present = batches.present.copy()
    for id_, placement in plan.placements.items():  # type: ignore[attr-defined]
        if placement.batch is not None:
            present[view.jobs.ids.index(id_)] = placement.batch
    return replace(view, jobs=replace(view.jobs, batches=replace(batches, present=present)))


def _one(noise: float, **more: Any) -> View:
    """One job that trains 1.5 times as fast with twice the batch, on one GPU."""
    jobs = jobs_of([[[10.0]]], **more)
    batches = BatchTrait(
        sizes=np.array([[64, 128]]),
        rate=np.array([[[[10.0, 15.0]]]]),
        noise=np.array([noise]),
        base=np.array([64.0]),
        present=np.array([64 if "held" in more else 0]),
    )
    return view_of(nodes_of([[1]]), replace(jobs, batches=batches))


@pytest.mark.parametrize(("noise", "batch"), [(0.0, 64), (63.0, 64), (65.0, 128), (1e9, 128)])
def test_a_larger_batch_is_taken_only_where_goodput_rises(noise: float, batch: int) -> None:
    # (noise + 64) / (noise + 128) x 1.5 is above 1 from a noise scale of 64 on.
    plan, _ = decide(_one(noise), {})
    assert plan.placements["j0"].batch == batch
    assert f"batch {batch}" in plan.placements["j0"].reason


def test_a_running_job_takes_it_only_where_that_pays_for_the_restart() -> None:
    long = _one(np.inf, held=[(0, 0, 0, 1)], left=36_000.0, attained=100.0)
    assert decide(long, {})[0].placements["j0"].batch == 128
    short = _one(np.inf, held=[(0, 0, 0, 1)], left=600.0, attained=100.0)
    assert decide(short, {})[0].placements["j0"].batch == 64
    bound = _one(np.inf, held=[(0, 0, 0, 1)], left=36_000.0, movable=False)
    assert decide(bound, {})[0].placements["j0"].batch == 64


def test_other_policies_can_use_the_batches() -> None:
    view = _one(1e9)
    best = best_batches(view)
    assert best.jobs.rate[0, 0, 0] == pytest.approx(15.0, rel=1e-3)
    plan, _ = get("srtf")(best, {})
    placement = with_batches(view, plan).placements["j0"]
    assert placement.batch == 128
    assert "1.50 times batch 64" in placement.reason
    plain = replace(view, jobs=replace(view.jobs, batches=None))
    assert best_batches(plain) is plain
    assert with_batches(plain, plan) is plan


@given(elastic())
@_QUICK
def test_batches_laid_over_another_policy_are_possible(view: View) -> None:
    plan, _ = get("srtf")(best_batches(view), {})
    check_batches(view, with_batches(view, plan))


@given(elastic())
@_QUICK
def test_goodput_says_where_a_job_can_run(view: View) -> None:
    good = goodput_of(view.jobs).max(axis=3)
    assert ((good > 0) == (view.jobs.rate > 0)).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_is_served(seed: int) -> None:
    view = crowd(seed, {"generations": 10})
    plan, state = decide(view, {})
    check(view, plan)
    after = applied(view, plan)
    check(after, decide(after, state)[0])
    assert len(plan.placements) >= 12


def test_a_state_of_version_1_is_read() -> None:
    view = crowd(0, {"generations": 1})
    plan, state = decide(view, {})
    before = {**state, "version": 1, "laid": state["decided"], "crowd": state["mean_jobs"]}
    del before["decided"], before["mean_jobs"]
    after = applied(view, plan)
    assert decide(after, before) == decide(after, state) != decide(after, {})


def test_two_thousand_jobs() -> None:
    view = crowd(0, {"generations": 1})
    rows = np.arange(2000) % len(view.jobs.ids)
    names = [n for n in view.jobs.__dataclass_fields__ if n not in ("ids", "held", "batches")]
    arrays: dict[str, Any]
    arrays = {n: a[rows] for n in names if isinstance(a := getattr(view.jobs, n), np.ndarray)}
    jobs = replace(view.jobs, ids=tuple(str(i) for i in range(2000)), **arrays)
    plan, _ = decide(replace(view, jobs=jobs), {})
    check(replace(view, jobs=jobs), plan)


def test_options_that_mean_nothing_are_refused() -> None:
    for bad in ({"generations": "many"}, {"theta": 2.0}, {"limits": "none"}, {"preempt": 1}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            decide(replace(_one(0.0), options=bad), {})


def test_no_nodes_and_no_speed_give_reasons() -> None:
    empty = view_of(nodes_of([[0]]), jobs_of([[[1.0]]]))
    plan, _ = decide(empty, {})
    assert not plan.placements
    assert plan.waiting["j0"] == "no GPU that managed jobs may use is free"
    slow = view_of(nodes_of([[1]]), jobs_of([[[0.0]]]))
    plan, _ = decide(slow, {})
    assert not plan.placements
    assert "no GPU type" in plan.waiting["j0"]


def test_no_types_and_no_counts() -> None:
    nodes = replace(nodes_of([[1]]), gpus=np.zeros((1, 0), dtype=np.int64))
    for rate in (np.zeros((1, 0, 1)), np.zeros((1, 0, 0))):
        view = view_of(nodes, jobs_of(rate), counts=(1,) * rate.shape[2])
        assert set(decide(view, {})[0].waiting) == {"j0"}
    view = view_of(nodes_of([[1]]), jobs_of(np.zeros((1, 1, 0))), counts=())
    assert set(decide(view, {})[0].waiting) == {"j0"}


def test_progress_is_surer_in_the_middle_than_at_the_start() -> None:
    done, left = np.array([0.0, 50.0, 500.0]), np.array([1000.0, 950.0, 500.0])
    alpha, beta = beta_of(done, left)
    assert alpha.tolist() == [1.0, 1.0, 5.0]
    assert beta.tolist() == [10.0, 9.5, 5.0]
    drawn = factors(done, left, np.random.default_rng(0), 4000)
    assert 0.8 < np.median(drawn[:, 2]) < 1.25
    spread = np.log(drawn).std(axis=0)
    assert spread[2] < 0.7 * spread[0]


def test_paper_limits_start_small_double_and_fall_when_stopped() -> None:
    view = _one(np.inf, left=36_000.0, total=36_000.0)
    first = limits_of(view, {})
    assert first.most.tolist() == [64]
    grown = _one(np.inf, left=20_000.0, total=36_000.0, held=[(0, 0, 0, 1)])
    later = limits_of(grown, first.kept)
    assert later.most.tolist() == [64 * 2**4]
    stopped = _one(np.inf, left=20_000.0, total=36_000.0)
    assert limits_of(stopped, later.kept).most.tolist() == [64 * 2**3]
    long = _one(np.inf, left=20_000.0, total=36_000.0, held=[(0, 0, 0, 1)], attained=7 * 3600.0)
    assert limits_of(long, later.kept).most.tolist() == [64 * 2**4 // 2]
    plan, _ = decide(replace(view, options={"limits": "paper"}), {})
    assert plan.placements["j0"].batch == 64
