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

_Key = tuple[float, float, int]
"""Of a place, the lesser goes first: priority, s since which a job that only waited would have
waited for as long, number of the job that had it first."""


class QueueOrder:
    """The places of J jobs: Slurm's priority decides, then the age, then the smaller number.

    As under ``priority/multifactor`` a job gets older only while it waits.
    """

    def __init__(self, work: Workload, asked: Requests, level: ExchangeLevel) -> None:
        jobs = range(len(work.ids))
        self._priority: list[float] = (-asked.priority).tolist()
        self._keys: list[_Key] = list(
            zip(self._priority, work.arrival_s.tolist(), jobs, strict=True)
        )
        # A place is an index into the keys.
        self._places = QueuePlaces({job: job for job in jobs}, {job: job for job in jobs})
        self._began: dict[int, float] = {}
        self.may_change = level is not ExchangeLevel.NONE
        self._group = _groups(asked, level)
        self._asks: FloatArray = np.column_stack((work.request, asked.limit_s, asked.types))
        self._promises: ExpectedEnds[int] = ExpectedEnds()

    def sort(self, jobs: IntArray) -> IntArray:
        """Waiting jobs in the order in which Slurm looks at them."""
        held = self._places.held
        found: IntArray = np.array(sorted(jobs.tolist(), key=lambda job: self._keys[held[job]]))
        return found.astype(np.int64)

    def owners(self, jobs: IntArray, now: float) -> IntArray:
        """The ranks (J,) that the jobs would have now without any exchange, were those that run
        moved."""
        keys = [self._own(job, now) for job in jobs.tolist()]
        found: IntArray = np.empty(len(keys), dtype=np.int64)
        found[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
        return found

    def is_ahead(self, waiting: int, running: int, now: float) -> bool:
        """Whether Slurm looks at a job that waits before one that runs, were this one moved."""
        return self._keys[self._places.held[waiting]] < self._own(running, now)

    def start(self, job: int, now: float) -> None:
        """A job starts from the place that it has."""
        self._places.use(job)
        self._began[job] = now

    def move(self, job: int, now: float) -> None:
        """A running job waits again with the age that it had: the controller gives it back."""
        self._put(job, self._own(job, now))

    def requeue(self, job: int, since_s: float) -> None:
        """A job waits again, without any age until ``since_s``, and exchanges no place."""
        self._put(job, (self._priority[job], since_s, job))
        self._group[job] = NO_EXCHANGE

    def _own(self, job: int, now: float) -> _Key:
        priority, since, number = self._keys[self._places.own[job]]
        return priority, since + now - self._began.get(job, now), number

    def _put(self, job: int, key: _Key) -> None:
        self._places.own[job] = self._places.held[job] = len(self._keys)
        self._keys.append(key)
        self._began.pop(job, None)

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
        line = sorted(waiting, key=lambda job: self._keys[own[job]])
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
