"""What samplers saw of each job's GPUs, by day: GPU time, time held in vain, energy."""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurm_hadar.profiles.gpu_sampling import TrainingUse

DAY_S = 86400.0
KEEP_S = 30 * DAY_S
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sampled_use (
    job TEXT NOT NULL, day INTEGER NOT NULL, gpu_s REAL NOT NULL, idle_gpu_s REAL NOT NULL,
    energy_j REAL NOT NULL, energy_gpu_s REAL NOT NULL, PRIMARY KEY (job, day)
);
"""
_OUTSIDE = """
CREATE TABLE IF NOT EXISTS outside_rollout (job TEXT PRIMARY KEY, seen_s REAL NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class SampledUse:
    """One job on one day (UTC, since the epoch), in GPU-seconds: sampled, of these held by a job
    that computed nothing, and of these with known power; ``energy_j``: of the last."""

    job: str
    day: int
    gpu_s: float
    idle_gpu_s: float
    energy_j: float
    energy_gpu_s: float


class SampledUses:
    """The rows in the state file, kept for 30 days; in memory without a connection."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        """Make the tables if they are missing."""
        self._connection = connection or sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute(_SCHEMA)
        self._connection.execute(_OUTSIDE)
        self._forgotten = 0

    def record(self, uses: Iterable[tuple[str, float, TrainingUse, float]]) -> None:
        """Add (job, now, use, seconds): what its sampled GPUs did over ``seconds`` before then."""
        self._connection.executemany(
            "INSERT INTO sampled_use VALUES (?,?,?,?,?,?) ON CONFLICT (job, day) DO UPDATE SET"
            " gpu_s=gpu_s+excluded.gpu_s, idle_gpu_s=idle_gpu_s+excluded.idle_gpu_s,"
            " energy_j=energy_j+excluded.energy_j,"
            " energy_gpu_s=energy_gpu_s+excluded.energy_gpu_s",
            [_row(*one) for one in uses],
        )

    def note_outside(self, jobs: Iterable[str], now: float) -> None:
        """Keep which jobs opted in and are outside the rollout, for the comparison."""
        rows = [(id_, now) for id_ in jobs]
        if rows:
            self._connection.executemany(
                "INSERT OR REPLACE INTO outside_rollout VALUES (?,?)", rows
            )

    def forget_again(self) -> None:
        """What was dropped may still be in the file: the next :meth:`forget` looks."""
        self._forgotten = 0

    def forget(self, now: float) -> bool:
        """Drop what is older than 30 days; looks once a day. Whether it has looked."""
        if int(now // DAY_S) == self._forgotten:
            return False
        self._forgotten = int(now // DAY_S)
        before = now - KEEP_S
        self._connection.execute("DELETE FROM sampled_use WHERE day<?", (int(before // DAY_S),))
        self._connection.execute("DELETE FROM outside_rollout WHERE seen_s<?", (before,))
        return True

    def since(self, from_s: float) -> Iterator[SampledUse]:
        """Rows of the days since ``from_s``."""
        rows = self._connection.execute(
            "SELECT job, day, gpu_s, idle_gpu_s, energy_j, energy_gpu_s FROM sampled_use"
            " WHERE day>=?",
            (int(from_s // DAY_S),),
        )
        for row in rows:
            # SQLite keeps whatever a bad disk made of a cell.
            if isinstance(row[1], int) and all(isinstance(cell, float) for cell in row[2:]):
                yield SampledUse(str(row[0]), *row[1:])

    def outside(self) -> set[str]:
        """Jobs that opted in and were outside the rollout."""
        rows = self._connection.execute("SELECT job FROM outside_rollout")
        return {str(job) for (job,) in rows}


def _row(
    job: str, now: float, use: TrainingUse, seconds: float
) -> tuple[str, int, float, float, float, float]:
    gpu_s = use.gpus * seconds
    energy = (0.0, 0.0) if use.power_w is None else (use.power_w * seconds, gpu_s)
    idle = min(1.0, use.held_idle + use.unused) * gpu_s
    return job, int(now // DAY_S), gpu_s, idle, *energy
