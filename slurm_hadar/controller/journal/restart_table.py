"""What restarts of each user's models cost, as moves of their jobs showed, in the state file."""

import math
import sqlite3
from collections.abc import Mapping

_SCHEMA = """
CREATE TABLE IF NOT EXISTS measured_restart (
    uid INTEGER NOT NULL, model TEXT NOT NULL, seconds REAL NOT NULL, changed_s REAL NOT NULL,
    PRIMARY KEY (uid, model)
)
"""
_NEWEST = 0.3
"""Weight of the newest measurement."""
_LONGEST_S = 3600.0
_MOST_MODELS = 100
"""Users choose model names freely: of one user those measured last are kept."""


class RestartTable:
    """The rows of an open state file. Models are keys of :func:`profiles.table.model_key`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Make the table if it is missing; earlier versions ignore it."""
        self._connection = connection
        self._connection.execute(_SCHEMA)

    def record(self, uid: int, model: str, seconds: float, now: float) -> None:
        """Take in one restart. The mean over a user's restarts of a model counts the newest with
        0.3; 0 s to an hour are believed. ``now``: s since the epoch."""
        seconds = min(max(seconds, 0.0), _LONGEST_S)
        before = self.means().get((uid, model), seconds)
        self._connection.execute(
            "INSERT OR REPLACE INTO measured_restart VALUES (?,?,?,?)",
            (uid, model, before + _NEWEST * (seconds - before), now),
        )
        self._connection.execute(
            "DELETE FROM measured_restart WHERE uid=? AND model NOT IN (SELECT model"
            " FROM measured_restart WHERE uid=? ORDER BY changed_s DESC LIMIT ?)",
            (uid, uid, _MOST_MODELS),
        )

    def means(self) -> Mapping[tuple[int, str], float]:
        """(uid, model) -> s."""
        rows = self._connection.execute("SELECT uid, model, seconds FROM measured_restart")
        # SQLite keeps whatever a bad disk made of a cell.
        return {
            (uid, model): seconds
            for uid, model, seconds in rows
            if isinstance(uid, int) and isinstance(model, str) and isinstance(seconds, float)
            and 0.0 <= seconds <= _LONGEST_S and math.isfinite(seconds)
        }  # fmt: skip
