"""Gangs on whole types, the rival of relaxed synchronization: all tasks of a round at once.

A job holds as many GPUs of one type as a round has tasks, from its start to its end or until it is
preempted; a round takes a task's time and the exchange. Costs and times are those of the relaxed
simulation. Favourable to the gang: a preemption loses nothing of the round that it cuts.
"""

import time
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.policies.queues.tiresias import QUEUES
from slurm_hadar.simulator.tasks.allox import places
from slurm_hadar.simulator.tasks.jobs import TaskCosts, TaskJobs, TaskOutcome, check

_SAME = 1e-9


@dataclass(frozen=True)
class GangRule:
    """``order``: ``fifo``, ``srtf`` (least time left on the fastest type first), ``wsrtf`` (that
    per weight) or ``las`` (least attained service in Tiresias's queues; preempts, the others do
    not); ``allox`` (:mod:`~slurm_hadar.simulator.tasks.allox`: a matching says the type, shortest
    first on each) or ``homo`` (all types count as alike: ``wsrtf`` by the mean time over the
    cluster's GPUs, on the type with the most free ones; recalled from Hare's Sched_Homo, and gangs
    on one type are ours). A job that does not fit is overtaken. ``wait``: a job waits for a faster
    type where it would end sooner, and what it waits for is kept free for it; else it takes the
    fastest free type. With ``las`` it means that a running job goes to a faster type at each
    decision; else it stays on its type until it is preempted."""

    order: str
    wait: bool = False


def run(
    jobs: TaskJobs, gpus: IntArray, rule: GangRule, costs: TaskCosts, policy: str
) -> TaskOutcome:
    """Simulate to the end. Raises UsageError for a job that fits on no whole type."""
    check(jobs, gpus, gangs=True)
    began = time.perf_counter()
    return _GangSimulation(jobs, gpus, rule, costs).to_the_end(policy, began)


