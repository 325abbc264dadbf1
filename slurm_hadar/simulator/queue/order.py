"""The order of the simulated queue: Slurm's own, and what managed jobs exchange in it."""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.scheduling.exchange_rule import (
    NO_EXCHANGE,
    ExchangeLevel,
    QueuePlaces,
    WaitingJobs,
    exchanged,
)
from slurm_hadar.scheduling.twin import ExpectedEnds
from slurm_hadar.simulator.queue.requests import Requests
from slurm_hadar.simulator.workload import Workload

_APART = 1 << 32
"""Between two places, so that requeued jobs find one."""


class QueueOrder:
    """The places of J jobs, lesser first: Slurm's priority decides, then who came first."""

    def __init__(self, work: Workload, asked: Requests, level: ExchangeLevel) -> None:
        jobs = len(work.ids)
        order = np.lexsort((np.arange(jobs), work.arrival_s, -asked.priority))
        place = dict(zip(order.tolist(), range(0, jobs * _APART, _APART), strict=True))
        self._rank: IntArray = np.array([place[job] for job in range(jobs)], dtype=np.int64)
        self._arrival_s, self._priority, self._requeued = work.arrival_s, asked.priority, 0
        self.may_change = level is not ExchangeLevel.NONE
        self._places = QueuePlaces(place, dict(place))
        self._group = _groups(asked, level)
        self._asks: FloatArray = np.column_stack((work.request, asked.limit_s, asked.types))
        self._promises: ExpectedEnds[int] = ExpectedEnds()

    def sort(self, jobs: IntArray) -> IntArray:
        """Jobs in the order in which Slurm looks at them."""
        found: IntArray = np.array(sorted(jobs.tolist(), key=self._places.held.__getitem__))
        return found.astype(np.int64)

    def is_ahead(self, waiting: int, running: int) -> bool:
        """Whether Slurm looks at a job that waits before one that runs, were this one requeued and
        given the age that it would have if it had waited until now: Slurm counts none meanwhile."""
        return self._places.held[waiting] < self._places.own[running]

    def owners(self, jobs: IntArray) -> IntArray:
        """The places (J,) that the jobs would have now without any exchange."""
        own: IntArray = np.array([self._places.own[job] for job in jobs.tolist()], dtype=np.int64)
        return own

    def start(self, job: int) -> None:
        """A job starts from the place that it has."""
        self._places.use(job)

    def requeue(self, job: int, now: float) -> None:
        """A job waits again: without its age it is the last of its priority, and exchanges no
        place."""
        same = self._priority == self._priority[job]
        behind = (same & (self._arrival_s > now)) | (self._priority < self._priority[job])
        end = int(self._rank[behind].min(initial=_APART * len(behind)))
        self._requeued += 1
        place = end - _APART + self._requeued
        self._places.own[job] = self._places.held[job] = place
        self._group[job] = NO_EXCHANGE

    def unpromised(self, jobs: IntArray) -> bool:
        """Whether some of the jobs have no promised end yet."""
        return not self._promises.known(jobs.tolist())

    def promise(self, jobs: IntArray, ends: FloatArray) -> None:
        """``ends``: s at which the jobs would end as things stand; what was promised holds."""
        self._promises.add(jobs.tolist(), ends.tolist())

    def exchange(self, waiting: Sequence[int], planned: BoolArray) -> None:
        """Give the waiting jobs their places anew. ``planned``: those that the policy would start
        now."""
        own = self._places.own
        line = sorted(waiting, key=own.__getitem__)
        first = dict(zip(waiting, planned.tolist(), strict=True))
        rank = self._promises.ranks(line, [first[job] for job in line])
        at = np.array(line, dtype=np.int64)
        who = exchanged(WaitingJobs(self._group[at], self._asks[at], rank))
        for before, after in zip(line, at[who].tolist(), strict=True):
            self._places.held[after] = own[before]


def _groups(asked: Requests, level: ExchangeLevel) -> IntArray:
    """(J,) jobs of one number may exchange their places."""
    numbers: dict[tuple[object, ...], int] = {}
    found = []
    for job, managed in enumerate(asked.managed.tolist()):
        own = level.group(asked.users[job], asked.accounts[job], "")
        label = (*own, *asked.types[job].tolist())
        found.append(numbers.setdefault(label, len(numbers)) if managed else NO_EXCHANGE)
    return np.array(found, dtype=np.int64)
