"""The jobs of a simulation in Slurm's order and the GPUs that they hold: what the schedulers and
the controller both read and change."""

from collections.abc import Collection, Iterable, Sequence
from math import inf

import numpy as np

from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.scheduling.free_over_time import FreeOverTime
from slurm_hadar.scheduling.slurm_schedulers import Waiting
from slurm_hadar.simulator.queue.order import QueueOrder
from slurm_hadar.simulator.queue.requests import Requests, requests
from slurm_hadar.simulator.queue.setting import SimulationSetting
from slurm_hadar.simulator.seats import Seats
from slurm_hadar.simulator.speed import TrueRates
from slurm_hadar.simulator.views import Present

_ABSENT, _WAITS, _RUNS, _OVER = range(4)


class ClusterState:
    """Arrays over J jobs and R types. Raises UsageError for a job that fits nowhere."""

    def __init__(self, setting: SimulationSetting) -> None:
        work, cluster = setting.workload, setting.cluster
        jobs = len(work.ids)
        self.work, self.cluster = work, cluster
        self.asked: Requests = requests(work, cluster, setting.drawn)
        self.order = QueueOrder(work, self.asked, setting.steering.exchange)
        self.seats = Seats(cluster)
        self.placed: dict[int, Placement] = {}
        """Of the jobs that run, in the order of their starts."""
        self.lists: dict[int, list[int]] = {}
        """The types of each job that arrived, in the order in which Slurm tries them."""
        self.present = Present.nothing(jobs)
        self.ready: FloatArray = np.zeros(jobs)
        """(J,) s from which a running job trains."""
        self.speed: FloatArray = np.zeros(jobs)
        """(J,) samples per s, 0: does not run."""
        self.on: IntArray = np.zeros((jobs, len(cluster.types)), dtype=np.int64)
        """(J, R) GPUs that each job holds."""
        self.finish: FloatArray = np.full(jobs, np.nan)
        """(J,) s; nan: not ended."""
        self.moves: IntArray = np.zeros(jobs, dtype=np.int64)
        """(J,) how often a running job was moved or stopped."""
        self.changed = False
        """Whether a job arrived, started, moved or ended since the controller last decided."""
        self._state: IntArray = np.full(jobs, _ABSENT)
        self._away: FloatArray = np.zeros(jobs)
        self._ends_by: FloatArray = np.full(jobs, inf)
        self._speeds = TrueRates(work, cluster, setting.costs)
        self._pause_s = setting.costs.pause_s

    @property
    def waits(self) -> BoolArray:
        """(J,) whether each job waits."""
        found: BoolArray = self._state == _WAITS
        return found

    @property
    def runs(self) -> BoolArray:
        """(J,) whether each job runs."""
        found: BoolArray = self._state == _RUNS
        return found

    def waiting(self) -> IntArray:
        """The jobs that wait, rising."""
        return np.flatnonzero(self.waits)

    def running(self) -> IntArray:
        """The jobs that run, in the order of their starts."""
        return np.fromiter(self.placed, dtype=np.int64, count=len(self.placed))

    def free(self) -> IntArray:
        """(R,) GPUs that no job holds."""
        found: IntArray = self.cluster.capacity - self.on.sum(axis=0)
        return found

    def queue(self, most: int) -> list[Waiting]:
        """The first jobs of the queue in Slurm's order."""
        jobs = self.order.sort(np.flatnonzero(self.waits & (self._away == 0)))[:most].tolist()
        counts, limits = self.work.request, self.asked.limit_s
        return [Waiting(j, self.lists[j], int(counts[j]), float(limits[j])) for j in jobs]

    def free_over_time(self, now: float) -> dict[int, FreeOverTime]:
        """What is free when by the limits of what runs."""
        found = {kind: FreeOverTime(now, int(free)) for kind, free in enumerate(self.free())}
        for job, kind in zip(*np.nonzero(self.on), strict=True):
            found[int(kind)].give(float(self._ends_by[job]), int(self.on[job, kind]))
        return found

    def ends(self, jobs: IntArray, now: float) -> FloatArray:
        """(J',) s at which these running jobs end where they are."""
        left = self.work.total[jobs] - self.present.done[jobs]
        ends: FloatArray = np.maximum(self.ready[jobs], now) + left / self.speed[jobs]
        return ends

    def arrive(self, now: float) -> list[int]:
        """The jobs that arrived until now join the queue, with the types that they ask for."""
        come = np.flatnonzero((self.work.arrival_s <= now) & (self._state == _ABSENT))
        self._state[come] = _WAITS
        jobs: list[int] = come.tolist()
        self.changed |= bool(jobs)
        self.lists.update((job, self.asked.kinds(job)) for job in jobs)
        return jobs

    def back(self, now: float) -> bool:
        """Jobs that were stopped and may start again from now on; whether there are some."""
        back = (self._away > 0) & (self._away <= now)
        self._away[back] = 0.0
        return bool(back.any())

    def next_back_s(self) -> float:
        """When the next job that was stopped may start again; inf: none was."""
        return float(self._away[self._away > 0].min(initial=inf))

    def fits(self, job: int, placement: Placement) -> bool:
        """Whether a placement is free, counting what the job holds as free."""
        return self.seats.fits(job, placement, int(self.work.max_nodes[job]))

    def start(self, job: int, placement: Placement, now: float) -> None:
        """A job that holds nothing runs."""
        self.order.start(job, now)
        self.seats.take({job: placement}, self.work.ids)
        seats = self.seats.of[job]
        self._state[job], self.placed[job] = _RUNS, placement
        self.speed[job] = self._speeds.of(job, placement, seats)
        again = self.moves[job] > 0
        self.ready[job] = now + (self._pause_s if again else 0.0)
        self._ends_by[job] = now + self.asked.limit_s[job]
        self.present.since[job] = now
        batches = self.work.batches
        own = int(batches.base[job]) if batches is not None else 0
        self.present.batch[job] = placement.batch or own
        self.present.given[job] = self._speeds.cpus_and_memory(job, placement)
        for _, kind, count in seats:
            self.on[job, kind] += count
        self.changed = True

    def let_noise_grow(self) -> None:
        """Set the speed of running jobs whose batch is worth more than at the last event."""
        for job in self._speeds.let_noise_grow(self.placed, self.present.done):
            self.speed[job] = self._speeds.of(job, self.placed[job], self.seats.of[job])

    def end(self, job: int, at_s: float) -> None:
        """A running job is done."""
        self._release(job)
        self._state[job], self.finish[job] = _OVER, at_s

    def requeue(self, job: int, now: float) -> None:
        """A running job waits again, with the types that it asks for."""
        self._release(job)
        self.moves[job] += 1
        self._state[job], self._away[job] = _WAITS, now + AWAY_S
        self.order.requeue(job, now + AWAY_S)
        self.lists[job] = self.asked.kinds(job)

    def move(self, job: int, placement: Placement, now: float) -> None:
        """A running job restarts elsewhere."""
        self._release(job)
        self.moves[job] += 1
        self.order.move(job, now)
        self.start(job, placement, now)

    def _release(self, job: int) -> None:
        del self.placed[job]
        self.on[job], self.speed[job] = 0, 0.0
        self.seats.release(job)
        self.changed = True


