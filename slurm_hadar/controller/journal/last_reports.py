"""Which of the jobs' reports were learned from already, in the state file: with a timer each tick
is a process of its own, and would learn from the same report again."""

import math
import sqlite3
from collections.abc import Collection, Mapping

_SCHEMA = """
CREATE TABLE IF NOT EXISTS last_report (
    kind TEXT NOT NULL, job TEXT NOT NULL, time_s REAL NOT NULL, PRIMARY KEY (kind, job)
)
"""


class LastReports:
    """Job -> time of the last report of one kind that was learned from, s since the epoch."""

    def __init__(self, connection: sqlite3.Connection | None, kind: str) -> None:
        """Make the table if it is missing. Without a connection nothing outlives the process."""
        self._connection = connection or sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute(_SCHEMA)
        self._kind = kind
        self._times: dict[str, float] = {}
        self.read_again()

    def read_again(self) -> None:
        """Have what the file holds now."""
        rows = self._connection.execute(
            "SELECT job, time_s FROM last_report WHERE kind=?", (self._kind,)
        )
        # SQLite keeps whatever a bad disk made of a cell.
        self._times = {
            str(job): time_s
            for job, time_s in rows
            if isinstance(time_s, float) and math.isfinite(time_s)
        }

    def of(self, job: str) -> float:
        """The time of a job's last report, 0 where there was none."""
        return self._times.get(job, 0.0)

    def keep(self, times: Mapping[str, float]) -> None:
        """These reports, job -> time, were learned from."""
        self._times.update(times)
        self._connection.executemany(
            "INSERT OR REPLACE INTO last_report VALUES (?,?,?)",
            [(self._kind, job, time_s) for job, time_s in times.items()],
        )

    def forget_others(self, jobs: Collection[str]) -> None:
        """Drop all jobs but these."""
        gone = [job for job in self._times if job not in jobs]
        for job in gone:
            del self._times[job]
        self._connection.executemany(
            "DELETE FROM last_report WHERE kind=? AND job=?", [(self._kind, job) for job in gone]
        )
