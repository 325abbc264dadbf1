"""The simulation: rounds or events, the same ``decide`` as the controller's, jobs as arrays."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, State
from slurm_hadar.policies.record import Decide as Decide
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.estimates import Estimates, estimate
from slurm_hadar.simulator.job_owners import owners
from slurm_hadar.simulator.learning import ProgressReports, RateLearner
from slurm_hadar.simulator.node_limits import limits_of
from slurm_hadar.simulator.outcome import Outcome, Timeline
from slurm_hadar.simulator.seats import Seat, Seats
from slurm_hadar.simulator.speed import TrueRates
from slurm_hadar.simulator.views import Present, Views
from slurm_hadar.simulator.workload import Workload, check

EVENT_ROUND_S = 360.0
"""The round's length that a policy sees when decisions come with events."""

_MOST_IDLE = 1000
"""Decisions in a row without progress and without anything to wait for, after which it stops."""
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Clock:
    """When decisions are made. ``round_s`` 0: at each arrival and each finish.

    ``whole_steps``: as in Gavel's own simulator a round holds int(rate x round) steps, and it ends
    when the last of its jobs has done them, a little before the full length.
    """

    round_s: float = 360.0
    whole_steps: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.round_s <= 1e7:
            raise UsageError(f"--round {self.round_s:g}: it must be 0 (events) or a length in s")
        if self.whole_steps and not self.round_s:
            raise UsageError("whole steps need rounds: --round must be above 0")


class Links(Protocol):
    """A model of links that jobs share: what each loses to the traffic of the others. Asked once
    after every decision, as a job that comes or goes changes the others' speed."""

    def factors(self, jobs: IntArray, seats: Sequence[tuple[Seat, ...]]) -> FloatArray:
        """(K,) rate of each of these K jobs over what it has on the same seats with the links to
        itself, 0 < factor <= 1. ``seats``: where each of them runs."""
        ...

    def alone(self, jobs: IntArray, seats: Sequence[tuple[Seat, ...]]) -> FloatArray:
        """(K,) rate on these seats with the links to itself, over the rate on one machine."""
        ...


@dataclass(frozen=True, slots=True)
class RoundSetting:
    """How one simulation goes. ``options``: the policy's. ``seen``: what the policy sees; None: the
    truth. ``links``: what jobs lose to each other's traffic; None: nothing."""

    costs: Costs = field(default_factory=Costs)
    clock: Clock = field(default_factory=Clock)
    seed: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    seen: Estimates | None = None
    links: Links | None = None


def simulate(
    workload: Workload,
    cluster: VirtualCluster,
    decide: Decide,
    setting: RoundSetting | None = None,
    policy: str = "",
) -> Outcome:
    """Run all jobs to their end.

    Raises UsageError for a job that fits nowhere, HadarError for a plan that cannot be carried out.
    A policy that leaves jobs waiting without end ends with those unfinished, not in an endless
    loop.
    """
    check(workload, cluster)
    run = _PolicySimulation(workload, cluster, decide, setting or RoundSetting())
    started = time.perf_counter()
    run.to_the_end()
    return run.outcome(policy, time.perf_counter() - started)


