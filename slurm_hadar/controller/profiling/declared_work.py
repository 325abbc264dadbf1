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
from dataclasses import dataclass

from slurm_hadar.controller.snapshot.work import JobWork
from slurm_hadar.domain.job import Job

FORGOTTEN_DAYS = 90
_DAY_S = 86400.0
_MOST = 1000.0
"""No user's declarations count for more times what they say."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS declared_work (
    uid INTEGER NOT NULL, day INTEGER NOT NULL, used_gpu_s REAL NOT NULL,
    within_gpu_s REAL NOT NULL, PRIMARY KEY (uid, day)
)
"""
_LEAST_SCHEMA = """
CREATE TABLE IF NOT EXISTS least_declared (
    job TEXT PRIMARY KEY, samples REAL NOT NULL, per_gpu_s REAL NOT NULL, seen_s REAL NOT NULL
)
"""
_KEEP_S = 30 * _DAY_S
"""How long the least declaration of a job is kept once the job is gone, as its GPU time is."""
_ADD = (
    "INSERT INTO declared_work VALUES (?,?,?,?) ON CONFLICT (uid, day) DO UPDATE SET"
    " used_gpu_s=used_gpu_s+excluded.used_gpu_s, within_gpu_s=within_gpu_s+excluded.within_gpu_s"
)


class DeclaredWork:
    """GPU-seconds by user and day, and the least declaration of each job, in the state file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Make the tables that are missing; earlier releases ignore them."""
        self._connection = connection
        self._connection.execute(_SCHEMA)
        self._connection.execute(_LEAST_SCHEMA)

    def factors(self, now: float) -> dict[int, float]:
        """uid -> GPU time used over GPU time declared of the last :data:`FORGOTTEN_DAYS`, at least
        1; users whose declarations held are left out. ``now``: s since the epoch."""
        rows = self._connection.execute(
            "SELECT uid, TOTAL(used_gpu_s), TOTAL(within_gpu_s) FROM declared_work WHERE day>?"
            " GROUP BY uid",
            (_day(now) - FORGOTTEN_DAYS,),
        )
        found = {}
        for uid, used, within in rows:
            if 0 <= within < used < float("inf"):
                found[int(uid)] = min(_MOST, float(used) / max(float(within), float(used) / _MOST))
        return found

    def learn(
        self, jobs: Sequence[Job], work: JobWork, before: Mapping[str, float], now: float
    ) -> None:
        """Take in what these jobs, waiting and running, declare now and received since the last
        tick. ``work``: of the same jobs; ``before``: job -> GPU-seconds that it had attained then;
        ``now``: s since the epoch."""
        used: defaultdict[int, float] = defaultdict(float)
        within: defaultdict[int, float] = defaultdict(float)
        known, kept = self._least([job.id for job in jobs]), []
        today = _day(now)
        for row, job in enumerate(jobs):
            least = _lessened(known.get(job.id), job, work, row)
            if least is None:
                continue
            kept.append((job.id, least.samples, least.per_gpu_s, now))
            attained, was = float(work.attained[row]), before.get(job.id, 0.0)
            if not _counts(job) or least.per_gpu_s <= 0 or attained <= was:
                continue
            # The GPU time that its declared work takes at the speed that it had so far.
            due = least.samples / least.per_gpu_s
            used[job.uid] += attained - was
            within[job.uid] += min(attained, due) - min(was, due)
        self._keep(kept, now)
        self._connection.executemany(
            _ADD, [(uid, today, seconds, within[uid]) for uid, seconds in used.items()]
        )
        if used:
            oldest = today - FORGOTTEN_DAYS
            self._connection.execute("DELETE FROM declared_work WHERE day<=?", (oldest,))

    def _least(self, jobs: Sequence[str]) -> dict[str, "_Least"]:
        found = {}
        for job in jobs:
            row = self._connection.execute(
                "SELECT CAST(samples AS REAL), CAST(per_gpu_s AS REAL) FROM least_declared"
                " WHERE job=?",
                (job,),
            ).fetchone()
            if row is not None:
                found[job] = _Least(*row)
        return found

    def _keep(self, rows: Sequence[tuple[str, float, float, float]], now: float) -> None:
        # One write to the disk for all jobs.
        self._connection.execute("SAVEPOINT least")
        self._connection.executemany("INSERT OR REPLACE INTO least_declared VALUES (?,?,?,?)", rows)
        self._connection.execute("DELETE FROM least_declared WHERE seen_s<?", (now - _KEEP_S,))
        self._connection.execute("RELEASE least")


@dataclass(frozen=True)
class _Least:
    """The least work declared of a job, in ``samples``, and ``per_gpu_s``: samples that it received
    in each of its GPU-seconds so far, 0 while that is unknown."""

    samples: float
    per_gpu_s: float


def _lessened(known: _Least | None, job: Job, work: JobWork, row: int) -> _Least | None:
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
    return _Least(min(samples), speed)


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
