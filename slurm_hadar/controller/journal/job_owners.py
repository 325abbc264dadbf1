"""Whose the jobs are that the state file has figures on, for reports to their owners."""

import sqlite3
from collections.abc import Collection, Iterable

from slurm_hadar.domain.job import Job

_SCHEMA = """
CREATE TABLE IF NOT EXISTS job_owner (
    job TEXT PRIMARY KEY, uid INTEGER NOT NULL, account TEXT NOT NULL, seen_s REAL NOT NULL
);
"""
_AGAIN_S = 86400.0


class StoredOwners:
    """The rows in the state file; in memory without a connection."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        """Make the table if it is missing."""
        self._connection = connection or sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute(_SCHEMA)
        self._noted: dict[str, tuple[int, str, float]] = {}

    def write_again(self) -> None:
        """What was noted may not be in the file: the next :meth:`note` writes all."""
        self._noted = {}

    def note(self, jobs: Iterable[Job], now: float) -> None:
        """Keep the owner and the account of each; writes what is new, and each job once a day."""
        rows, here = [], {}
        for job in jobs:
            known = self._noted.get(job.id)
            # A number may come back for another job, and an account may be changed.
            if (
                known is None
                or known[0] != job.uid
                or known[1] != job.account
                or not 0 <= now - known[2] < _AGAIN_S
            ):
                known = (job.uid, job.account, now)
                rows.append((job.id, *known))
            here[job.id] = known
        self._noted = here
        if rows:
            self._connection.executemany("INSERT OR REPLACE INTO job_owner VALUES (?,?,?,?)", rows)

    def forget(self, before_s: float) -> None:
        """Drop jobs that were last seen before a time, s since the epoch."""
        self._connection.execute("DELETE FROM job_owner WHERE seen_s<?", (before_s,))

    def has(self, uid: int, job: str) -> bool:
        """Whether a job was this user's when it was last seen."""
        row = self._connection.execute("SELECT uid FROM job_owner WHERE job=?", (job,)).fetchone()
        return row is not None and row[0] == uid

    def jobs_of(self, uid: int, accounts: Collection[str] = ()) -> set[str]:
        """A user's jobs, and those of some accounts."""
        rows = self._connection.execute("SELECT job FROM job_owner WHERE uid=?", (uid,))
        found = {str(job) for (job,) in rows}
        for account in accounts:
            rows = self._connection.execute("SELECT job FROM job_owner WHERE account=?", (account,))
            found.update(str(job) for (job,) in rows)
        return found
