"""The state file: opened, brought up to date, and put aside when it is damaged."""

import json
import sqlite3
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from slurm_hadar import reading
from slurm_hadar.controller.journal.state_errors import file_cause, folder_error, require_own
from slurm_hadar.domain.errors import HadarError

_FIRST = """
CREATE TABLE IF NOT EXISTS journal (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, kind TEXT NOT NULL, phase TEXT NOT NULL,
    opened_s REAL NOT NULL, changed_s REAL NOT NULL, details TEXT NOT NULL, outcome TEXT
);
CREATE INDEX IF NOT EXISTS journal_open ON journal (outcome) WHERE outcome IS NULL;
CREATE INDEX IF NOT EXISTS journal_job ON journal (job, changed_s);
CREATE TABLE IF NOT EXISTS decision (
    job TEXT PRIMARY KEY, time_s REAL NOT NULL, placement TEXT NOT NULL, reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS attained (
    job TEXT PRIMARY KEY, gpu_s REAL NOT NULL, seen_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS steering (job TEXT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS policy (name TEXT PRIMARY KEY, state TEXT NOT NULL);
"""
_SEEN = """
ALTER TABLE journal ADD COLUMN steps TEXT NOT NULL DEFAULT '';
ALTER TABLE journal ADD COLUMN shown TEXT;
ALTER TABLE journal ADD COLUMN effect TEXT;
ALTER TABLE journal ADD COLUMN news INTEGER NOT NULL DEFAULT 0;
UPDATE journal SET shown='', effect='{}' WHERE outcome IS NOT NULL;
CREATE INDEX journal_unseen ON journal (id) WHERE shown IS NULL;
CREATE INDEX journal_no_effect ON journal (id) WHERE kind='move' AND effect IS NULL;
CREATE INDEX journal_news ON journal (id) WHERE news=1;
CREATE TABLE told (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, time_s REAL NOT NULL, placement TEXT NOT NULL,
    reason TEXT NOT NULL, news INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX told_job ON told (job, id);
CREATE INDEX told_news ON told (id) WHERE news=1;
"""
_CHANGES = (_FIRST, "CREATE INDEX journal_kind ON journal (kind, opened_s);", _SEEN)
"""What makes each version of the schema of the one before it; never change one that is out."""
VERSION = len(_CHANGES)
UNREPORTED = "untold"
"""Under this name it keeps what was not reported yet of how the file was opened: the tick
that opened it may have ended before it could say so."""
_NEW = f"INSERT OR REPLACE INTO policy VALUES ('{UNREPORTED}', '{{\"new\": true}}');"

_TEXT, _NUMBER, _NULL = "'text'", "'real','integer'", "'null'"
_KINDS = {
    "journal": {
        "job": _TEXT,
        "kind": _TEXT,
        "phase": _TEXT,
        "opened_s": _NUMBER,
        "changed_s": _NUMBER,
        "details": _TEXT,
        "outcome": f"{_TEXT},{_NULL}",
        "steps": _TEXT,
        "shown": f"{_TEXT},{_NULL}",
        "effect": f"{_TEXT},{_NULL}",
    },
    "decision": {"job": _TEXT, "time_s": _NUMBER, "placement": _TEXT, "reason": _TEXT},
    "told": {"job": _TEXT, "time_s": _NUMBER, "placement": _TEXT, "reason": _TEXT},
    "attained": {"job": _TEXT, "gpu_s": _NUMBER, "seen_s": _NUMBER},
    "steering": {"job": _TEXT, "text": _TEXT},
    "policy": {"name": _TEXT, "state": _TEXT},
}
"""SQLite keeps whatever it is given in a column, and whatever a bad disk makes of it."""
_LOCKED_S = 10.0
"""How long another program's lock is waited for."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_ENDS = ("", "-wal", "-shm")
"""Of the names of a database and what SQLite keeps beside it."""
_ASIDE = ".damaged-"
_MOST_COPIES = 3
"""Damaged files that are kept: a bad disk could make one at each tick."""


class StateFileError(HadarError):
    """The file cannot be used now, as on a full disk."""


class DamagedStateFile(HadarError):
    """The file cannot be read. What matters is in Slurm, so it may be put aside."""


def open_file(path: Path) -> sqlite3.Connection:
    """An open connection with today's schema.

    Raises Damaged, and HadarError for a file that is newer, locked or cannot be written.
    """
    connection = None
    try:
        # SQLite reads only, as long as it is open, a file that it may not write when it opens it.
        with suppress(OSError):
            path.chmod(0o600)
        connection = sqlite3.connect(path, isolation_level=None, timeout=_LOCKED_S)
        path.chmod(0o600)
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous=FULL")
        if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise DamagedStateFile(_damaged(path, "its pages are inconsistent"))
        _bring_up_to_date(connection, path)
        _read_what_is_open(connection)
    except sqlite3.Error as error:
        _close(connection)
        raise state_file_error(error, path) from None
    except OSError as error:
        _close(connection)
        raise folder_error(path.parent, error) from None
    except (ValueError, TypeError, RecursionError) as error:
        _close(connection)
        raise DamagedStateFile(_damaged(path, str(error))) from None
    except BaseException:
        _close(connection)
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Several statements, all or none. Whatever fails, COMMIT too, no transaction is left open.

    Not within another one. Raises sqlite3.Error.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # On a full disk SQLite has rolled back itself; the first error is the one to report.
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def rows_of(
    connection: sqlite3.Connection, select: str, jobs: Collection[str] | None
) -> Iterator[tuple[Any, ...]]:
    """Rows of all jobs, or of some: a month's jobs are not read for those of a tick."""
    if jobs is None:
        yield from connection.execute(select)
    else:
        for job in jobs:
            yield from connection.execute(f"{select} WHERE job=?", (job,))