# Running jobs that are stopped for others, as the controller does under ``guards.preempt``: only
# where what they leave goes to a job that the plan starts, in Slurm's order.
AWAY_S = 121.0
"""A requeued job may not start, and gets no older, for so long, so that its node can end it
(cred_expire + 1 s)."""


def stopped(
    queue: Iterable[Waiting],
    newcomers: Collection[int],
    candidates: Sequence[int],
    held: IntArray,
    free: IntArray,
) -> list[int]:
    """Those of ``candidates`` that are stopped, in their order.

    ``queue``: who waits, in Slurm's order; ``newcomers``: those of them that the plan starts;
    ``held``: (J, R) GPUs of each job by type; ``free``: (R,) GPUs that no job has.
    """
    left = free + held[list(candidates)].sum(axis=0)
    needed = -free
    gains: set[int] = set()
    for one in queue:
        kind = next((kind for kind in one.kinds if one.count <= left[kind]), None)
        if kind is None:
            continue
        left[kind] -= one.count
        needed[kind] += one.count
        if one.job in newcomers:
            gains.add(kind)
    found = []
    for job in candidates:
        kinds = held[job].nonzero()[0].tolist()
        if any(kind in gains and needed[kind] > 0 for kind in kinds):
            needed = needed - held[job]
            found.append(job)
    return found
