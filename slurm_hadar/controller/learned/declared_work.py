"""How far each user's declarations of work are to be believed: the GPU time that his jobs received,
set against the part of it that lay within what they declared.

A job that ends early counts for nobody's harm (early stopping is common); one that goes on beyond
its declared work does, by the GPU time that it takes beyond. So a few honest small jobs do not hide
a large false one.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence

from slurm_hadar.controller.picture.work import Work
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
_ADD = (
    "INSERT INTO declared_work VALUES (?,?,?,?) ON CONFLICT (uid, day) DO UPDATE SET"
    " used_gpu_s=used_gpu_s+excluded.used_gpu_s, within_gpu_s=within_gpu_s+excluded.within_gpu_s"
)


class DeclaredWork:
    """GPU-seconds by user and day, in the state file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Make the table if it is missing."""
        self._connection = connection
        self._connection.execute(_SCHEMA)

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
        self, jobs: Sequence[Job], work: Work, before: Mapping[str, float], now: float
    ) -> None:
        """Take in what these jobs received since the last tick. ``work``: of the same jobs;
        ``before``: job -> GPU-seconds that it had attained then."""
        used: defaultdict[int, float] = defaultdict(float)
        within: defaultdict[int, float] = defaultdict(float)
        for row, job in enumerate(jobs):
            declared, received = float(work.declared[row]), float(work.received[row])
            attained, was = float(work.attained[row]), before.get(job.id, 0.0)
            if not _counts(job) or min(declared, received) <= 0 or attained <= was:
                continue
            # The GPU time that its declared work takes at the speed that it had so far.
            due = attained * declared / received
            used[job.uid] += attained - was
            within[job.uid] += min(attained, due) - min(was, due)
        today = _day(now)
        self._connection.executemany(
            _ADD, [(uid, today, seconds, within[uid]) for uid, seconds in used.items()]
        )
        if used:
            oldest = today - FORGOTTEN_DAYS
            self._connection.execute("DELETE FROM declared_work WHERE day<=?", (oldest,))


def _counts(job: Job) -> bool:
    """Not one that had to do its work anew, nor one in several copies, whose GPU time is no measure
    of its work."""
    declared = job.declaration
    if declared is None or declared.fork[1] > 1:
        return False
    return job.restarts == 0 or declared.checkpoint


def _day(now: float) -> int:
    return int(now // _DAY_S)
