"""Relaxed fixed-scale synchronization, event by event: a round's tasks go wherever they end first.

Whenever a GPU is free, the tasks that are ready are gone through in the policy's order. Each is
promised to the GPU that would finish it first, those included that are busy now; it starts where
that GPU is idle. What is only promised is decided anew at the next event, so no job is bound to a
GPU by an old guess. A job's place in the order changes at its rounds' barriers only.

Ours (``spare``): the barrier waits for the last task, so the others may take the GPUs that the rest
of the jobs miss least, as long as they end by then too. What a type is missed by comes from the
tasks of the jobs that are there (:func:`~slurm_hadar.solvers.prices.scarcity`). The round ends no
later, and fast GPUs are free for whom they help most.
"""

import heapq
import time
from bisect import insort

import numpy as np

from slurm_hadar.domain.view import IntArray
from slurm_hadar.simulator.tasks.jobs import TaskCosts, TaskJobs, TaskOutcome, check
from slurm_hadar.simulator.tasks.orders import Key, Order
from slurm_hadar.solvers.prices import scarcity

PLAIN = "hare_plain"
"""The policy that spares no GPUs."""
_ROUND, _FREE = 0, 1
_SAME = 1e-9
_TIE = 0.02


def run(jobs: TaskJobs, gpus: IntArray, order: Order, costs: TaskCosts, policy: str) -> TaskOutcome:
    """Simulate to the end. Raises UsageError for a job that can run nowhere."""
    check(jobs, gpus, gangs=False)
    began = time.perf_counter()
    return _RelaxedSimulation(jobs, gpus, order, costs, policy != PLAIN).to_the_end(policy, began)


