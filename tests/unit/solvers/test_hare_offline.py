"""Hare's relaxation bounds every schedule; its list schedule keeps to GPUs, barriers and bound."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.solvers.hare import (
    Relaxed,
    RoundJobs,
    Rule,
    alpha,
    list_schedule,
    paper_order,
    relax,
)

_QUICK = settings(max_examples=30, deadline=None)


@st.composite
def instances(draw: st.DrawFn) -> tuple[RoundJobs, np.ndarray]:
    number, kinds = draw(st.integers(1, 6)), draw(st.integers(1, 3))

    def row(of: st.SearchStrategy[float], length: int) -> np.ndarray:
        return np.array(draw(st.lists(of, min_size=length, max_size=length)))

    length = row(st.sampled_from([1.0, 2.0, 5.0, 9.0]), number * kinds).reshape(number, kinds)
    return (
        RoundJobs(
            arrival_s=row(st.sampled_from([0.0, 0.0, 3.0, 20.0]), number),
            weight=row(st.sampled_from([0.0, 1.0, 1.0, 4.0]), number),
            rounds=row(st.integers(1, 6), number).astype(np.int64),
            tasks=row(st.integers(1, 5), number).astype(np.int64),
            task_s=length,
            sync_s=row(st.sampled_from([0.0, 0.5]), number),
        ),
        row(st.integers(1, 3), kinds).astype(np.int64),
    )


def listed(jobs: RoundJobs, gpus: np.ndarray, found: Relaxed, rule: Rule):
    return list_schedule(paper_order(jobs, found, gpus), jobs, gpus, rule)


@pytest.mark.parametrize("rule", ["available", "finish"])
@given(case=instances())
@_QUICK
def test_the_list_schedule_is_possible_and_within_the_bound(rule: Rule, case) -> None:
    jobs, gpus = case
    found = relax(jobs, gpus)
    done = listed(jobs, gpus, found, rule)
    spans: list[list[tuple[float, float]]] = [[] for _ in gpus]
    for job, rounds in enumerate(done.starts):
        assert len(rounds) == jobs.rounds[job]
        ready = jobs.arrival_s[job]
        for tasks in rounds:
            assert len(tasks) == jobs.tasks[job]
            for kind, start, end in tasks:
                assert start >= ready - 1e-9
                assert end - start == pytest.approx(jobs.task_s[job, kind])
                spans[kind].append((start, end))
            ready = max(end for _, _, end in tasks) + jobs.sync_s[job]
        assert done.finish_s[job] == pytest.approx(ready)
    for kind, row in enumerate(spans):
        edges = sorted([(start, 1) for start, _ in row] + [(end - 1e-9, -1) for _, end in row])
        busy = np.cumsum([step for _, step in edges])
        assert busy.max(initial=0) <= gpus[kind]
    total = float(jobs.weight @ done.finish_s)
    ratio = alpha(jobs.task_s)
    assert found.bound <= total * (1 + 1e-6) + 1e-6
    assert total <= ratio * (2 + ratio) * found.bound * (1 + 1e-3) + 1e-6


@given(instances())
@_QUICK
def test_midpoints_keep_the_order_of_rounds(case) -> None:
    jobs, gpus = case
    for job, row in enumerate(relax(jobs, gpus).midpoint):
        assert len(row) == jobs.rounds[job]
        assert row[0] >= jobs.arrival_s[job] + jobs.task_s[job].min() / 2 - 1e-6
        assert (np.diff(row) > 0).all()


def alone(length: list[float], gpus: list[int], rule: Rule, tasks: int = 1):
    """The schedule of one job with one round."""
    one, number = np.ones(1), np.array([tasks])
    jobs = RoundJobs(0 * one, one, np.array([1]), number, np.array([length]), 0 * one)
    return list_schedule((np.zeros(1),), jobs, np.array(gpus), rule)


def test_the_two_rules_differ_where_a_free_gpu_is_slow() -> None:
    # Two tasks, a GPU that needs 1 s and one that needs 9 s: the paper's rule uses both.
    assert alone([1.0, 9.0], [1, 1], "available", tasks=2).finish_s.tolist() == [9.0]
    assert alone([1.0, 9.0], [1, 1], "finish", tasks=2).finish_s.tolist() == [2.0]
    # A type on which the job cannot run is passed over by both.
    assert alone([np.inf, 9.0], [3, 1], "available").finish_s.tolist() == [9.0]


def test_the_paper_order_counts_half_of_the_slowest_time() -> None:
    zero, one = np.zeros(2), np.ones(2)
    ones = np.ones(2, dtype=np.int64)
    # Both start at 0 in the relaxation of two GPUs; the second type makes job 0 the later one.
    jobs = RoundJobs(zero, one, ones, ones, np.array([[1.0, 8.0], [1.0, 2.0]]), zero)
    found = Relaxed((np.array([0.5]), np.array([0.5])), 0.0, 0)
    assert [row[0] for row in paper_order(jobs, found, np.array([1, 1]))] == [4.0, 1.0]
    assert [row[0] for row in paper_order(jobs, found, np.array([1, 0]))] == [0.5, 0.5]


def best_of_all(lengths: np.ndarray, weight: np.ndarray) -> float:
    """Least sum of w C of single tasks on single GPUs, by trying everything."""
    best = np.inf
    for order in permutations(range(len(weight))):
        for where in product(range(lengths.shape[1]), repeat=len(weight)):
            free = [0.0] * lengths.shape[1]
            total = 0.0
            for job in order:
                free[where[job]] += lengths[job, where[job]]
                total += weight[job] * free[where[job]]
            best = min(best, total)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_is_below_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths, weight = rng.uniform(1, 9, (5, 2)), rng.uniform(0, 3, 5)
    ones, none = np.ones(5, dtype=np.int64), np.zeros(5)
    found = relax(RoundJobs(none, weight, ones, ones, lengths, none), np.array([1, 1]))
    best = best_of_all(lengths, weight)
    assert 0.4 * best < found.bound <= best + 1e-6
    assert found.cuts > 0


def test_alike_machines_with_one_task_each_are_bounded_tightly() -> None:
    # One GPU: Queyranne's inequalities describe it whole, so the bound is Smith's rule.
    lengths, weight = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 4.0])
    ones, none = np.ones(3, dtype=np.int64), np.zeros(3)
    found = relax(RoundJobs(none, weight, ones, ones, lengths[:, None], none), np.array([1]))
    assert found.bound == pytest.approx(4 * 2 + 1 * 3 + 1 * 6, rel=1e-3)
    assert np.argsort([row[0] for row in found.midpoint]).tolist() == [2, 1, 0]


def test_many_rounds_are_put_together() -> None:
    rounds = np.array([5000, 3000])
    jobs = RoundJobs(
        np.zeros(2), np.ones(2), rounds, np.array([2, 1]), np.array([[1.0], [2.0]]), np.zeros(2)
    )
    found = relax(jobs, np.array([2]))
    assert [len(row) for row in found.midpoint] == rounds.tolist()
    assert found.bound >= 5000 + 6000
