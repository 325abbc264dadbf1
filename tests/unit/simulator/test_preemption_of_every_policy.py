"""A job that is stopped for another one, and that other one, hold no more ahead of an unmanaged job
than the stopped one alone would have held."""

import numpy as np
import pytest
from pretend import machines, work
from test_queue import queue_of

from slurm_hadar import policies
from slurm_hadar.scheduling.slurm_schedulers import SchedulerLimits
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.queue import cluster_state, tick
from slurm_hadar.simulator.queue.engine import simulate
from slurm_hadar.simulator.queue.requests import Drawn
from slurm_hadar.simulator.queue.setting import SimulationSetting, SteeringSetting

STOPPING = [
    "hadar", "ones", "timetable", "tiresias",
    *(name for name in policies.names() if name.startswith("gavel_")),
]  # fmt: skip
PREEMPTS = SteeringSetting(tick_s=30.0, min_between_moves_s=0.0, preempt=True)
QUEUES, MOST_STOPS = 4, 2
OPTIONS: dict[str, dict[str, object]]
OPTIONS = {"tiresias": {"queues": "60,600"}, "ones": {"generations": 5}}
"""GPU-seconds, so that it stops jobs as short as these; whatever ``ones`` has found when it stops
searching, its stops are judged alike."""


def queue(seed):
    """Jobs of one GPU and one priority, managed or not, on one type: nothing but stops may change
    when one of them starts."""
    rng = np.random.default_rng(seed)
    count = 16
    managed = rng.random(count) < 0.6
    jobs = work(
        [[[1.0]]] * count,
        total=rng.choice([40.0, 150.0, 900.0, 3000.0], count).tolist(),
        arrival=np.sort(rng.uniform(0, 1500, count)).tolist(),
        types=("fast",),
    )
    rows = [f"j{row},{'yes' if here else 'no'}" for row, here in enumerate(managed)]
    return queue_of(jobs, "\n".join(["job_id,managed", *rows, ""])), managed


class Stops:
    """The first ``most`` stops of a simulation, with the jobs that wait at the last one."""

    def __init__(self, most):
        self.left, self.waiting = most, []

    def __call__(self, queue, newcomers, candidates, held, free):
        queue = list(queue)
        found = cluster_state.stopped(queue, newcomers, candidates, held, free)[: self.left]
        self.left -= len(found)
        if found:
            self.waiting = [one.job for one in queue]
        return found


def ends(jobs, policy, gpus, stops, monkeypatch):
    """s at which each job ends. A restart costs nothing here."""
    monkeypatch.setattr(tick, "stopped", stops)
    setting = SimulationSetting(
        jobs,
        machines(f"fast={gpus}"),
        Drawn(limits=(1.0, 1.0)),
        limits=SchedulerLimits(interval_s=0.0),
        costs=Costs(restart_s=0.0),
        steering=PREEMPTS,
        options=OPTIONS.get(policy, {}),
    )
    return simulate(setting, policies.get(policy), policy).finish_s


@pytest.mark.parametrize("policy", STOPPING)
def test_no_unmanaged_job_that_waits_ends_later_for_a_stop(policy, monkeypatch):
    """Each stop is judged against the same run without it: until the unmanaged job starts, both
    together hold what the stopped one would have held, or less."""
    judged = 0
    for seed in range(QUEUES):
        jobs, managed = queue(seed)
        gpus = 1 + seed % 3
        before = ends(jobs, policy, gpus, Stops(0), monkeypatch)
        for most in range(1, MOST_STOPS + 1):
            stops = Stops(most)
            found = ends(jobs, policy, gpus, stops, monkeypatch)
            if stops.left:
                break
            others = [job for job in stops.waiting if not managed[job]]
            late = (found - before)[others]
            assert late.max(initial=0.0) < 1e-6, (seed, most, others, late)
            judged, before = judged + len(others), found
    assert judged
