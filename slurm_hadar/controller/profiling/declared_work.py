"""How far each user's declarations of work are to be believed: the GPU time that the user's jobs
received, set against the part of it within what they declared.

A job that ends early does no harm (early stopping is common); one that goes on beyond its declared
work does, by the GPU time that it takes beyond. So a few honest small jobs do not hide a large
false one. A job is judged by the least that its owner declared for it since its submission: that
is what it got its place by.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from slurm_hadar.controller.journal.declared_work_tables import (
    ASSUMED,
    DECLARED,
    DeclaredWorkTables,
    LeastDeclared,
)
from slurm_hadar.controller.snapshot.work import JobWork
from slurm_hadar.domain.job import Job

__all__ = ["ASSUMED", "FORGOTTEN_DAYS", "DeclaredWork", "of_assumed"]

FORGOTTEN_DAYS = 90
_DAY_S = 86400.0
_MOST = 1000.0
"""No user's declarations count for more times what they say."""
_KEEP_S = 30 * _DAY_S
"""How long the least declaration of a job is kept once the job is gone, as its GPU time is."""


class DeclaredWork:
    """GPU-seconds by user and day, and the least declaration of each job, in the state file."""

    def __init__(self, connection: sqlite3.Connection, names: tuple[str, str] = DECLARED) -> None:
        """``connection``: of the open state file; ``names``: of the tables, as of
        :class:`DeclaredWorkTables`."""
        self.tables = DeclaredWorkTables(connection, names)

    def trust_factors(self, now: float) -> dict[int, float]:
        """uid -> GPU time used over GPU time declared of the last :data:`FORGOTTEN_DAYS`, at least
        1; users whose declarations held are left out. ``now``: s since the epoch."""
        found = {}
        for uid, used, within in self.tables.sums(_day(now) - FORGOTTEN_DAYS):
            if 0 <= within < used < float("inf"):
                found[uid] = min(_MOST, used / max(within, used / _MOST))
        return found

    def learn(
        self, jobs: Sequence[Job], work: JobWork, before: Mapping[str, float], now: float
    ) -> None:
        """Take in what these jobs, waiting and running, declare now and received since the last
        tick. ``work``: of the same jobs; ``before``: job -> GPU-seconds that it had attained then;
        ``now``: s since the epoch."""
        used: defaultdict[int, float] = defaultdict(float)
        within: defaultdict[int, float] = defaultdict(float)
        known, kept = self.tables.least(job.id for job in jobs), []
        today = _day(now)
        for row, job in enumerate(jobs):
            least = _lessened(known.get(job.id), job, work, row)
            if least is None:
                continue
            kept.append((job.id, least))
            attained, was = float(work.attained[row]), before.get(job.id, 0.0)
            if not _counts(job) or least.per_gpu_s <= 0 or attained <= was:
                continue
            # The GPU time that its declared work takes at the speed that it had so far.
            due = least.samples / least.per_gpu_s
            used[job.uid] += attained - was
            within[job.uid] += min(attained, due) - min(was, due)
        self.tables.keep_least(kept, now, now - _KEEP_S)
        self.tables.add(today, used, within)
        if used:
            self.tables.forget(today - FORGOTTEN_DAYS)


def of_assumed(jobs: Sequence[Job], work: JobWork) -> tuple[list[Job], JobWork]:
    """Of these jobs those whose work was assumed from earlier ones, as if they had declared that,
    in its measure."""
    assumed = work.assumed
    rows = np.flatnonzero(assumed.jobs)
    taken = {f.name: getattr(work, f.name)[rows] for f in fields(work) if f.name != "assumed"}
    had, amount = assumed.had[rows], assumed.amount[rows]
    stated = {"declared": amount, "done": had, "received": had}
    return [jobs[int(row)] for row in rows], replace(work, **taken | stated)


def _lessened(
    known: LeastDeclared | None, job: Job, work: JobWork, row: int
) -> LeastDeclared | None:
    """What is known of the job once its present declaration is seen, None while it has none.

    A speed that was known stays where the job now declares a model of which none is.
    """
    declared = float(work.declared[row])
    if known is None and declared <= 0:
        return None
    samples = [one for one in (declared, known.samples if known else 0.0) if one > 0]
    attained, speed = float(work.attained[row]), known.per_gpu_s if known else 0.0
    received = _received(job, work, row)
    if received > 0 and attained > 0:
        speed = received / attained
    return LeastDeclared(min(samples), speed)


def _received(job: Job, work: JobWork, row: int) -> float:
    """Samples that the job received at least. Copies do as much as one of them does alone, or more:
    of these count the samples that the job reports, which can hide no more than that."""
    copies = job.declaration.fork[1] if job.declaration else 1
    return max(float(work.done[row]), float(work.received[row]) / max(1, copies))


def _counts(job: Job) -> bool:
    """Not one that had to do its work anew."""
    declared = job.declaration
    return declared is not None and (job.restarts == 0 or declared.habit not in ("", "restart"))


def _day(now: float) -> int:
    return int(now // _DAY_S)
