"""What trainings did with their GPUs: per user, model, GPU type, number of GPUs and batch.

Beside the samples/s of :mod:`.measured`, from the samples that the jobs' own processes took
(:mod:`.gpu_sampling_files`).
"""

import math
import sqlite3
import time
from dataclasses import dataclass

from slurm_hadar.profiles.gpu_sampling import TrainingUse
from slurm_hadar.profiles.measured import HALF_LIFE_S, MOST_ROWS_PER_USER
from slurm_hadar.profiles.table import model_key

_FIGURES = ("utilization", "memory_mb", "most_memory_mb", "power_w", "joules_per_sample")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS gpu_use (
    uid INTEGER NOT NULL, model TEXT NOT NULL, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL,
    batch INTEGER NOT NULL, utilization REAL, memory_mb REAL, most_memory_mb REAL, power_w REAL,
    joules_per_sample REAL, held_idle REAL NOT NULL, weight_s REAL NOT NULL,
    changed_s REAL NOT NULL, PRIMARY KEY (uid, model, gpu_type, gpus, batch)
)
"""
_KEY = (int, str, str, int, int)
_MOST = 1e18
"""No figure of these is above it."""
_COLUMNS = (
    "uid, model, gpu_type, gpus, batch, utilization, memory_mb, most_memory_mb, power_w, "
    "joules_per_sample, held_idle, weight_s"
)


@dataclass(frozen=True, slots=True)
class MeasuredGpuUse:
    """One row. ``batch`` is global, 0: unknown. The figures as in
    :class:`.gpu_sampling.TrainingUse`, None: unknown; ``weight_s``: measured seconds, what is
    older counted less."""

    uid: int
    model: str
    gpu_type: str
    gpus: int
    batch: int
    utilization: float | None
    memory_mb: float | None
    most_memory_mb: float | None
    power_w: float | None
    joules_per_sample: float | None
    held_idle: float
    weight_s: float


class GpuUses:
    """The rows in a file of SQLite, or in memory where no connection is given."""

    def __init__(self, connection: sqlite3.Connection | None = None) -> None:
        """Make the table if it is missing."""
        self._connection = connection or sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute(_SCHEMA)

    def of(self, model: str, uid: int) -> list[MeasuredGpuUse]:
        """What is known of one user's model, by GPU type, number and batch."""
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM gpu_use WHERE uid=? AND model=?"
            " ORDER BY gpu_type, gpus, batch",
            (uid, model_key(model)),
        )
        return [MeasuredGpuUse(*row) for row in rows if _whole(row)]

    def record(
        self, job: tuple[int, str, int | None], gpu_type: str, use: TrainingUse, seconds: float
    ) -> bool:
        """Take in what a job, given as in :data:`.rate_blocks.RatedJob`, did with all of its GPUs
        over ``seconds``.

        Means are weighted by measured seconds, what is older by half per :data:`HALF_LIFE_S`; the
        most memory is the most ever. False, and nothing is kept, where the figures cannot be. Of
        a user with :data:`MOST_ROWS_PER_USER` rows those not run for longest are replaced.
        """
        uid, model, batch = job
        key = (uid, model_key(model), gpu_type, use.gpus, batch or 0)
        if not (key[1] and gpu_type and 0 < seconds < 1e9 and 0 <= key[4] < 2**53):
            return False
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM gpu_use"
            " WHERE uid=? AND model=? AND gpu_type=? AND gpus=? AND batch=?",
            key,
        )
        old = next((MeasuredGpuUse(*row) for row in rows if _whole(row)), None)
        if old is None and self._rows(uid) >= MOST_ROWS_PER_USER:
            self._connection.execute(
                "DELETE FROM gpu_use WHERE rowid = (SELECT rowid FROM gpu_use WHERE uid=?"
                " ORDER BY changed_s LIMIT 1)",
                (uid,),
            )
        faded = old.weight_s * math.exp2(-seconds / HALF_LIFE_S) if old else 0.0
        figures = {
            name: _blend(getattr(old, name) if old else None, faded, getattr(use, name), seconds)
            for name in _FIGURES
        }
        most = (old.most_memory_mb if old else None, use.most_memory_mb)
        known_mb = [memory_mb for memory_mb in most if memory_mb is not None]
        figures["most_memory_mb"] = max(known_mb, default=None)
        held = _blend(old.held_idle if old else None, faded, use.held_idle, seconds)
        self._connection.execute(
            f"INSERT OR REPLACE INTO gpu_use ({_COLUMNS}, changed_s)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (*key, *figures.values(), held, faded + seconds, time.time()),
        )
        return True

    def _rows(self, uid: int) -> int:
        found = self._connection.execute("SELECT COUNT(*) FROM gpu_use WHERE uid=?", (uid,))
        return int(found.fetchone()[0])


def _whole(row: tuple[object, ...]) -> bool:
    """SQLite keeps whatever a bad disk made of a cell."""
    key, figures, sums = row[:5], row[5:-2], row[-2:]
    return (
        all(isinstance(cell, kind) for cell, kind in zip(key, _KEY, strict=True))
        and all(cell is None or _figure(cell) for cell in figures)
        and all(map(_figure, sums))
    )


def _figure(cell: object) -> bool:
    return isinstance(cell, (int, float)) and 0 <= cell <= _MOST


def _blend(old: float | None, old_weight: float, new: float | None, weight: float) -> float | None:
    if old is None or new is None:
        return old if new is None else new
    return (old * old_weight + new * weight) / (old_weight + weight)
