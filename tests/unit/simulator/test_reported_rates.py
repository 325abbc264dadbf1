"""In Slurm's order, a policy that corrects its table by what the managed jobs report."""

from dataclasses import replace

import numpy as np
import pytest
from pretend import machines, work

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, State, View
from slurm_hadar.profiles.measured_correction import RATIO_MOST
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.estimates import Estimates
from slurm_hadar.simulator.queue.engine import simulate
from slurm_hadar.simulator.queue.requests import Drawn
from slurm_hadar.simulator.queue.setting import SimulationSetting, SteeringSetting
from slurm_hadar.simulator.workload import Queued, Workload

TABLE, TRUE = [[10.0], [3.0]], [[20.0], [4.0]]
"""Samples/s on fast and on slow: the table has slow less than four times slower, which is wrong."""


def trainings(*users: str, samples: list[float]) -> Workload:
    jobs = len(users)
    arrival = [0.0, *([1.0] * (jobs - 1))]
    load = work([TRUE] * jobs, total=samples, arrival=arrival)
    queue = Queued(
        np.ones(jobs, dtype=np.int64),
        np.ones((jobs, 2), dtype=np.bool_),
        np.full(jobs, 1e6),
        np.zeros(jobs),
        users,
        users,
    )
    return replace(load, models=("lm",) * jobs, queue=queue)


def run(load: Workload, reports: FloatArray | None) -> tuple[list[float], list[FloatArray]]:
    """Ends, and the rates (R,) of the last job that a policy saw at each tick."""
    seen: list[FloatArray] = []

    def decide(view: View, state: State) -> tuple[Plan, State]:
        seen.append(view.jobs.rate[-1, :, 0])
        return Plan({}, dict.fromkeys(view.jobs.ids, "waits")), state

    estimates = Estimates(np.array([TABLE] * len(load.ids)), load.total, known=True)
    setting = SimulationSetting(
        load,
        machines("fast=1,slow=1"),
        Drawn(),
        costs=Costs(restart_s=1e6),
        steering=SteeringSetting(tick_s=10.0, moves=False, min_between_moves_s=10.0),
        seen=estimates,
        reports=reports,
    )
    ends: list[float] = simulate(setting, decide).finish_s.tolist()
    return ends, seen


def test_the_policy_sees_what_jobs_report_once_it_was_measured_for_long_enough() -> None:
    load = trainings("ann", "ann", "ann", samples=[2000.0, 400.0, 400.0])
    _, without = run(load, None)
    assert {tuple(rates) for rates in without} == {(10.0, 3.0)}
    _, seen = run(load, load.rate)
    assert tuple(seen[0]) == (10.0, 3.0)
    assert seen[-1] == pytest.approx([20.0, 4.0])


def test_other_users_reports_change_the_ratio_of_two_types_within_bounds() -> None:
    load = trainings("ann", "ann", "bob", samples=[2000.0, 400.0, 400.0])
    _, seen = run(load, load.rate)
    assert seen[-1] == pytest.approx([20.0, 4.0])
    # Ann's report three times as much on slow as on fast; the table has fast 3.3 times as fast.
    load = trainings("ann", "ann", "bob", samples=[2000.0, 3000.0, 9000.0])
    turned = replace(load, rate=load.rate * np.array([[[0.5], [7.5]]]))
    _, seen = run(turned, turned.rate)
    fast, slow = seen[-1]
    assert fast / slow == pytest.approx(10 / 3 / RATIO_MOST)


@pytest.mark.parametrize(("owner", "waits"), [("ann", True), ("bob", False)])
def test_only_its_owners_reports_exclude_a_job_from_a_type(owner: str, waits: bool) -> None:
    # Jobs of ann hold and measure both types for 100 s or more; the third one is five times slower
    # on slow, which is free first.
    load = trainings("ann", "ann", owner, samples=[4000.0, 400.0, 200.0])
    ends, _ = run(load, load.rate)
    by_table, _ = run(load, None)
    assert by_table[2] == pytest.approx(151.0, abs=1.0)
    assert ends[2] == pytest.approx(210.0 if waits else 151.0, abs=1.0)
