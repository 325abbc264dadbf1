"""The simulation in Slurm's order: its schedulers start the jobs, a controller steers them."""

import time
from math import inf

import numpy as np

from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.policies.record import Decide
from slurm_hadar.scheduling import slurm_schedulers
from slurm_hadar.simulator.job_owners import JobOwners
from slurm_hadar.simulator.outcome import Outcome, Timeline
from slurm_hadar.simulator.queue.cluster_state import ClusterState
from slurm_hadar.simulator.queue.setting import SimulationSetting
from slurm_hadar.simulator.queue.tick import SimulatedController
from slurm_hadar.simulator.workload import check

_TOLERANCE = 1e-9


def simulate(setting: SimulationSetting, decide: Decide | None, policy: str = "") -> Outcome:
    """Run all jobs to their end. ``decide`` None: Slurm alone.

    Raises UsageError for a job that fits nowhere, HadarError for a plan that cannot be.
    """
    check(setting.workload, setting.cluster)
    run = _QueueSimulation(setting, decide)
    began = time.perf_counter()
    run.to_the_end()
    return run.outcome(policy, time.perf_counter() - began)


class _QueueSimulation:
    def __init__(self, setting: SimulationSetting, decide: Decide | None) -> None:
        self.limits, self.work, self.cluster = setting.limits, setting.workload, setting.cluster
        self.state = ClusterState(setting)
        self.controller = SimulatedController(setting, self.state, decide) if decide else None
        self.timeline = Timeline()

    def to_the_end(self) -> None:
        state, interval = self.state, self.limits.interval_s
        arrivals = np.sort(self.work.arrival_s)
        now, filled, waits = float(arrivals[0]), -inf, False
        while True:
            if self._arrive(now) or state.back(now) or waits:
                queue = state.queue(self.limits.depth)
                slurm_schedulers.main_scheduler(queue, len(self.cluster.types), self._starter(now))
                waits = True
            if waits and now >= filled + interval:
                queue, free = state.queue(self.limits.tested), state.free_over_time(now)
                slurm_schedulers.backfill_scheduler(queue, free, self._starter(now))
                filled, waits = now, False
            tick = inf
            if self.controller is not None:
                waits |= self.controller.tick_if_due(now)
                tick = self.controller.next_tick_s
            until = min(tick, self._next(now, arrivals))
            if waits:
                until = min(until, max(now, filled + interval))
            if until == inf:
                return
            waits |= self._train(now, until)
            now = until
            state.let_noise_grow()

    def _next(self, now: float, arrivals: FloatArray) -> float:
        """When the next job ends, arrives or may start again; inf: never."""
        come = int(np.searchsorted(arrivals, now, side="right"))
        coming = float(arrivals[come]) if come < len(arrivals) else inf
        ending = self.state.ends(self.state.running(), now).min(initial=inf)
        return min(coming, float(ending), self.state.next_back_s())

    def _arrive(self, now: float) -> bool:
        """Jobs that arrived until now join the queue, with the list that hbatch gives them."""
        come = self.state.arrive(now)
        if come and self.controller is not None:
            self.controller.submitted(come)
        return bool(come)

    def _starter(self, now: float) -> slurm_schedulers.Start:
        state, types, gpus = self.state, self.cluster.types, self.work.request

        def start(job: int, kind: int) -> bool:
            placement = Placement(gpus={types[kind]: int(gpus[job])})
            if job in state.placed or not state.fits(job, placement):
                return False
            state.start(job, placement, now)
            return True

        return start

    def _train(self, now: float, until: float) -> bool:
        """Run to the next event; whether a job ended."""
        state = self.state
        jobs = state.running()
        ends, done = state.ends(jobs, now), state.present.done
        over = ends <= until + _TOLERANCE * max(1.0, abs(until))
        stop = np.where(over, ends, until)
        trained = state.speed[jobs] * np.maximum(until - np.maximum(state.ready[jobs], now), 0.0)
        done[jobs] = np.where(over, self.work.total[jobs], done[jobs] + trained)
        gpu_s = state.on[jobs] * (stop - now)[:, None]
        state.present.attained[jobs] += gpu_s.sum(axis=1)
        self.timeline.add(now, until, gpu_s.sum(axis=0), int(state.waits.sum()))
        for job, end in zip(jobs[over].tolist(), stop[over].tolist(), strict=True):
            state.end(job, end)
        return bool(over.any())

    def outcome(self, policy: str, wall_s: float) -> Outcome:
        """What came of it."""
        state, controller = self.state, self.controller
        return Outcome(
            policy=policy,
            workload=self.work,
            capacity=self.cluster.capacity,
            finish_s=state.finish,
            moves=state.moves,
            attained=state.present.attained,
            decide_s=np.array(controller.decide_s if controller is not None else []),
            wall_s=wall_s,
            timeline=self.timeline,
            owners=JobOwners(state.asked.users, state.asked.accounts),
            order="slurm",
            managed=state.asked.managed,
        )
