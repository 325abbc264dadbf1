"""What the state file holds of the work of jobs: how much each managed job was that ended well; of
work that was declared or assumed, the GPU-seconds by user and day, and the least declaration, or
assumption, of each job.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slurm_hadar.controller.journal.store_file import transaction

_ENDED_SCHEMA = """
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
DECLARED, ASSUMED = ("declared_work", "least_declared"), ("assumed_work", "least_assumed")
"""Names of the two tables."""
_WORK_SCHEMA = """
CREATE TABLE IF NOT EXISTS {work} (
    uid INTEGER NOT NULL, day INTEGER NOT NULL, used_gpu_s REAL NOT NULL,
    within_gpu_s REAL NOT NULL, PRIMARY KEY (uid, day)
)
"""
_LEAST_SCHEMA = """
CREATE TABLE IF NOT EXISTS {least} (
    job TEXT PRIMARY KEY, samples REAL NOT NULL, per_gpu_s REAL NOT NULL, seen_s REAL NOT NULL
)
"""
_ADD = (
    "INSERT INTO {work} VALUES (?,?,?,?) ON CONFLICT (uid, day) DO UPDATE SET"
    " used_gpu_s=used_gpu_s+excluded.used_gpu_s, within_gpu_s=within_gpu_s+excluded.within_gpu_s"
)


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
        self._connection.execute(_ENDED_SCHEMA)

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


@dataclass(frozen=True)
class LeastDeclared:
    """The least work declared of a job, in ``samples``, and ``per_gpu_s``: samples that it received
    in each of its GPU-seconds so far, 0 while that is unknown."""

    samples: float
    per_gpu_s: float


class DeclaredWorkTables:
    """Two tables of an open state file. Days are counted from the epoch."""

    def __init__(self, connection: sqlite3.Connection, names: tuple[str, str] = DECLARED) -> None:
        """Make the tables that are missing; earlier versions ignore them. ``names``:
        :data:`DECLARED` or :data:`ASSUMED`."""
        self.connection = connection
        self._work, self._least = names
        self.connection.execute(_WORK_SCHEMA.format(work=self._work))
        self.connection.execute(_LEAST_SCHEMA.format(least=self._least))

    def sums(self, after_day: int) -> list[tuple[int, float, float]]:
        """uid, GPU-seconds used and those within the declarations, of the days after one."""
        rows = self.connection.execute(
            f"SELECT uid, TOTAL(used_gpu_s), TOTAL(within_gpu_s) FROM {self._work} WHERE day>?"
            " GROUP BY uid",
            (after_day,),
        )
        # SQLite keeps whatever a bad disk made of a cell.
        return [row for row in rows if isinstance(row[0], int)]

    def add(self, day: int, used: Mapping[int, float], within: Mapping[int, float]) -> None:
        """Add GPU-seconds used, and those within the declarations, to a day; by uid."""
        self.connection.executemany(
            _ADD.format(work=self._work),
            [(uid, day, seconds, within[uid]) for uid, seconds in used.items()],
        )

    def forget(self, up_to_day: int) -> None:
        """Drop a day and those before."""
        self.connection.execute(f"DELETE FROM {self._work} WHERE day<=?", (up_to_day,))

    def least(self, jobs: Iterable[str]) -> dict[str, LeastDeclared]:
        """What is known of these jobs."""
        found = {}
        for job in jobs:
            row = self.connection.execute(
                "SELECT CAST(samples AS REAL), CAST(per_gpu_s AS REAL)"
                f" FROM {self._least} WHERE job=?",
                (job,),
            ).fetchone()
            if row is not None:
                found[job] = LeastDeclared(*row)
        return found

    def keep_least(
        self, known: Sequence[tuple[str, LeastDeclared]], now: float, forget_s: float
    ) -> None:
        """Keep what is known of jobs, and drop what was kept before ``forget_s``; both times in s
        since the epoch."""
        rows = [(job, least.samples, least.per_gpu_s, now) for job, least in known]
        # One write to the disk for all jobs.
        with transaction(self.connection):
            table = self._least
            self.connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?,?,?,?)", rows)
            self.connection.execute(f"DELETE FROM {table} WHERE seen_s<?", (forget_s,))
