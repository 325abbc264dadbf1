"""The controller's own file: what Slurm cannot hold for us.

SQLite in the state folder, WAL, on a local disk. Losing it costs measured speeds and history; no
job depends on it.
"""

import json
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.controller.store_file import VERSION, Damaged, open_file, put_aside, trouble
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.view import State

__all__ = ["VERSION", "Damaged", "Decision", "Entry", "Store", "make_private"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One action in the journal. ``outcome`` is None while it is under way. Times in s."""

    id: int
    job: str
    kind: str
    phase: str
    opened_s: float
    changed_s: float
    details: Mapping[str, object]
    outcome: str | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The last decision on a job: ``placement`` in words, and the reason."""

    job: str
    time_s: float
    placement: str
    reason: str


class Store:
    """An open state file. One controller writes it; the folder's lock sees to that."""

    def __init__(self, connection: sqlite3.Connection, notes: tuple[str, ...] = ()) -> None:
        """``notes``: what the operator should know of how it was opened."""
        self.connection = connection
        self.notes = notes

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """An error of SQLite's inside, such as a full disk, becomes a HadarError."""
        try:
            yield
        except sqlite3.Error as error:
            where = self.connection.execute("PRAGMA database_list").fetchone()
            raise trouble(error, Path(where[2] if where else "hadar.sqlite")) from None

    @classmethod
    def open(cls, folder: Path, repair: bool = False) -> "Store":
        """Open, or make, the file in the state folder.

        ``repair``: put a damaged file aside and begin anew; for whoever holds the folder's lock.
        Raises HadarError when the folder is not ours alone, or the file is damaged or newer.
        """
        make_private(folder)
        path = folder / "hadar.sqlite"
        try:
            return cls(open_file(path))
        except Damaged:
            if not repair:
                raise
        aside = put_aside(path)
        said = (
            f"the state file was damaged and lies in {aside} now; what it knew is read from Slurm"
        )
        return cls(open_file(path), (said,))

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    # -- journal -----------------------------------------------------------------------------

    def begin(
        self, job: str, kind: str, phase: str, now: float, details: Mapping[str, object]
    ) -> int:
        """Write an action down before it is sent; its number."""
        cursor = self.connection.execute(
            "INSERT INTO journal (job, kind, phase, opened_s, changed_s, details)"
            " VALUES (?,?,?,?,?,?)",
            (job, kind, phase, now, now, json.dumps(details)),
        )
        return int(cursor.lastrowid or 0)

    def advance(self, entry: int, phase: str, now: float) -> None:
        """The action has reached a further phase."""
        self.connection.execute(
            "UPDATE journal SET phase=?, changed_s=? WHERE id=?", (phase, now, entry)
        )

    def end(self, entry: int, outcome: str, now: float) -> None:
        """The action is over; ``outcome`` is a sentence for the operator."""
        self.connection.execute(
            "UPDATE journal SET outcome=?, changed_s=? WHERE id=?", (outcome, now, entry)
        )

    def open_entries(self) -> list[Entry]:
        """Actions under way, oldest first."""
        return self._entries("WHERE outcome IS NULL ORDER BY id")

    def history(self, job: str, limit: int = 50) -> list[Entry]:
        """What was done to a job, newest first."""
        return self._entries("WHERE job=? ORDER BY id DESC LIMIT ?", (job, limit))

    def count_since(self, kind: str, since_s: float) -> int:
        """Actions of a kind opened since a time."""
        row = self.connection.execute(
            "SELECT COUNT(*) FROM journal WHERE kind=? AND opened_s>=?", (kind, since_s)
        ).fetchone()
        return int(row[0])

    def last_time(self, job: str, kind: str) -> float:
        """When an action of a kind on a job last changed, 0 where there was none."""
        row = self.connection.execute(
            "SELECT MAX(changed_s) FROM journal WHERE job=? AND kind=?", (job, kind)
        ).fetchone()
        return float(row[0] or 0.0)

    def last_times(self, kind: str) -> dict[str, float]:
        """:meth:`last_time` of every job at once."""
        rows = self.connection.execute(
            "SELECT job, MAX(changed_s) FROM journal WHERE kind=? GROUP BY job", (kind,)
        )
        return {str(job): float(time) for job, time in rows}

    def _entries(self, where: str, values: tuple[object, ...] = ()) -> list[Entry]:
        rows = self.connection.execute(
            "SELECT id, job, kind, phase, opened_s, changed_s, details, outcome FROM journal "
            + where,
            values,
        )
        return [
            Entry(id_, job, kind, phase, opened_s, changed_s, json.loads(details), outcome)
            for id_, job, kind, phase, opened_s, changed_s, details, outcome in rows
        ]

    # -- decisions, service, policy ----------------------------------------------------------

    def decide(self, decisions: Iterable[Decision]) -> None:
        """Keep the last decision on each job."""
        with self.transaction():
            self.connection.executemany(
                "INSERT OR REPLACE INTO decision VALUES (?,?,?,?)",
                [(d.job, d.time_s, d.placement, d.reason) for d in decisions],
            )

    def decisions(self) -> dict[str, Decision]:
        """The last decision on each job."""
        rows = self.connection.execute("SELECT job, time_s, placement, reason FROM decision")
        return {row[0]: Decision(*row) for row in rows}

    def serve(self, running: Mapping[str, tuple[int, float]], now: float) -> dict[str, float]:
        """Add to each running job what it received since it was last seen.

        ``running``: job -> (GPUs held, start in s). Returns GPU-seconds attained of all jobs.
        """
        known = {
            str(job): (float(gpu_s), float(seen))
            for job, gpu_s, seen in self.connection.execute(
                "SELECT job, gpu_s, seen_s FROM attained"
            )
        }
        changed = []
        for job, (gpus, start_s) in running.items():
            attained, seen = known.get(job, (0.0, 0.0))
            attained += gpus * max(0.0, now - max(seen, start_s))
            # The clock may go back; what was counted once is not counted again.
            known[job] = (attained, max(now, seen))
            changed.append((job, *known[job]))
        with self.transaction():
            self.connection.executemany("INSERT OR REPLACE INTO attained VALUES (?,?,?)", changed)
        return {job: attained for job, (attained, _) in known.items()}

    def keep_steering(self, job: str, text: str) -> None:
        """Without the right to write AdminComment, what it would have held is kept here."""
        self.connection.execute("INSERT OR REPLACE INTO steering VALUES (?,?)", (job, text))

    def steerings(self) -> dict[str, str]:
        """What :meth:`keep_steering` kept, by job."""
        return dict(self.connection.execute("SELECT job, text FROM steering"))

    def policy_state(self, name: str) -> State:
        """A policy's memory, empty where it has none yet."""
        row = self.connection.execute("SELECT state FROM policy WHERE name=?", (name,)).fetchone()
        state = json.loads(row[0]) if row else {}
        return state if isinstance(state, dict) else {}

    def keep_policy_state(self, name: str, state: State) -> None:
        """Keep a policy's memory for the next tick."""
        self.connection.execute(
            "INSERT OR REPLACE INTO policy VALUES (?,?)", (name, json.dumps(state))
        )

    def forget(self, before_s: float) -> None:
        """Drop what is closed and older than a time, so that the file stays bounded."""
        with self.transaction():
            self.connection.execute(
                "DELETE FROM journal WHERE outcome IS NOT NULL AND changed_s<?", (before_s,)
            )
            self.connection.execute("DELETE FROM decision WHERE time_s<?", (before_s,))
            self.connection.execute("DELETE FROM attained WHERE seen_s<?", (before_s,))
            self.connection.execute(
                "DELETE FROM steering WHERE job NOT IN (SELECT job FROM decision)"
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several statements, all or none."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")


def make_private(folder: Path) -> None:
    """Make a state folder of mode 0700. Raises HadarError when it exists and is not ours alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise HadarError(
            f"state folder {folder} cannot be made: {error.strerror}; set site.state_dir"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise HadarError(f"state folder {folder} does not belong to this user; set site.state_dir")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise HadarError(f"state folder {folder} is open to others; run: chmod 700 {folder}")
