"""The linear programmes: best, in the middle of what is as good, and alike for those alike."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.solvers.shares import centre, max_min_shares, max_total_shares

Problem = tuple[np.ndarray, np.ndarray, np.ndarray]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    jobs, kinds = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    cells = st.sampled_from([0.0, 0.5, 1.0, 3.0, 20.0])
    gain = np.array(draw(st.lists(cells, min_size=jobs * kinds, max_size=jobs * kinds)))
    gpus = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=jobs, max_size=jobs))
    capacity = draw(st.lists(st.sampled_from([0, 1, 4, 8]), min_size=kinds, max_size=kinds))
    return gain.reshape(jobs, kinds), np.array(gpus), np.array(capacity)


def possible(share: np.ndarray, gpus: np.ndarray, capacity: np.ndarray) -> None:
    assert (share >= 0).all()
    assert (share.sum(axis=1) <= 1 + 1e-9).all()
    assert ((gpus[:, None] * share).sum(axis=0) <= capacity + 1e-6).all()


def oracle(problem: Problem, together: bool) -> float:
    """The same by another solver, written out row by row."""
    from scipy.optimize import linprog

    gain, gpus, capacity = problem
    jobs, kinds = gain.shape
    rows, limits = [], []
    for j in range(jobs):
        rows.append([*(float(i // kinds == j) for i in range(jobs * kinds)), 0.0])
        limits.append(1.0)
    for r in range(kinds):
        own = (float(gpus[i // kinds]) * (i % kinds == r) for i in range(jobs * kinds))
        rows.append([*own, 0.0])
        limits.append(float(capacity[r]))
    cost = [-g for g in gain.ravel()] + [0.0]
    if together:
        cost = [0.0] * (jobs * kinds) + [-1.0]
        for j in range(jobs):
            if not (gain[j] * (capacity > 0)).any():
                continue
            own = (-gain[j, i % kinds] * (i // kinds == j) for i in range(jobs * kinds))
            rows.append([*own, 1.0])
            limits.append(0.0)
    top = (0, 1e9) if together else (0, 0)
    bounds = [(0, None)] * (jobs * kinds) + [top]
    found = linprog(cost, A_ub=rows, b_ub=limits, bounds=bounds, method="highs-ds")
    assert found.success
    return float(-found.fun)


@given(problems())
@settings(max_examples=50, deadline=None)
def test_the_least_gain_is_the_largest_there_is(problem: Problem) -> None:
    gain, gpus, capacity = problem
    found = max_min_shares(gain, gpus, capacity)
    possible(found.share, gpus, capacity)
    able = (gain * (capacity > 0)).any(axis=1)
    if not able.any():
        assert not found.share.any()
        return
    best = oracle(problem, together=True)
    assert found.optimal
    assert found.value == pytest.approx(best, rel=1e-6)
    assert (gain * found.share).sum(axis=1)[able].min() >= best * (1 - 1e-4)
    assert not found.share[~able].any()
    assert not found.share[gain == 0].any()


@given(problems())
@settings(max_examples=30, deadline=None)
def test_the_sum_is_the_largest_there_is(problem: Problem) -> None:
    gain, gpus, capacity = problem
    found = max_total_shares(gain, gpus, capacity)
    possible(found.share, gpus, capacity)
    assert float((gain * found.share).sum()) == pytest.approx(oracle(problem, False), abs=1e-6)


@given(problems(), st.randoms())
@settings(max_examples=30, deadline=None)
def test_who_is_alike_gets_alike_and_the_order_of_the_jobs_does_not_matter(
    problem: Problem, random: object
) -> None:
    gain, gpus, capacity = problem
    twice, sizes = np.vstack([gain, gain]), np.concatenate([gpus, gpus])
    both = max_min_shares(twice, sizes, capacity).share
    assert np.array_equal(both[: len(gain)], both[len(gain) :])
    turned = max_min_shares(twice[::-1], sizes[::-1], capacity).share[::-1]
    assert both == pytest.approx(turned, abs=1e-6)


def test_the_centre_is_where_no_slack_can_gain() -> None:
    gain = np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 0.0]])
    gpus, copies, capacity = (
        np.array([1.0, 2.0, 1.0]),
        np.array([2.0, 1.0, 3.0]),
        np.array([4.0, 3]),
    )
    x = centre(gain, gpus, copies, capacity, 0.5)
    assert x is not None

    def logs(at: np.ndarray) -> float:
        used = capacity - ((copies * gpus)[:, None] * at).sum(axis=0)
        slack = [1 - at.sum(axis=1), (gain * at).sum(axis=1) - 0.5]
        own = sum(float((copies * np.log(part)).sum()) for part in slack)
        inside = np.where(gain > 0, np.log(np.where(gain > 0, at, 1.0)), 0.0)
        return own + float(np.log(used).sum()) + float((copies[:, None] * inside).sum())

    best = logs(x)
    rng = np.random.default_rng(0)
    for _ in range(200):
        step = np.where(gain > 0, rng.normal(0, 1e-3, x.shape), 0.0)
        assert logs(x + step) < best


def test_nothing_to_share() -> None:
    none = max_min_shares(np.zeros((0, 2)), np.zeros(0, np.int64), np.array([1, 1]))
    assert none.share.shape == (0, 2)
    no_gpus = max_min_shares(np.ones((2, 2)), np.ones(2, np.int64), np.zeros(2, np.int64))
    assert not no_gpus.share.any()
    assert (
        max_total_shares(np.zeros((0, 2)), np.zeros(0, np.int64), np.array([1, 1])).share.size == 0
    )