class _RelaxedSimulation:
    def __init__(
        self, jobs: TaskJobs, gpus: IntArray, order: Order, costs: TaskCosts, spare: bool
    ) -> None:
        self.spare = spare
        self.there: set[int] = set()
        self.until = [0.0] * len(jobs.ids)
        self.jobs, self.gpus, self.order = jobs, gpus, order
        self.switch_s = costs.switch_s
        number = len(jobs.ids)
        self.length = jobs.task_s.tolist()
        self.kinds = [
            [
                kind
                for kind in np.argsort(jobs.task_s[job], kind="stable").tolist()
                if np.isfinite(jobs.task_s[job, kind]) and gpus[kind] > 0
            ]
            for job in range(number)
        ]
        self.of_type: list[int] = np.repeat(np.arange(len(gpus)), gpus).tolist()
        self.last = [-1] * len(self.of_type)
        self.idle: list[list[int]] = [[] for _ in gpus]
        for gpu, kind in enumerate(self.of_type):
            self.idle[kind].append(gpu)
        self.idle_number = len(self.of_type)
        self.busy: list[list[float]] = [[] for _ in gpus]
        """Per type, rising, when its busy GPUs are free."""
        self.cheap = list(self.kinds)
        self.round = [0] * number
        self.waiting = [0] * number
        """Tasks of the present round that did not start."""
        self.running = [0] * number
        self.ready: list[tuple[Key, int]] = []
        self.events: list[tuple[float, int, int, int]] = []
        self.finish = np.zeros(number)
        self.busy_s = np.zeros(len(gpus))
        self.switches = 0

    def to_the_end(self, policy: str, began: float) -> TaskOutcome:
        jobs, events = self.jobs, self.events
        for job, arrival in enumerate(jobs.arrival_s.tolist()):
            heapq.heappush(events, (arrival, _ROUND, job, -1))
        while events:
            now = events[0][0]
            while events and events[0][0] == now:
                _, what, job, gpu = heapq.heappop(events)
                if what == _ROUND:
                    if not self.round[job]:
                        self.there.add(job)
                        self._price()
                    self.waiting[job] = int(jobs.tasks[job])
                    insort(self.ready, (self.order(job, self.round[job]), job))
                else:
                    self._free(now, job, gpu)
            if self.idle_number and self.ready:
                self._dispatch(now)
        wall = time.perf_counter() - began
        return TaskOutcome(policy, jobs, self.gpus, self.finish, self.busy_s, self.switches, wall)

    def _free(self, now: float, job: int, gpu: int) -> None:
        kind = self.of_type[gpu]
        self.idle[kind].append(gpu)
        self.idle_number += 1
        del self.busy[kind][0]
        self.running[job] -= 1
        if self.running[job] or self.waiting[job]:
            return
        self.round[job] += 1
        barrier = now + float(self.jobs.sync_s[job])
        if self.round[job] == self.jobs.rounds[job]:
            self.finish[job] = barrier
            self.there.discard(job)
            self._price()
        else:
            heapq.heappush(self.events, (barrier, _ROUND, job, -1))

    def _price(self) -> None:
        """Sort each job's types by what a task costs the others there."""
        if not self.spare or not self.there:
            return
        rows = sorted(self.there)
        length = self.jobs.task_s[rows]
        price = scarcity(length * self.jobs.tasks[rows][:, None], self.gpus).price
        # Of types at the same price the one that is worth less to all on average.
        worth = (length.min(axis=1, keepdims=True) / length).mean(axis=0)
        price = (price * (1.0 + _TIE * worth)).tolist()
        for job in rows:
            cost = {kind: price[kind] * self.length[job][kind] for kind in self.kinds[job]}
            self.cheap[job] = sorted(self.kinds[job], key=lambda kind: (cost[kind], kind))

    def _dispatch(self, now: float) -> None:
        # A copy: what is promised is forgotten afterwards.
        promised = [row.copy() for row in self.busy]
        started = False
        for _, job in self.ready:
            number = self.waiting[job]
            kinds, by = self.kinds[job], np.inf
            if self.spare:
                by = max(self.until[job], self._last(now, job, number, promised)) + _SAME
                kinds = self.cheap[job]
            for _ in range(number):
                finish, kind, gpu = self._best(now, job, promised, kinds, by)
                if gpu < 0:
                    del promised[kind][0]
                else:
                    self._start(now, job, gpu, finish)
                    started = True
                insort(promised[kind], finish)
            if not self.idle_number:
                break
        if started:
            self.ready = [row for row in self.ready if self.waiting[row[1]]]

    def _last(self, now: float, job: int, number: int, promised: list[list[float]]) -> float:
        """When the last of so many tasks would be done, each where it ends first."""
        length, switch_s = self.length[job], self.switch_s
        rows: list[tuple[float, list[float]]] = []
        for kind in self.kinds[job]:
            idle = self.idle[kind]
            row = [now] * len(idle)
            for at in range(sum(self.last[gpu] == job for gpu in idle)):
                row[at] = now - switch_s
            # Only the first few GPUs to be free can matter.
            rows.append(
                (length[kind] + switch_s, row + promised[kind][: max(0, number - len(row))])
            )
        end = now
        for left in range(number, 0, -1):
            end, first = np.inf, rows[0][1]
            for step, row in rows:
                if row and row[0] + step < end:
                    end, first = row[0] + step, row
            del first[0]
            if left > 1:
                insort(first, end)
        return end

    def _best(
        self, now: float, job: int, promised: list[list[float]], kinds: list[int], by: float
    ) -> tuple[float, int, int]:
        """When, on which type and which idle GPU (-1: a busy one) a task would be done: on the
        first of ``kinds`` where that is no later than ``by``, else where it is done first."""
        best, at, gpu = np.inf, -1, -1
        length = self.length[job]
        for kind in kinds:
            idle = self.idle[kind]
            if idle:
                own = next((one for one in reversed(idle) if self.last[one] == job), -1)
                finish = now + length[kind] + (0.0 if own >= 0 else self.switch_s)
                one = own if own >= 0 else idle[0]
            else:
                finish, one = promised[kind][0] + length[kind] + self.switch_s, -1
            if finish < best:
                best, at, gpu = finish, kind, one
                if finish <= by < np.inf:
                    break
        return best, at, gpu

    def _start(self, now: float, job: int, gpu: int, finish: float) -> None:
        kind = self.of_type[gpu]
        self.idle[kind].remove(gpu)
        self.idle_number -= 1
        insort(self.busy[kind], finish)
        heapq.heappush(self.events, (finish, _FREE, job, gpu))
        self.waiting[job] -= 1
        self.running[job] += 1
        self.until[job] = max(self.until[job], finish)
        self.busy_s[kind] += self.length[job][kind]
        self.switches += self.last[gpu] not in (-1, job)
        self.last[gpu] = job
