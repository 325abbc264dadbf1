"""The bound that HadarE's benchmark shows: below every schedule, and close to the best of them."""

import highspy
import numpy as np
import pytest

from benchmarks.hadare import Case, _bound_s, workload


def _least_s(jobs: int) -> float:
    """The same by a programme of our own: x seconds of job j on node m, none busier than T."""
    work = workload(Case(), jobs)
    rate = work.rate[:, :, 0] / work.total[:, None] * 1e5
    solver = highspy.Highs()
    solver.silent()
    end = solver.addVariable(0)
    x = [[solver.addVariable(0) for _ in row] for row in rate]
    for row, parts in zip(rate.tolist(), x, strict=True):
        solver.addConstr(sum(r * part for r, part in zip(row, parts, strict=True)) >= 1)
    for node in range(rate.shape[1]):
        solver.addConstr(sum(parts[node] for parts in x) - end <= 0)
    solver.minimize(end)
    return float(solver.val(end)) * 1e5


@pytest.mark.parametrize("jobs", [1, 5, 12])
def test_the_bound_is_that_of_the_linear_programme(jobs: int) -> None:
    least = _least_s(jobs)
    assert 0.98 * least <= _bound_s(Case(), jobs) <= least * (1 + 1e-9)


def test_the_jobs_are_those_that_were_written_down() -> None:
    work = workload(Case(), 3)
    speeds = np.array([8.0, 5.0, 3.0, 2.0, 1.0])
    assert (np.abs(work.rate[:, :, 0] / speeds - 1) <= 0.3).all()
    hours = work.total / 3600 / 8
    assert hours == pytest.approx([62.1, 0.3, 56.2], abs=0.06)
    assert len(set(work.models)) == 3
