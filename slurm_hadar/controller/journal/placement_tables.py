"""Where jobs were, in the state file: for the timeline after a restart of the controller."""

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_hadar.controller.journal.store_file import transaction

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS stay (job TEXT NOT NULL, begin_s REAL NOT NULL,"
    " nodes TEXT NOT NULL, uid INTEGER NOT NULL, user TEXT NOT NULL, name TEXT NOT NULL,"
    " gpus TEXT NOT NULL, end_s REAL, PRIMARY KEY (job, begin_s, nodes))",
    "CREATE TABLE IF NOT EXISTS watched (from_s REAL PRIMARY KEY, to_s REAL NOT NULL)",
)


@dataclass(frozen=True, slots=True)
class StoredStay:
    """A job on its GPUs, ``gpus``: by type; times in s since the epoch, ``end_s`` None: it was
    still there at the last tick. ``nodes``: their names with commas between."""

    job: str
    begin_s: float
    nodes: str
    uid: int
    user: str
    name: str
    gpus: Mapping[str, int]
    end_s: float | None = None


class StayTable:
    """The stays, and the times at which ticks looked; in memory without a connection."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        """Make the tables if they are missing."""
        self._connection = connection or sqlite3.connect(":memory:", isolation_level=None)
        for one in _SCHEMA:
            self._connection.execute(one)

    def since(self, from_s: float) -> list[StoredStay]:
        """Stays that had not ended by then, in the order of their begin."""
        rows = self._connection.execute(
            "SELECT job, begin_s, nodes, uid, user, name, gpus, end_s FROM stay"
            " WHERE end_s IS NULL OR end_s>? ORDER BY begin_s",
            (from_s,),
        )
        return [stay for row in rows if (stay := _stay(row)) is not None]

    def watched(self) -> list[tuple[float, float]]:
        """From when to when ticks looked, oldest first."""
        rows = self._connection.execute("SELECT from_s, to_s FROM watched ORDER BY from_s")
        # SQLite keeps whatever a bad disk made of a cell.
        return [row for row in rows if all(isinstance(cell, float) for cell in row)]

    def keep(
        self, changed: Iterable[StoredStay], watched: tuple[float, float], forget_s: float
    ) -> None:
        """Keep stays that began or ended, and how far this watch has come; drop what ended before
        ``forget_s``."""
        with transaction(self._connection):
            self._connection.executemany(
                "INSERT OR REPLACE INTO stay VALUES (?,?,?,?,?,?,?,?)",
                [
                    (one.job, one.begin_s, one.nodes, one.uid, one.user, one.name,
                     json.dumps(dict(one.gpus)), one.end_s)
                    for one in changed
                ],
            )  # fmt: skip
            self._connection.execute("INSERT OR REPLACE INTO watched VALUES (?,?)", watched)
            self._connection.execute("DELETE FROM stay WHERE end_s<?", (forget_s,))
            self._connection.execute("DELETE FROM watched WHERE to_s<?", (forget_s,))


def _stay(row: tuple[object, ...]) -> StoredStay | None:
    job, begin_s, nodes, uid, user, name, gpus, end_s = row
    try:
        counts = json.loads(str(gpus))
    except ValueError:
        return None
    known = isinstance(begin_s, float) and math.isfinite(begin_s) and isinstance(uid, int)
    if not (known and isinstance(counts, dict) and (end_s is None or isinstance(end_s, float))):
        return None
    assert isinstance(begin_s, float) and isinstance(uid, int)
    found = {str(kind): int(one) for kind, one in counts.items() if isinstance(one, int)}
    return StoredStay(str(job), begin_s, str(nodes), uid, str(user), str(name), found, end_s)
