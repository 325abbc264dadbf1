"""The benchmark that compares live runs with the simulator: its trace and its figures."""

import numpy as np
import pytest

from benchmarks.live_and_simulated import (
    PLAIN,
    SECONDS,
    Besides,
    Trace,
    done_line,
    draw,
    jobs_line,
)
from benchmarks.optin.workload import base_rates
from slurm_hadar.sandbox.pacing import true_rates

TRACE = Trace(1, draw(1, 8))
COST = Besides([0.25, 0.5, 0.75], [1.0])


def alone_s() -> list[float]:
    """How long each job trains on its fastest type."""
    true = true_rates(base_rates(), TRACE.seed)
    return [
        spec.samples / max(by_count["1"] for by_count in true[spec.model].values())
        for spec in TRACE.specs
    ]


def test_trainings_are_about_equally_long() -> None:
    assert all(SECONDS[0] <= spec.seconds <= SECONDS[1] for spec in draw(3, 50))


def test_what_a_job_costs_besides_is_the_median_or_drawn_from_what_was_measured() -> None:
    assert COST.median_s == 1.5
    drawn = COST.drawn(1, 200)
    assert drawn.shape == (200, 1)
    assert set(drawn.ravel().tolist()) == {1.25, 1.5, 1.75}
    assert np.array_equal(drawn, COST.drawn(1, 200))
    assert not np.array_equal(drawn, COST.drawn(2, 200))


def test_the_simulator_adds_that_to_the_training() -> None:
    true = true_rates(base_rates(), TRACE.seed)
    found = TRACE.simulated(PLAIN, COST)
    for spec, time_s in zip(TRACE.specs, found.jct_s.tolist(), strict=True):
        # Eight jobs on twelve GPUs: each starts at once, on one of the types.
        possible = [spec.samples / by_count["1"] + 1.5 for by_count in true[spec.model].values()]
        assert any(time_s == pytest.approx(one, rel=1e-3) for one in possible)
    assert not np.array_equal(found.jct_s, TRACE.simulated(PLAIN, COST, seed=1).jct_s)


def test_the_work_is_done_for_the_most_part_before_the_last_job_ends() -> None:
    ends = np.arange(1.0, 9.0)
    work = np.array(alone_s())
    part = np.cumsum(work) / work.sum()
    makespan, most = TRACE.done_s(ends)
    assert makespan == 8.0
    assert part[int(most) - 1] >= 0.95 > part[int(most) - 2]
    # In whatever order they end.
    assert TRACE.done_s(ends[::-1].copy())[0] == 8.0


def test_the_rows_of_the_tables() -> None:
    row = jobs_line("hadar", np.array([11.0, 20.0]), np.array([10.0, 20.0]))
    assert row.split() == ["hadar", "15.5", "15.0", "+3.3%", "5.0%", "9.0%", "10.0%"]
    runs = np.array([[90.0, 80.0], [100.0, 80.0], [130.0, 90.0]])
    row = done_line("hadar", np.array([105.0, 76.0]), runs)
    assert row.split()[:7] == ["hadar", "105.0", "100.0", "+5.0%", "90", "to", "130"]
    assert row.split()[7:] == ["76.0", "80.0", "-5.0%", "80", "to", "90"]
    row = done_line("again", np.array([105.0, 76.0]), runs[:1])
    assert row.split() == ["again", "105.0", "90.0", "+16.7%", "76.0", "80.0", "-5.0%"]
