"""What the controller expects of the simulated queue, and jobs that wait for a type."""

from dataclasses import replace

import numpy as np
import pytest
from pretend import machines, scripted, work

from slurm_hadar.scheduling.slurm_schedulers import SchedulerLimits
from slurm_hadar.simulator.estimates import estimate
from slurm_hadar.simulator.queue.engine import simulate
from slurm_hadar.simulator.queue.foresight import Foresight, RunningJobs
from slurm_hadar.simulator.queue.requests import Drawn, requests
from slurm_hadar.simulator.queue.setting import SimulationSetting, SteeringSetting
from slurm_hadar.simulator.traces import queue_columns
from slurm_hadar.simulator.traces.csv_rows import rows

CLUSTER = machines("fast=1,slow=1")
BOTH = [[3.0], [1.0]]
HOUR = 3600.0


def finishes(load, max_wait_s, known=True):
    """Jobs without plans on one fast and one slow GPU, a tick each second."""
    steering = SteeringSetting(moves=False, tick_s=1.0, max_wait_s=max_wait_s)
    seen = replace(estimate(load), known=known)
    setting = SimulationSetting(
        load,
        CLUSTER,
        Drawn(limits=(1.0, 1.0)),
        limits=SchedulerLimits(interval_s=0.0),
        steering=steering,
        seen=seen,
    )
    return simulate(setting, scripted({0.0: {}})).finish_s.tolist()


def queue_of(load, text):
    return replace(load, queue=queue_columns.queued(list(rows(text, "t", ["job_id"])), load.types))


def two_and_a_third(third_s=300.0):
    """j0 has the fast GPU until 50 s and j1 the slow one until 40 s; j2 takes 100 s on the fast one
    and 300 s on the slow one."""
    rate = [[[3.0], [0.0]], [[0.0], [1.0]], BOTH]
    return work(rate, total=[150.0, 40.0, third_s], arrival=[0.0, 0.0, 10.0])


def test_a_job_waits_for_the_type_on_which_it_ends_sooner() -> None:
    assert finishes(two_and_a_third(), 0.0) == [50.0, 40.0, 340.0]
    assert finishes(two_and_a_third(), HOUR) == [50.0, 40.0, 150.0]
    # For 40 s it need not wait where that gains nothing.
    assert finishes(two_and_a_third(15.0), HOUR) == finishes(two_and_a_third(15.0), 0.0)


def test_it_waits_no_longer_than_it_may_and_never_by_a_guess() -> None:
    # From 10 s on, for 30 s at most: at 40 s the slow GPU is free.
    assert finishes(two_and_a_third(), 30.0) == [50.0, 40.0, 340.0]
    assert finishes(two_and_a_third(), HOUR, known=False) == [50.0, 40.0, 340.0]


@pytest.mark.parametrize(("types", "end"), [("", 340.0), ("fast", 340.0), ("slow", 150.0)])
def test_it_leaves_no_type_to_an_unmanaged_job_behind_it(types, end) -> None:
    load = work(
        [[[3.0], [0.0]], [[0.0], [1.0]], BOTH, BOTH],
        total=[150.0, 40.0, 300.0, 300.0],
        arrival=[0.0, 0.0, 10.0, 11.0],
    )
    load = queue_of(load, f"job_id,managed,types\nj0,yes,\nj1,yes,\nj2,yes,\nj3,no,{types}\n")
    assert finishes(load, HOUR)[2] == end


def test_unmanaged_jobs_are_expected_to_end_by_their_limits_and_managed_ones_by_what_they_say():
    load = queue_of(work([BOTH] * 3, total=90.0), "job_id,managed\nj0,yes\nj1,no\nj2,no\n")
    asked = requests(load, CLUSTER, Drawn(limits=(2.25, 2.25)))
    assert asked.limit_s.tolist() == [202.5] * 3
    foresight = Foresight(asked, load.request, load.rate[:, :, 0], np.full(3, 180.0))
    line = np.array([0, 1])
    times = foresight.times(line, np.zeros(3))
    assert times.tolist() == [[60.0, 180.0], [90.0, 90.0]]
    on = np.array([[1, 0], [0, 1]])
    running = RunningJobs(
        np.array([0, 1]), np.full(2, 30.0), np.zeros(2), np.array([60.0, 30.0]),
        np.array([3.0, 1.0]), on,
    )  # fmt: skip
    pools = foresight.released(np.array([1, 0]), running)
    assert pools == [[0.0, 40.0], [60.0]]
    assert foresight.ends(line, times, pools).tolist() == [60.0, 130.0]
    # Who has done all that was declared ends any time until its limit.
    more = replace(running, done=np.array([180.0, 30.0]))
    assert foresight.released(np.array([0, 0]), more)[0] == [60.0]


def test_a_managed_job_is_not_expected_on_a_type_that_its_list_leaves_out():
    """j0 would end sooner on the slow GPU, at 3000 s, but waits for the fast one, until 3300 s."""
    load = work([[[10.0], [1.0]], [[3.0], [0.03]]], total=[3000.0, 300.0])
    asked = requests(load, CLUSTER, Drawn())
    foresight = Foresight(asked, load.request, load.rate[:, :, 0], load.total)
    line, times = np.array([0, 1]), foresight.times(np.array([0, 1]), np.zeros(2))
    for first, second in (((0,), (0, 1)), ((0, 1), (0,))):
        kept = foresight.narrowed(
            line, times, [[3000.0], [0.0]], [first, (0, 1)], np.full(2, 3200.0)
        )
        assert kept == [first, second]
