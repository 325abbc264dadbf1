"""Prices: bounds and monotony of the dual price, and scarcity beside the LP's dual."""

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.solvers.prices import DualPrice, dual_price, scarcity

pytestmark = pytest.mark.filterwarnings("error")

_INF = float("inf")
_UNIT = st.floats(0.0, 1.0)


@given(st.floats(1e-9, 1.0), st.floats(1.0, 1e6), st.integers(1, 64), st.lists(_UNIT, min_size=2))
@settings(max_examples=80, deadline=None)
def test_price_rises_from_the_lower_bound_to_the_upper(
    low: float, ratio: float, capacity: int, used: list[float]
) -> None:
    price = DualPrice(np.array([low]), np.array([low * ratio]))
    at = [price.at(0, part * capacity, capacity) for part in sorted(used)]
    assert at == sorted(at)
    assert low * (1 - 1e-9) <= at[0]
    assert at[-1] <= low * ratio * (1 + 1e-9)
    assert price.at(0, 0, capacity) == pytest.approx(low)
    assert price.at(0, capacity, capacity) == pytest.approx(low * ratio)


def test_price_by_hand() -> None:
    price = DualPrice(np.array([1.0, 0.0]), np.array([16.0, 5.0]))
    assert [price.at(0, used, 4) for used in range(5)] == pytest.approx([1, 2, 4, 8, 16])
    assert price.at(0, 9, 4) == pytest.approx(16.0)
    assert price.at(0, 1, 0) == 1.0
    assert price.at(1, 3, 4) == 0.0
    assert price.ratio == pytest.approx(np.log(16.0))
    assert DualPrice(np.zeros(1), np.zeros(1)).ratio == 1.0


def test_bounds_by_hand() -> None:
    # Two jobs, two types, 4 GPUs, slots of 100 s: 400 GPU-seconds a slot.
    density = np.array([[0.5, 0.1], [0.2, 0.4]])
    found = dual_price(density, np.array([0.6, 0.2]), np.array([200.0, 100.0]), 4.0, 100.0)
    assert found.most.tolist() == [0.5, 0.4]
    # 1 / eta = min(1, 100 / 400); the least of 0.6 / 200 and 0.2 / 100.
    assert found.least == pytest.approx([0.25 * 0.25 * 0.002] * 2)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.just(0.0) | st.floats(1.0, 1e6)),
        max_size=5,
    )
)
@settings(max_examples=40, deadline=None)
def test_lower_bound_is_never_above_the_upper(rows: list[tuple[float, float, float]]) -> None:
    table = np.array(rows).reshape(-1, 3)
    found = dual_price(table[:, :1], table[:, 1], table[:, 2], 8.0, 360.0)
    assert (found.least >= 0).all()
    assert (found.least <= found.most).all()


def test_scarcity_by_hand() -> None:
    # j0 needs 10 h on the first type and 40 on the second, j1 20 and 20; one GPU of each. Best is
    # each on its own: 20 h; but j1 split to end all at once, x h of it on the first type:
    # 10 + x = 20 - x, so 15 h. Dual: equal prices of 1/2, 10 / 2 + 20 / 2.
    found = scarcity(np.array([[10.0, 40.0], [20.0, 20.0]]), np.array([1, 1]))
    assert found.horizon_s == pytest.approx(15.0, rel=0.02)
    assert found.price == pytest.approx([0.5, 0.5], abs=0.03)


def _lp(work: np.ndarray, capacity: np.ndarray) -> float:
    """Least horizon by linear programming: x_jr is the part of job j done on type r."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    jobs, kinds = work.shape
    solver.addVar(0.0, highspy.kHighsInf)
    solver.changeColCost(0, 1.0)
    for job in range(jobs):
        for kind in range(kinds):
            solver.addVar(0.0, 1.0 if np.isfinite(work[job, kind]) else 0.0)
    column = np.arange(jobs * kinds).reshape(jobs, kinds) + 1
    for job in range(jobs):
        solver.addRow(1.0, 1.0, kinds, column[job], np.ones(kinds))
    for kind in range(kinds):
        load = np.where(np.isfinite(work[:, kind]), work[:, kind], 0.0)
        index = np.concatenate([[0], column[:, kind]])
        values = np.concatenate([[float(capacity[kind])], -load])
        solver.addRow(0.0, highspy.kHighsInf, jobs + 1, index, values)
    solver.run()
    return float(solver.getInfo().objective_function_value)


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_scarcity_is_a_bound_of_the_lp_and_close_to_it(seed: int, jobs: int, kinds: int) -> None:
    random = np.random.default_rng(seed)
    work = random.uniform(1.0, 100.0, (jobs, kinds))
    work[random.random((jobs, kinds)) < 0.2] = _INF
    work = work[np.isfinite(work).any(axis=1)]
    if not len(work):
        return
    capacity = random.integers(1, 9, kinds)
    best, found = _lp(work, capacity), scarcity(work, capacity)
    assert found.horizon_s <= best * (1 + 1e-6)
    assert found.horizon_s >= 0.9 * best
    assert float(found.price @ capacity) == pytest.approx(1.0)


def test_scarcity_where_there_is_nothing() -> None:
    assert scarcity(np.zeros((0, 2)), np.array([1, 1])).horizon_s == 0.0
    assert scarcity(np.array([[_INF]]), np.array([1])).horizon_s == 0.0
    none = scarcity(np.array([[5.0, 7.0]]), np.array([0, 2]))
    assert none.horizon_s == pytest.approx(3.5)
    assert none.price.tolist() == [0.0, 0.5]
    assert scarcity(np.array([[5.0]]), np.array([0])).price.tolist() == [0.0]
