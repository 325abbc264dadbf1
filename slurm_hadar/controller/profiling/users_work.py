"""How much work the jobs of a user are: how far the user's declarations are to be believed, and
what is assumed of a job that declares none.

**Declarations**: the GPU time that the user's jobs received, set against the part of it within what
they declared. A job that ends early does no harm (early stopping is common); one that goes on
beyond its declared work does, by the GPU time that it takes beyond. So a few honest small jobs do
not hide a large false one. A job is judged by the least that its owner declared for it since its
submission: that is what it got its place by.

**Assumptions**: by how much work the user's earlier jobs were, by name and model (as in A-SRPT, by
past jobs of the same name, model and user). Only jobs that Slurm shows as COMPLETED count: one that
was cancelled or failed says nothing of how long it would have been.
"""

import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from slurm_hadar.controller.journal.work_tables import (
    DECLARED,
    DeclaredWorkTables,
    EndedJob,
    EndedJobsTable,
    LeastDeclared,
)
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.assumed_work import EarlierJobs, Likeness, likeness
from slurm_hadar.controller.snapshot.work import JobWork
from slurm_hadar.domain.job import Job, JobState

FORGOTTEN_DAYS = 90
_DAY_S = 86400.0
_MOST_TIMES = 1000.0
"""No user's declarations count for more times what they say."""
_KEEP_S = 30 * _DAY_S
"""How long the least declaration of a job is kept once the job is gone, as its GPU time is."""
MOST_ALIKE = 20
"""Jobs of one user, name and model that are kept: the last ones."""
MOST_OF_USER = 1000
MOST = 20_000
"""Jobs that are kept: the last ones of a user, and of all."""


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
                found[uid] = min(_MOST_TIMES, used / max(within, used / _MOST_TIMES))
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


class EarlierJobsLearner:
    """The jobs that ended, in the state file; read once, as one controller writes it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """``connection``: of the open state file."""
        self._table = EndedJobsTable(connection)
        self._kept: dict[str, EndedJob] = {}
        self._alike: dict[Likeness, EarlierJobs] = {}
        self._learned: dict[str, tuple[float, float]] = {}
        """Jobs that Slurm still shows -> end and samples, whether or not they were kept."""
        self.read_again()

    def read_again(self) -> None:
        """Have what the file holds now, as after a transaction that was undone."""
        self._kept = {row.job: row for row in self._table.rows(0.0)}
        self._alike = _by_likeness(self._kept)
        self._learned = {}

    def of(self, now: float) -> Mapping[Likeness, EarlierJobs]:
        """What is known, by user, name and model. ``now``: s since the epoch."""
        if any(row.end_s < now - FORGOTTEN_DAYS * _DAY_S for row in self._kept.values()):
            self._drop(now)
        return self._alike

    def learn(self, observation: Observation, attained: Mapping[str, float]) -> None:
        """Take in the managed jobs that ended well. ``attained``: job -> its GPU-seconds.

        A job is shown for some minutes after its end, and its last report may come late.
        """
        added, learned = [], {}
        for job in observation.jobs.values():
            had, report = attained.get(job.id, 0.0), observation.progress.get(job.id)
            # One of a partition that opts jobs in shows no declaration any more.
            ours = job.managed or had > 0
            if not (job.state is JobState.FINISHED and ours and _ended_well(job)):
                continue
            samples = float(report.samples) if report is not None else 0.0
            # Not every tick reads every report.
            samples = max(samples, self._learned.get(job.id, (0.0, 0.0))[1])
            if job.end_s < observation.now - FORGOTTEN_DAYS * _DAY_S or not (
                samples > 0 or had > 0
            ):
                continue
            learned[job.id] = (job.end_s, samples)
            if self._learned.get(job.id) != learned[job.id]:
                added.append(EndedJob(job.id, *likeness(job), samples, had, job.end_s))
        self._learned = learned
        added = [row for row in added if self._kept.get(row.job) != row]
        if not added:
            return
        self._kept |= {row.job: row for row in added}
        removed = self._drop(observation.now)
        kept = [row for row in added if row.job in self._kept]
        self._table.change(kept, removed, observation.now - FORGOTTEN_DAYS * _DAY_S)

    def _drop(self, now: float) -> list[str]:
        """Drop what is too old or too much, from memory; which jobs."""
        alike: Counter[Likeness] = Counter()
        by_user: Counter[int] = Counter()
        kept: dict[str, EndedJob] = {}
        for row in sorted(self._kept.values(), key=lambda row: row.end_s, reverse=True):
            alike_as = (row.uid, row.name, row.model)
            room = len(kept) < MOST and by_user[row.uid] < MOST_OF_USER
            if room and alike[alike_as] < MOST_ALIKE and row.end_s >= now - FORGOTTEN_DAYS * _DAY_S:
                kept[row.job] = row
                alike[alike_as] += 1
                by_user[row.uid] += 1
        removed = [id_ for id_ in self._kept if id_ not in kept]
        self._kept = kept
        self._alike = _by_likeness(kept)
        return removed


def _by_likeness(rows: Mapping[str, EndedJob]) -> dict[Likeness, EarlierJobs]:
    found: defaultdict[Likeness, list[EndedJob]] = defaultdict(list)
    for row in rows.values():
        found[row.uid, row.name, row.model].append(row)
    return {
        alike_as: EarlierJobs(
            tuple(row.samples for row in some if 0 < row.samples < math.inf),
            tuple(row.gpu_s for row in some if 0 < row.gpu_s < math.inf),
        )
        for alike_as, some in found.items()
    }


def _ended_well(job: Job) -> bool:
    return job.slurm_state.split()[:1] == ["COMPLETED"]
