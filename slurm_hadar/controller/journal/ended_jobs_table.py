"""What the state file holds of managed jobs that ended well: how much work each of them was."""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slurm_hadar.controller.journal.store_file import transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS ended_job (
    job TEXT PRIMARY KEY, uid INTEGER NOT NULL, name TEXT NOT NULL, model TEXT NOT NULL,
    samples REAL NOT NULL, gpu_s REAL NOT NULL, end_s REAL NOT NULL
)
"""
_SELECT = (
    "SELECT CAST(job AS BLOB), CAST(name AS BLOB), CAST(model AS BLOB), uid,"
    " CAST(samples AS REAL), CAST(gpu_s AS REAL), CAST(end_s AS REAL)"
    " FROM ended_job WHERE end_s>=? AND typeof(uid)='integer' ORDER BY end_s, job"
)
_KEEP = "INSERT OR REPLACE INTO ended_job VALUES (?,?,?,?,?,?,?)"


class EndedJob(NamedTuple):
    """A row: whose job, its name, the model that it declared (empty: none), samples that it
    trained (0: it did not report them), GPU-seconds that it had (0: not seen running), and its end
    in s since the epoch."""

    job: str
    uid: int
    name: str
    model: str
    samples: float
    gpu_s: float
    end_s: float


class EndedJobsTable:
    """One table of an open state file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Make the table if it is missing; earlier versions ignore it."""
        self._connection = connection
        self._connection.execute(_SCHEMA)

    def rows(self, since_s: float) -> Iterator[EndedJob]:
        """The jobs that ended at a time or later, s since the epoch, in the order of their ends."""
        for job, name, model, uid, *numbers in self._connection.execute(_SELECT, (since_s,)):
            # SQLite keeps whatever a bad disk made of a cell.
            names = (cell.decode("utf-8", "replace") for cell in (name, model))
            yield EndedJob(job.decode("utf-8", "replace"), uid, *names, *numbers)

    def change(self, added: Sequence[EndedJob], removed: Sequence[str], before_s: float) -> None:
        """Keep ``added``, drop the jobs ``removed`` and those that ended before a time."""
        # One write to the disk for all jobs.
        with transaction(self._connection):
            self._connection.executemany(_KEEP, added)
            self._connection.executemany(
                "DELETE FROM ended_job WHERE job=?", [(id_,) for id_ in removed]
            )
            self._connection.execute("DELETE FROM ended_job WHERE end_s<?", (before_s,))
