"""What was decided on each job: the last decision, and those before it that differed."""

import sqlite3
from collections.abc import Collection, Iterable

from slurm_hadar.controller.journal.entry import Decision, gist
from slurm_hadar.controller.journal.store_file import rows_of, transaction

MOST_DECISIONS = 200
"""Decisions that are kept of one job."""


class DecisionHistory:
    """The decisions in the state file; :attr:`Store.decisions`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def record(self, decisions: Iterable[Decision]) -> None:
        """Keep the last decision on each job, and those that are new beside the older ones."""
        new = list(decisions)
        last = self.last({one.job for one in new})
        rows = []
        with transaction(self._connection):
            for one in new:
                before = last.get(one.job)
                if before is None or gist(before) != gist(one):
                    self._append(one)
                last[one.job] = one
                rows.append((one.job, one.time_s, one.placement, one.reason))
            self._connection.executemany("INSERT OR REPLACE INTO decision VALUES (?,?,?,?)", rows)

    def _append(self, one: Decision) -> None:
        self._connection.execute(
            "INSERT INTO told (job, time_s, placement, reason) VALUES (?,?,?,?)",
            (one.job, one.time_s, one.placement, one.reason),
        )
        # A job on which the decision goes to and fro must not fill the disk.
        self._connection.execute(
            "DELETE FROM told WHERE job=? AND id <= (SELECT id FROM told WHERE job=?"
            " ORDER BY id DESC LIMIT 1 OFFSET ?)",
            (one.job, one.job, MOST_DECISIONS),
        )

    def last(self, jobs: Collection[str] | None = None) -> dict[str, Decision]:
        """The last decision on each job, or on each of ``jobs``."""
        select = "SELECT job, time_s, placement, reason FROM decision"
        return {row[0]: Decision(*row) for row in rows_of(self._connection, select, jobs)}

    def of(self, job: str) -> list[Decision]:
        """The decisions on a job that differed from the one before, oldest first."""
        rows = self._connection.execute(
            "SELECT job, time_s, placement, reason FROM told WHERE job=? ORDER BY id", (job,)
        )
        return [Decision(*row) for row in rows]

    def unlogged(self, limit: int) -> dict[int, Decision]:
        """The oldest ``limit`` decisions, by their number, that are not in the event log yet."""
        rows = self._connection.execute(
            "SELECT id, job, time_s, placement, reason FROM told WHERE news=1 ORDER BY id LIMIT ?",
            (limit,),
        )
        return {int(id_): Decision(*row) for id_, *row in rows}

    def forget(self, before_s: float) -> None:
        """Drop what is older than a time, inside a transaction of the caller's."""
        self._connection.execute("DELETE FROM told WHERE time_s<?", (before_s,))
        self._connection.execute("DELETE FROM decision WHERE time_s<?", (before_s,))