def state_file_error(error: sqlite3.Error, path: Path) -> HadarError:
    """What the operator sees of an error of SQLite's."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGE or "no such" in str(error) or "no column" in str(error):
        return DamagedStateFile(_damaged(path, str(error)))
    return StateFileError(
        f"the state file {path} cannot be used now ({error}): {file_cause(path, error)}. "
        "No tick runs without it"
    )


def identity(path: Path) -> tuple[int, int] | None:
    """Which file lies there, by device and inode; None where there is none. Raises HadarError where
    this user may not look, as in a folder that was given to another."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateFileError(str(folder_error(path.parent, error))) from None
    return found.st_dev, found.st_ino


def put_aside(path: Path) -> Path:
    """Rename a damaged file and what SQLite keeps beside it; where it lies now."""
    aside = path.with_name(f"{path.name}{_ASIDE}{time.strftime('%Y%m%dT%H%M%S')}")
    for end in _ENDS:
        old = path.with_name(path.name + end)
        if old.exists():
            old.rename(aside.with_name(aside.name + end))
    return aside


def remove_old_copies(path: Path) -> list[str]:
    """Remove what :func:`put_aside` left, except for the newest; the names of the removed ones."""
    removed = []
    copies = {
        one.name.removesuffix("-wal").removesuffix("-shm")
        for one in path.parent.glob(f"{path.name}{_ASIDE}*")
    }
    for name in sorted(copies)[:-_MOST_COPIES]:
        # One that stays for now, as on a disk that is read-only, is removed another time.
        with suppress(OSError):
            for end in _ENDS:
                path.with_name(name + end).unlink(missing_ok=True)
            removed.append(name)
    return removed


def make_private(folder: Path) -> None:
    """Make a state folder of mode 0700. Raises HadarError when it exists and is not ours alone."""
    try:
        if not folder.is_symlink():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise folder_error(folder, error) from None
    require_own(folder, found)
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise HadarError(f"state folder {folder} is open to others; run: chmod 700 {folder}")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """SQLite itself does not wait where two programs make a new file's journal at once."""
    until = time.monotonic() + _LOCKED_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    while (version := _version(connection)) != VERSION:
        if version > VERSION:
            raise HadarError(
                f"{path} was written by a newer slurm-hadar (schema {version}); "
                "upgrade, or move the file away to start with an empty one"
            )
        if version < 0:
            raise ValueError(f"schema {version} is not a valid number")
        # All of a change or nothing, whenever the machine goes down; and another program may have
        # made the change while this one waited for its turn.
        with transaction(connection):
            if _version(connection) == version:
                change = _CHANGES[version] + (_NEW if version == 0 else "")
                for statement in change.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={version + 1}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _read_what_is_open(connection: sqlite3.Connection) -> None:
    """A move is carried on from these lines, so they must be what was written."""
    for table, kinds in _KINDS.items():
        wrong = " OR ".join(f"typeof({column}) NOT IN ({kind})" for column, kind in kinds.items())
        found = connection.execute(f"SELECT 1 FROM {table} WHERE {wrong} LIMIT 1").fetchone()
        if found is not None:
            raise ValueError(f"a row of {table} is invalid")
    rows = connection.execute(
        "SELECT details FROM journal WHERE outcome IS NULL OR shown IS NULL"
        " OR (kind='move' AND effect IS NULL)"
    ).fetchall()
    rows += connection.execute("SELECT state FROM policy").fetchall()
    if not all(isinstance(json.loads(text), dict) for (text,) in rows):
        raise ValueError("an open entry of the journal is no object")


def _damaged(path: Path, why: str) -> str:
    said = reading.shown(why, 200)
    return (
        f"the state file {path} is damaged ({said}); move it away, or let a tick do so: "
        "only measured speeds and history are lost, the rest is in Slurm"
    )


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        connection.close()
