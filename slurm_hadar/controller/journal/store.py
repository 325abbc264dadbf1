"""The controller's own file: what Slurm cannot hold for us.

SQLite in the state folder, WAL, on a local disk. Losing it costs measured speeds and history; no
job depends on it.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from slurm_hadar.controller.journal.decision_history import DecisionHistory
from slurm_hadar.controller.journal.entry import (
    COLUMNS,
    Decision,
    Entry,
    entry_of,
    is_in_vain,
)
from slurm_hadar.controller.journal.restart_table import RestartTable
from slurm_hadar.controller.journal.store_file import (
    UNREPORTED,
    VERSION,
    DamagedStateFile,
    identity,
    make_private,
    open_file,
    put_aside,
    remove_old_copies,
    rows_of,
    state_file_error,
    transaction,
)
from slurm_hadar.domain import steering
from slurm_hadar.domain.view import State

__all__ = ["FILE", "VERSION", "DamagedStateFile", "Store", "make_private"]

FILE = "hadar.sqlite"
"""In the state folder."""


class AttainedTime(NamedTuple):
    """GPU-seconds that jobs attained, by job: ``before``, when they were last seen; and ``now``."""

    before: Mapping[str, float]
    now: Mapping[str, float]


class Store:
    """An open state file. One controller writes it; the folder's lock sees to that."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.decisions = DecisionHistory(connection)
        self.restarts = RestartTable(connection)
        row = connection.execute("PRAGMA database_list").fetchone()
        self._path = Path(row[2] if row else FILE)
        self._file = identity(self._path)

    @contextmanager
    def readable_errors(self) -> Iterator[None]:
        """An error of SQLite's inside, such as a full disk, becomes a HadarError.

        Raises Damaged where the file was taken away since: what is written now would be lost; and
        HadarError where that cannot be seen.
        """
        if identity(self._path) != self._file:
            raise DamagedStateFile(f"the state file {self._path} was removed; a new one is created")
        try:
            yield
        except sqlite3.Error as error:
            raise state_file_error(error, self._path) from None

    @classmethod
    def open(cls, folder: Path, repair: bool = False) -> "Store":
        """Open, or make, the file in the state folder.

        ``repair``: put a damaged file aside and begin anew; for the holder of the folder's lock.
        Raises HadarError when the folder is not ours alone, or the file is damaged or newer.
        """
        make_private(folder)
        path = folder / FILE
        try:
            return cls(open_file(path))
        except DamagedStateFile:
            if not repair:
                raise
        aside = put_aside(path)
        said = (
            f"the state file was damaged and is now {aside}; its content is read from Slurm again"
        )
        if removed := remove_old_copies(path):
            said += f". Older copies were removed: {', '.join(removed)}"
        opened = cls(open_file(path))
        with opened.readable_errors():
            opened.keep_policy_state(UNREPORTED, {"said": said})
        return opened

    @property
    def new(self) -> bool:
        """Whether there was no file before, and no message said so yet; for the caller that sees
        that there should have been one."""
        return self.policy_state(UNREPORTED).get("new") is True

    @property
    def notes(self) -> tuple[str, ...]:
        """What the operator should know of how it was opened, and was not reported yet."""
        said = self.policy_state(UNREPORTED).get("said")
        return (said,) if isinstance(said, str) else ()

    def opening_reported(self) -> None:
        """The operator knows now."""
        self.connection.execute("DELETE FROM policy WHERE name=?", (UNREPORTED,))

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    # -- journal -----------------------------------------------------------------------------

    def begin(
        self, job: str, kind: str, phase: str, now: float, details: Mapping[str, object]
    ) -> int:
        """Write an action down before it is sent; its number."""
        cursor = self.connection.execute(
            "INSERT INTO journal (job, kind, phase, opened_s, changed_s, details, news)"
            " VALUES (?,?,?,?,?,?,1)",
            (job, kind, phase, now, now, json.dumps(details)),
        )
        return int(cursor.lastrowid or 0)

    def advance(self, entry: int, phase: str, now: float) -> None:
        """The action has reached a further phase."""
        self.connection.execute(
            "UPDATE journal SET phase=?, changed_s=?, steps=steps||?, news=1 WHERE id=?",
            (phase, now, f" {phase}@{now!r}", entry),
        )

    def keep_details(self, entry: int, details: Mapping[str, object]) -> None:
        """The action's details, with what was learned of it since it began."""
        self.connection.execute(
            "UPDATE journal SET details=? WHERE id=?", (json.dumps(details), entry)
        )

    def end(self, entry: int, outcome: str, now: float) -> None:
        """The action is over; ``outcome`` is a sentence for the operator."""
        self.connection.execute(
            "UPDATE journal SET outcome=?, changed_s=?, news=1 WHERE id=?", (outcome, now, entry)
        )

    def open_entries(self) -> list[Entry]:
        """Actions under way, oldest first."""
        return self._entries("WHERE outcome IS NULL ORDER BY id")

    def not_shown_yet(self) -> list[Entry]:
        """Actions that are over and of which no later look at Slurm has seen what became."""
        return self._entries("WHERE shown IS NULL AND outcome IS NOT NULL")

    def unmeasured_moves(self) -> list[Entry]:
        """Moves and stops that were seen to be carried out, or not, and whose effect is unknown."""
        return self._entries(
            "INDEXED BY journal_no_effect WHERE kind='move' AND effect IS NULL"
            " AND outcome IS NOT NULL AND shown IS NOT NULL"
        )

    def close_seen(
        self, shown: Mapping[int, str], effects: Mapping[int, Mapping[str, object]]
    ) -> None:
        """Keep what Slurm showed of actions, and what moves cost and gained; by entry."""
        with self.transaction():
            self.connection.executemany(
                "UPDATE journal SET shown=?, news=1 WHERE id=?",
                [(text, id_) for id_, text in shown.items()],
            )
            # Nothing to measure is no news.
            self.connection.executemany(
                "UPDATE journal SET effect=?, news=MAX(news, ?) WHERE id=?",
                [(json.dumps(effect), int(bool(effect)), id_) for id_, effect in effects.items()],
            )

    def history(self, job: str, limit: int | None = None) -> list[Entry]:
        """What was done to a job, newest first; ``limit``: as many, None: all that is kept."""
        most = -1 if limit is None else limit
        return self._entries("WHERE job=? ORDER BY id DESC LIMIT ?", (job, most))

    def last(self, job: str, kind: str) -> Entry | None:
        """The last action of a kind on a job."""
        found = self._entries("WHERE job=? AND kind=? ORDER BY id DESC LIMIT 1", (job, kind))
        return found[0] if found else None

    def counts_since(self, kind: str, since_s: float) -> dict[str, int]:
        """Actions of a kind opened since a time, by job."""
        rows = self.connection.execute(
            "SELECT job, COUNT(*) FROM journal WHERE kind=? AND opened_s>=? GROUP BY job",
            (kind, since_s),
        )
        return {str(job): int(count) for job, count in rows}

    def counts_after(
        self, kind: str, outcome: str, ended: str, *, alike: bool = False
    ) -> dict[str, int]:
        """How many actions of a kind ended with an outcome that begins like ``outcome``, by job,
        after the last one that ended with ``ended``. ``alike``: those with the very outcome of the
        last of them."""
        last: dict[str, int] = {}
        for row in self.connection.execute(
            "SELECT job, MAX(id) FROM journal WHERE kind=? AND outcome=? GROUP BY job",
            (kind, ended),
        ):
            last[str(row[0])] = int(row[1])
        outcomes: dict[str, list[str]] = {}
        for job, number, text in self.connection.execute(
            "SELECT job, id, outcome FROM journal WHERE kind=? AND substr(outcome, 1, ?)=?"
            " ORDER BY id",
            (kind, len(outcome), outcome),
        ):
            if int(number) > last.get(str(job), 0):
                outcomes.setdefault(str(job), []).append(str(text))
        return {job: all_.count(all_[-1]) if alike else len(all_) for job, all_ in outcomes.items()}

    def counts_in_vain(self, kind: str) -> dict[str, int]:
        """How many actions of a kind in a row, the last ones of each job, were taken by Slurm and
        did not bring it where it should go, as the trail has seen."""
        rows = self.connection.execute(
            "SELECT job, shown FROM journal WHERE kind=? AND shown<>'' ORDER BY id", (kind,)
        )
        in_a_row: dict[str, int] = {}
        for job, shown in rows:
            in_a_row[str(job)] = in_a_row.get(str(job), 0) + 1 if is_in_vain(str(shown)) else 0
        return {job: number for job, number in in_a_row.items() if number}

    def all_in_vain(self, kind: str) -> dict[str, int]:
        """How many actions of a kind in all were taken by Slurm and did not bring their job where
        it should go, by job."""
        rows = self.connection.execute(
            "SELECT job, shown FROM journal WHERE kind=? AND shown<>''", (kind,)
        )
        return dict(Counter(str(job) for job, shown in rows if is_in_vain(str(shown))))

    def last_time(self, job: str, kind: str) -> float:
        """When an action of a kind on a job last changed, 0 where there was none."""
        row = self.connection.execute(
            "SELECT MAX(changed_s) FROM journal WHERE job=? AND kind=?", (job, kind)
        ).fetchone()
        return float(row[0] or 0.0)

    def count_ended(self, job: str, kind: str, outcome: str) -> int:
        """How many actions of a kind on a job ended with an outcome."""
        row = self.connection.execute(
            "SELECT COUNT(*) FROM journal WHERE job=? AND kind=? AND outcome=?",
            (job, kind, outcome),
        ).fetchone()
        return int(row[0])

    def counts(self, kind: str, phase: str, without: str = "") -> dict[str, int]:
        """How many actions of a kind came as far as a phase, of every job at once; ``without``:
        none whose details name this."""
        rows = self.connection.execute(
            "SELECT job, COUNT(*) FROM journal WHERE kind=? AND phase=?"
            " AND (?='' OR instr(details, ?)=0) GROUP BY job",
            (kind, phase, without, json.dumps(without) + ":"),
        )
        return {str(job): int(count) for job, count in rows}

    def last_times(self, kind: str, outcome: str = "") -> dict[str, float]:
        """:meth:`last_time` of every job at once; of the actions that ended with an outcome which
        begins like ``outcome``, where one is given."""
        rows = self.connection.execute(
            "SELECT job, MAX(changed_s) FROM journal"
            " WHERE kind=? AND (?='' OR substr(outcome, 1, ?)=?) GROUP BY job",
            (kind, outcome, len(outcome), outcome),
        )
        return {str(job): float(time) for job, time in rows}

    def least_details(self, kind: str, detail: str) -> dict[str, float]:
        """Job -> the least number that its actions of a kind have as this detail."""
        rows = self.connection.execute(
            "SELECT job, MIN(json_extract(details, ?)) FROM journal"
            " WHERE kind=? AND instr(details, ?)>0 GROUP BY job",
            (f"$.{detail}", kind, json.dumps(detail) + ":"),
        )
        return {str(job): float(number) for job, number in rows if isinstance(number, int | float)}

    def moves_since(self, since_s: float) -> list[Entry]:
        """The moves and stops that began at ``since_s``, s since the epoch, or later."""
        return self._entries("WHERE kind='move' AND opened_s>=?", (since_s,))

    def moves_that_ended(self, outcome: str) -> list[Entry]:
        """The moves and stops with this outcome."""
        return self._entries("WHERE kind='move' AND outcome=?", (outcome,))

    def last_move(self, job: str) -> int:
        """The newest move or stop of a job that has one."""
        return self._entries("WHERE job=? AND kind='move' ORDER BY id DESC LIMIT 1", (job,))[0].id

    def moves_after(self, newest: int, also: Sequence[int]) -> list[Entry]:
        """The moves and stops that came after the entry ``newest``, and those of ``also``, oldest
        first."""
        marks = ",".join("?" * len(also))
        return self._entries(
            f"WHERE kind='move' AND (id>? OR id IN ({marks})) ORDER BY id", (newest, *also)
        )

    def entries_with(self, kind: str, detail: str) -> list[Entry]:
        """Actions of a kind whose details name something, oldest first."""
        clause = "WHERE kind=? AND instr(details, ?)>0 ORDER BY id"
        return self._entries(clause, (kind, json.dumps(detail) + ":"))

    def _entries(self, where: str, values: tuple[object, ...] = ()) -> list[Entry]:
        rows = self.connection.execute(f"SELECT {COLUMNS} FROM journal {where}", values)
        return [entry_of(row) for row in rows]

    # -- event log, attained time, steering, policy --------------------------------------------

    def unlogged(self, limit: int) -> tuple[dict[int, Decision], list[Entry]]:
        """Decisions by their number, and actions, that are not in the event log yet: the oldest
        ``limit`` of each."""
        actions = self._entries("WHERE news=1 ORDER BY id LIMIT ?", (limit,))
        return self.decisions.unlogged(limit), actions

    def logged(self, decisions: Iterable[int], actions: Iterable[int]) -> None:
        """These are in the event log now."""
        with self.transaction():
            for table, ids in (("told", decisions), ("journal", actions)):
                self.connection.executemany(
                    f"UPDATE {table} SET news=0 WHERE id=?", [(id_,) for id_ in ids]
                )

    def serve(
        self,
        running: Mapping[str, tuple[int, float]],
        now: float,
        shown: Collection[str] | None = None,
    ) -> AttainedTime:
        """Add to each running job what it received since it was last seen.

        ``running``: job -> (GPUs held, start in s). Returns what all jobs attained, or ``shown``
        and the running ones.
        """
        jobs = None if shown is None else {*shown, *running}
        rows = rows_of(self.connection, "SELECT job, gpu_s, seen_s FROM attained", jobs)
        records = {str(job): (float(gpu_s), float(seen)) for job, gpu_s, seen in rows}
        before = {job: attained for job, (attained, _) in records.items()}
        changed = []
        for job, (gpus, start_s) in running.items():
            attained, seen = records.get(job, (0.0, 0.0))
            attained += gpus * max(0.0, now - max(seen, start_s))
            # The clock may go back; what was counted once is not counted again.
            records[job] = (attained, max(now, seen))
            changed.append((job, *records[job]))
        with self.transaction():
            self.connection.executemany("INSERT OR REPLACE INTO attained VALUES (?,?,?)", changed)
        return AttainedTime(before, {job: attained for job, (attained, _) in records.items()})

    def keep_steering(self, job: str, text: str) -> None:
        """Without the right to write AdminComment, what it would have held is kept here."""
        self.connection.execute("INSERT OR REPLACE INTO steering VALUES (?,?)", (job, text))

    def steerings(self, jobs: Collection[str] | None) -> dict[str, str]:
        """What :meth:`keep_steering` kept of these jobs; None: of all."""
        return dict(rows_of(self.connection, "SELECT job, text FROM steering", jobs))

    def changed(self, field: str) -> list[str]:
        """The jobs, ended ones too, of which :meth:`keep_steering` kept an owner's value of this
        field: Slurm's name of it."""
        rows = self.connection.execute(
            "SELECT job FROM steering WHERE instr(text, ?)", (steering.owners_word(field),)
        )
        return [job for (job,) in rows]

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
            self.decisions.forget(before_s)
            self.connection.execute("DELETE FROM attained WHERE seen_s<?", (before_s,))
            self.connection.execute(
                "DELETE FROM steering WHERE job NOT IN (SELECT job FROM decision)"
                " AND job NOT IN (SELECT substr(job, 1, instr(job, '_') - 1) FROM decision)"
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several statements, all or none."""
        with transaction(self.connection):
            yield