class _GangSimulation:
    def __init__(self, jobs: TaskJobs, gpus: IntArray, rule: GangRule, costs: TaskCosts) -> None:
        self.jobs, self.gpus, self.rule, self.costs = jobs, gpus, rule, costs
        number = len(jobs.ids)
        fits = np.isfinite(jobs.task_s) & (jobs.tasks[:, None] <= gpus)
        self.round_s: FloatArray = np.where(fits, jobs.task_s + jobs.sync_s[:, None], np.inf)
        self.left = jobs.rounds.astype(np.float64)
        self.attained = np.zeros(number)
        self.on: dict[int, int] = {}
        """Running jobs and their types."""
        self.ready = np.zeros(number)
        """When a running job's switch is over."""
        self.free: list[int] = gpus.tolist()
        self.finish = np.zeros(number)
        self.busy_s = np.zeros(len(gpus))
        self.switches = 0

    def to_the_end(self, policy: str, began: float) -> TaskOutcome:
        jobs = self.jobs
        coming = np.argsort(jobs.arrival_s, kind="stable").tolist()
        here: list[int] = []
        now = 0.0
        while coming or here:
            while coming and jobs.arrival_s[coming[0]] <= now + _SAME:
                here.append(coming.pop(0))
            order = self._in_order(here)
            if self.rule.order == "las":
                self._preempting(order, now)
            elif self.rule.order == "allox":
                self._matched(order, now)
            elif self.rule.wait:
                self._patient(order, now)
            else:
                self._first_free(order, now)
            until = self._next(now, coming)
            over = self._train(now, until)
            here = [job for job in here if job not in over]
            now = until
        wall = time.perf_counter() - began
        return TaskOutcome(policy, jobs, self.gpus, self.finish, self.busy_s, self.switches, wall)

    def _in_order(self, here: Sequence[int]) -> list[int]:
        rows = np.asarray(here, dtype=np.int64)
        arrival = self.jobs.arrival_s[rows]
        first: FloatArray = np.zeros(len(rows))
        if self.rule.order == "las":
            first += np.searchsorted(np.asarray(QUEUES), self.attained[rows] + 1e-6, side="right")
        elif self.rule.order != "fifo":
            first = self.left[rows] * self._length(rows)
            if self.rule.order in ("wsrtf", "homo"):
                first = first / np.maximum(self.jobs.weight[rows], 1e-9)
        order: list[int] = rows[np.lexsort((rows, arrival, first))].tolist()
        return order

    def _length(self, rows: IntArray) -> FloatArray:
        """(N,) a round on the fastest type, or on the mean GPU where all count as alike."""
        round_s = self.round_s[rows]
        if self.rule.order != "homo":
            fastest: FloatArray = round_s.min(axis=1, initial=np.inf)
            return fastest
        gpus = np.where(np.isfinite(round_s), self.gpus, 0)
        total = (np.where(gpus > 0, round_s, 0.0) * gpus).sum(axis=1)
        mean: FloatArray = total / gpus.sum(axis=1)
        return mean

    def _begin(self, job: int, kind: int, now: float) -> None:
        self.on[job] = kind
        self.free[kind] -= int(self.jobs.tasks[job])
        self.ready[job] = now + self.costs.switch_s
        self.switches += int(self.jobs.tasks[job])

    def _faster(self, job: int) -> list[int]:
        row = self.round_s[job]
        return [kind for kind in np.argsort(row, kind="stable").tolist() if np.isfinite(row[kind])]

    def _first_free(self, order: Sequence[int], now: float) -> None:
        for job in order:
            if job not in self.on:
                need = int(self.jobs.tasks[job])
                kinds = [kind for kind in self._faster(job) if self.free[kind] >= need]
                if self.rule.order == "homo":
                    kinds.sort(key=lambda kind: (-self.free[kind], kind))
                if kinds:
                    self._begin(job, kinds[0], now)

    def _matched(self, order: Sequence[int], now: float) -> None:
        """The jobs that the matching puts on a type, first in their queues first."""
        waiting = np.array([job for job in order if job not in self.on], dtype=np.int64)
        if not len(waiting) or not any(self.free):
            return
        when = [[max(at - now, 0.0) for at in row] for row in self._released(now)]
        seconds = self.left[waiting, None] * self.round_s[waiting]
        chosen = places(seconds, self.jobs.tasks[waiting], when)
        length = seconds[np.arange(len(waiting)), chosen[:, 0]]
        for at in np.lexsort((length, -chosen[:, 1])).tolist():
            job, kind = int(waiting[at]), int(chosen[at, 0])
            if self.free[kind] >= self.jobs.tasks[job]:
                self._begin(job, kind, now)

    def _released(self, now: float) -> list[list[float]]:
        """Per type, rising, when each GPU is free if running jobs go on to their ends."""
        when: list[list[float]] = [[now] * free for free in self.free]
        for job, kind in self.on.items():
            for _ in range(int(self.jobs.tasks[job])):
                insort(when[kind], self._ends(job, now))
        return when

    def _ends(self, job: int, now: float) -> float:
        starts = max(now, float(self.ready[job]))
        return starts + float(self.left[job] * self.round_s[job, self.on[job]])

    def _patient(self, order: Sequence[int], now: float) -> None:
        """Each waiting job in turn on the type where it would end first, or a place kept for it."""
        when = self._released(now)
        kept = [np.inf] * len(self.free)
        for job in order:
            if job in self.on:
                continue
            need = int(self.jobs.tasks[job])
            ends = [
                (when[kind][need - 1] + self.left[job] * self.round_s[job, kind], kind)
                for kind in self._faster(job)
            ]
            end, kind = min(ends)
            starts = when[kind][need - 1]
            if starts > now + _SAME:
                # Until then others may pass through what is kept free.
                small = [
                    k
                    for k in self._faster(job)
                    if self.free[k] >= need
                    and now + self.left[job] * self.round_s[job, k] <= min(kept[k], end)
                ]
                if not small:
                    kept[kind] = min(kept[kind], starts)
                    del when[kind][:need]
                    for _ in range(need):
                        insort(when[kind], end)
                    continue
                kind = small[0]
            elif self.free[kind] < need:
                continue
            self._begin(job, kind, now)
            if len(when[kind]) >= need:
                del when[kind][:need]
                for _ in range(need):
                    insort(when[kind], self._ends(job, now))

    def _preempting(self, order: Sequence[int], now: float) -> None:
        """In this order: a job that runs on its type, the others on the fastest that is left."""
        left: list[int] = self.gpus.tolist()
        chosen: dict[int, int] = {}
        for job in order:
            need = int(self.jobs.tasks[job])
            own = [self.on[job]] if job in self.on and not self.rule.wait else []
            kinds = [kind for kind in [*own, *self._faster(job)] if left[kind] >= need]
            if kinds:
                chosen[job] = kinds[0]
                left[kinds[0]] -= need
        for job, kind in list(self.on.items()):
            if chosen.get(job) != kind:
                self._stop(job)
        for job, kind in chosen.items():
            if job not in self.on:
                self._begin(job, kind, now)

    def _stop(self, job: int) -> None:
        self.free[self.on.pop(job)] += int(self.jobs.tasks[job])

    def _next(self, now: float, coming: Sequence[int]) -> float:
        times = [float(self.jobs.arrival_s[coming[0]])] if coming else []
        times += [self._ends(job, now) for job in self.on]
        if self.rule.order == "las":
            for job in self.on:
                above = [limit for limit in QUEUES if limit > self.attained[job] + 1e-6]
                if above:
                    need = (above[0] - self.attained[job]) / float(self.jobs.tasks[job])
                    times.append(now + need + 1e-6)
        return max(min(times), now)

    def _train(self, now: float, until: float) -> set[int]:
        """Run until then; who ended."""
        over: set[int] = set()
        for job, kind in list(self.on.items()):
            need = int(self.jobs.tasks[job])
            done = max(0.0, until - max(now, float(self.ready[job]))) / self.round_s[job, kind]
            done = min(done, float(self.left[job]))
            self.attained[job] += need * (until - now)
            self.busy_s[kind] += done * need * float(self.jobs.task_s[job, kind])
            self.left[job] -= done
            if self.left[job] <= _SAME * self.jobs.rounds[job] and until >= self.ready[job]:
                self.finish[job] = until
                over.add(job)
                self._stop(job)
        return over
