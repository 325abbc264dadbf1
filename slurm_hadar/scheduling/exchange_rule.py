"""Which waiting jobs exchange their places in Slurm's queue.

A job that moves up requests no more than the job whose place it gets, or no job outside the
exchange is between the two. So a job outside the exchange has ahead of it, in each place, the job
that was there before or one that requests no more.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray

NO_EXCHANGE = -1
"""Group of jobs that take part in no exchange."""
_J = TypeVar("_J")


class ExchangeLevel(StrEnum):
    """Which jobs may exchange places: ``queue.exchange`` of the site."""

    NONE = "none"
    ASSOCIATION = "association"
    ACCOUNT = "account"
    ALL = "all"

    def group(self, user: object, account: str, qos: str) -> tuple[object, ...]:
        """The key of a job: jobs with equal keys may exchange places."""
        match self:
            case ExchangeLevel.ACCOUNT:
                return (account,)
            case ExchangeLevel.ALL:
                return ()
            case _:
                return (user, account, qos)


@dataclass(frozen=True)
class QueuePlaces(Generic[_J]):
    """Job -> its ``own`` place, and the place that it has now (``held``); both are numbers."""

    own: dict[_J, int]
    held: dict[_J, int]

    def use(self, job: _J) -> None:
        """Record that the job has started from its present place. If that was another job's own,
        each job along the chain of exchanges keeps the place that it got; otherwise other jobs
        would have two of them ahead where one was."""
        if self.own[job] == self.held[job]:
            return
        owners = {own: one for one, own in self.own.items()}
        one = job
        while self.own[one] != (held := self.held[one]):
            self.own[one] = held
            if held not in owners:
                return
            one = owners[held]


@dataclass(frozen=True)
class WaitingJobs:
    """W waiting jobs in Slurm's order, the next to start first."""

    group: IntArray
    """(W,) a job exchanges places within its group only; NO_EXCHANGE: not at all."""
    requested: FloatArray
    """(W, M) amounts that each job requests of what the site counts: GPUs, nodes, seconds, ..."""
    rank: FloatArray
    """(W,) desired order: the job with the lower rank should go first."""


def exchanged(queue: WaitingJobs) -> IntArray:
    """(W,) the job that gets each place, as an index into the queue."""
    jobs = np.arange(len(queue.group))
    for place in range(len(jobs)):
        group = queue.group[jobs[place]]
        if group == NO_EXCHANGE:
            continue
        behind = jobs[place + 1 :]
        ours = queue.group[behind] == group
        sooner = ours & (queue.rank[behind] < queue.rank[jobs[place]])
        if not sooner.any():
            continue
        no_more = (queue.requested[behind] <= queue.requested[jobs[place]]).all(axis=1)
        among_us = np.logical_and.accumulate(ours)
        may = sooner & (no_more | among_us)
        if may.any():
            found = place + 1 + int(np.where(may, queue.rank[behind], np.inf).argmin())
            jobs[[place, found]] = jobs[[found, place]]
    return jobs
