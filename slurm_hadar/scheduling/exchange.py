"""Which waiting jobs exchange their places in Slurm's queue.

A job that moves up asks for no more than the one whose place it gets, or no job outside the
exchange stands between the two. So a job outside the exchange sees ahead of it, in every place, the
job that was there before or one that asks for no more.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray

NO_EXCHANGE = -1
_J = TypeVar("_J")


class ExchangeLevel(StrEnum):
    """Which jobs may exchange places: ``queue.exchange`` of the site."""

    NONE = "none"
    ASSOCIATION = "association"
    ACCOUNT = "account"
    ALL = "all"

    def group(self, user: object, account: str, qos: str) -> tuple[object, ...]:
        """Jobs of one group may exchange places, as far as this goes."""
        match self:
            case ExchangeLevel.ACCOUNT:
                return (account,)
            case ExchangeLevel.ALL:
                return ()
            case _:
                return (user, account, qos)


@dataclass(frozen=True)
class QueuePlaces(Generic[_J]):
    """Job -> the place that is its ``own``, and the one that it has (``held``), both numbers."""

    own: dict[_J, int]
    held: dict[_J, int]

    def use(self, job: _J) -> None:
        """The job has started from the place that it had. If it was another's, all those who gave
        up theirs in turn keep what they got for it, or others would see two of them ahead where one
        was."""
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
    """(W,) jobs exchange places with those of their own group only; NO_EXCHANGE: with none."""
    asks: FloatArray
    """(W, M) what each asks for, of whatever the site counts: GPUs, nodes, seconds ..."""
    wish: FloatArray
    """(W,) the job with the lesser wish shall go first."""


def exchanged(line: WaitingJobs) -> IntArray:
    """(W,) the job that gets each place, as an index into the line."""
    jobs = np.arange(len(line.group))
    for place in range(len(jobs)):
        group = line.group[jobs[place]]
        if group == NO_EXCHANGE:
            continue
        behind = jobs[place + 1 :]
        ours = line.group[behind] == group
        sooner = ours & (line.wish[behind] < line.wish[jobs[place]])
        if not sooner.any():
            continue
        no_more = (line.asks[behind] <= line.asks[jobs[place]]).all(axis=1)
        among_us = np.logical_and.accumulate(ours)
        may = sooner & (no_more | among_us)
        if may.any():
            found = place + 1 + int(np.where(may, line.wish[behind], np.inf).argmin())
            jobs[[place, found]] = jobs[[found, place]]
    return jobs