class _PolicySimulation:
    def __init__(
        self, workload: Workload, cluster: VirtualCluster, decide: Decide, setting: RoundSetting
    ) -> None:
        jobs = len(workload.ids)
        self.workload, self.cluster, self.decide = workload, cluster, decide
        costs, self.seed = setting.costs, setting.seed
        self.costs, self.clock, self.links = costs, setting.clock, setting.links
        seen = setting.seen or estimate(workload)
        self.views = Views(workload, cluster, seen, costs, setting.seed, setting.options)
        limits = limits_of(cluster, workload)
        self.seats, self.speeds = Seats(cluster, limits), TrueRates(workload, cluster, costs)
        self.index = {id_: at for at, id_ in enumerate(workload.ids)}
        self.placed: dict[int, Placement] = {}
        self.present = Present.nothing(jobs)
        self.finish: FloatArray = np.full(jobs, np.nan)
        self.ready: FloatArray = np.zeros(jobs)
        self.speed: FloatArray = np.zeros(jobs)
        self.alone: FloatArray = np.zeros(jobs)
        self.apart: FloatArray = np.zeros(jobs)
        self.beside: dict[int, tuple[int, float | None, int | None]] = {}
        self.on: IntArray = np.zeros((jobs, len(cluster.types)), dtype=np.int64)
        self.started: BoolArray = np.zeros(jobs, dtype=bool)
        self.moves = self.present.moves
        self.decide_s: list[float] = []
        self.timeline = Timeline()

    def to_the_end(self) -> None:
        work = self.workload
        order = np.argsort(work.arrival_s, kind="stable")
        arrivals = work.arrival_s[order]
        here: BoolArray = np.zeros(len(order), dtype=bool)
        state: State = {}
        now, come, idle = float(arrivals[0]), 0, 0
        while True:
            upto = int(np.searchsorted(arrivals, now, side="right"))
            here[order[come:upto]] = True
            come = upto
            coming = float(arrivals[come]) if come < len(arrivals) else None
            active = np.flatnonzero(here)
            if not len(active):
                if coming is None:
                    return
                now = coming
                continue
            round_s = self.clock.round_s or EVENT_ROUND_S
            view = self.views.of(now, round_s, active, self.present, self.seats.of)
            began = time.perf_counter()
            plan, state = self.decide(view, state)
            self.decide_s.append(time.perf_counter() - began)
            self._apply(plan, now, here)
            before = float(self.present.done.sum())
            now, ended = self._train(now, coming)
            here[ended] = False
            # A pause that outlasts its round is no standstill, unless it comes again and again.
            moved_on = len(ended) or coming is not None or float(self.present.done.sum()) > before
            idle = 0 if moved_on else idle + 1
            if idle >= _MOST_IDLE:
                return

    def _apply(self, plan: Plan, now: float, here: BoolArray) -> None:
        wanted: dict[int, Placement] = {}
        for id_, placement in plan.placements.items():
            job = self.index.get(id_, -1)
            if job < 0 or not here[job]:
                raise HadarError(f"the plan places job {id_}, which is not there")
            if placement.gpus:
                wanted[job] = placement
        gone = [job for job in self.placed if job not in wanted]
        new = {job: p for job, p in wanted.items() if not _same(self.placed.get(job), p)}
        was = self._stop([*gone, *(job for job in new if job in self.placed)])
        for job in self.speeds.let_noise_grow(self.placed, self.present.done):
            rate = self.speeds.of(job, self.placed[job], self.seats.of[job])
            self.speed[job] = self.alone[job] = rate
        self.seats.take(new, self.workload.ids)
        if new:
            self._start(new, was, now)
        if self.links is not None and self.placed:
            self._share_links(self.links)

    def _share_links(self, links: Links) -> None:
        jobs = np.fromiter(self.placed, dtype=np.int64, count=len(self.placed))
        factors = links.factors(jobs, [self.seats.of[job] for job in jobs.tolist()])
        self.speed[jobs] = self.alone[jobs] * factors
        self.present.slowed[jobs] = factors * links.alone(
            jobs, [self.seats.of[j] for j in jobs.tolist()]
        )

    def _stop(self, jobs: list[int]) -> dict[int, tuple[Seat, ...]]:
        """Free what these jobs hold, and say what it was."""
        was = {job: self.seats.release(job) for job in jobs}
        for job in jobs:
            del self.placed[job]
        self.speed[jobs] = 0.0
        self.present.slowed[jobs] = 1.0
        self.on[jobs] = 0
        return was

    def _start(
        self, new: Mapping[int, Placement], was: Mapping[int, tuple[Seat, ...]], now: float
    ) -> None:
        """Set these jobs, which are seated, going; ``was``: what they held until now."""
        jobs = list(new)
        elsewhere: list[int] = []
        speed: list[float] = []
        on: list[tuple[int, int, int]] = []
        for job, placement in new.items():
            seats = self.seats.of[job]
            speed.append(self.speeds.of(job, placement, seats))
            beside = (self._batch(job, placement), placement.cpus_per_gpu, placement.mem_per_gpu_mb)
            before = was.get(job, ())
            if not before or beside != self.beside.get(job) or sorted(before) != sorted(seats):
                elsewhere.append(job)
            self.beside[job] = beside
            self.present.given[job] = self.speeds.cpus_and_memory(job, placement)
            on += [(job, kind, count) for _, kind, count in seats]
        self.placed.update(new)
        self.speed[jobs] = self.alone[jobs] = speed
        self.present.batch[jobs] = [self.beside[job][0] for job in jobs]
        rows, kinds, counts = np.array(on, dtype=np.int64).reshape(-1, 3).T
        np.add.at(self.on, (rows, kinds), counts)
        again = self.started[elsewhere]
        self.moves[elsewhere] += again
        self.present.since[elsewhere] = now
        self.ready[elsewhere] = np.where(again, now + self.costs.pause_s, now)
        self.started[elsewhere] = True

    def _batch(self, job: int, placement: Placement) -> int:
        trait = self.workload.batches
        return placement.batch or (int(trait.base[job]) if trait is not None else 0)

    def _train(self, now: float, coming: float | None) -> tuple[float, IntArray]:
        """Run until the next decision: its time, and the jobs that ended before it."""
        jobs = np.fromiter(self.placed, dtype=np.int64, count=len(self.placed))
        speed, ready = self.speed[jobs], np.maximum(self.ready[jobs], now)
        left = self.workload.total[jobs] - self.present.done[jobs]
        ends = ready + left / speed
        stop: FloatArray
        if self.clock.whole_steps:
            room = np.maximum(now + self.clock.round_s - ready, 0.0)
            steps = np.floor(speed * room)
            # A job that is too slow for one step a round would never end.
            steps = np.minimum(np.where(steps > 0, steps, speed * room), left)
            stop = np.where(steps > 0, ready + steps / speed, now + self.clock.round_s)
            over = left - steps <= 0
            until = float(stop.max(initial=now if len(jobs) else now + self.clock.round_s))
        else:
            until = self._next(now, ends, coming)
            over = ends <= until + _TOLERANCE * max(1.0, abs(until))
            steps = np.where(over, left, speed * np.maximum(until - ready, 0.0))
            stop = np.where(over, ends, until)
        self.present.done[jobs] = np.where(
            over, self.workload.total[jobs], self.present.done[jobs] + steps
        )
        if self.links is not None:
            gpus = self.on[jobs].sum(axis=1)
            lost = np.maximum(1.0 - self.present.slowed[jobs], 0.0)
            self.apart[jobs] += gpus * lost * np.maximum(stop - ready, 0.0)
        if self.views.learner is not None:
            self._report(self.views.learner, jobs, steps, np.maximum(stop - ready, 0.0))
        gpu_s = self.on[jobs] * (stop - now)[:, None]
        self.present.attained[jobs] += gpu_s.sum(axis=1)
        self.timeline.add(now, until, gpu_s.sum(axis=0), self._waiting(jobs, now))
        ended = jobs[over]
        self.finish[ended] = stop[over]
        self._stop(ended.tolist())
        return until, ended

    def _report(
        self, learner: RateLearner, jobs: IntArray, work: FloatArray, seconds: FloatArray
    ) -> None:
        """What jobs on GPUs of one type say of their progress."""
        places: list[tuple[int, int, int]] = []
        rows: list[int] = []
        for row, job in enumerate(jobs.tolist()):
            seats = self.seats.of[job]
            if len({kind for _, kind, _ in seats}) == 1 and self.placed[job].copies == 1:
                rows.append(row)
                places.append((seats[0][1], sum(n for _, _, n in seats), len(seats)))
        kind, gpus, nodes = np.array(places, dtype=np.int64).reshape(-1, 3).T
        learner.observe(ProgressReports(jobs[rows], kind, gpus, nodes, work[rows], seconds[rows]))

    def _waiting(self, running: IntArray, now: float) -> int:
        there = (self.workload.arrival_s <= now) & np.isnan(self.finish)
        return int(there.sum()) - len(running)

    def _next(self, now: float, ends: FloatArray, coming: float | None) -> float:
        if self.clock.round_s:
            return now + self.clock.round_s
        events = [float(ends.min())] if len(ends) else []
        if coming is not None:
            events.append(coming)
        return min(events, default=now + EVENT_ROUND_S)

    def outcome(self, policy: str, wall_s: float) -> Outcome:
        return Outcome(
            policy=policy,
            workload=self.workload,
            capacity=self.cluster.capacity,
            finish_s=self.finish,
            moves=self.moves,
            attained=self.present.attained,
            decide_s=np.array(self.decide_s),
            wall_s=wall_s,
            timeline=self.timeline,
            owners=owners(self.workload, self.seed),
            apart=self.apart if self.links is not None else None,
        )


def _same(old: Placement | None, new: Placement) -> bool:
    if old is None:
        return False
    if old is new:
        return True
    return (
        old.gpus == new.gpus
        and old.nodes == new.nodes
        and old.copies == new.copies
        and old.shares == new.shares
        and old.batch == new.batch
        and old.cpus_per_gpu == new.cpus_per_gpu
        and old.mem_per_gpu_mb == new.mem_per_gpu_mb
    )
