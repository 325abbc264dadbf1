"""Measured throughput, kept per user, model, GPU type, number of GPUs and batch."""

import math
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass

from slurm_hadar.exchange.progress import FASTEST, SLOWEST
from slurm_hadar.profiles.table import model_key

HALF_LIFE_S = 1800.0
"""Measured seconds after which an older measurement counts half."""
MOST_ROWS_PER_USER = 2000
"""Users choose model names freely: one user's rows may not fill the file. New ones replace
those not run for longest."""

_SHORTEST_S, _LONGEST_S = 1e-3, 1e9
"""Seconds of one measurement."""
_MOST_GPUS, _MOST_BATCH = 10**6, 2**53

_SCHEMA = """
CREATE TABLE IF NOT EXISTS {table} (
    uid INTEGER NOT NULL, model TEXT NOT NULL, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL,
    batch INTEGER NOT NULL, samples_per_s REAL NOT NULL, weight_s REAL NOT NULL,
    seconds REAL NOT NULL, runs INTEGER NOT NULL, last_run TEXT NOT NULL, changed_s REAL NOT NULL,
    PRIMARY KEY (uid, model, gpu_type, gpus, batch)
)
"""
_COLUMNS = "uid, model, gpu_type, gpus, batch, samples_per_s, weight_s, seconds, runs, last_run"
_KINDS = (int, str, str, int, int, float, float, float, int, str)


@dataclass(frozen=True, slots=True)
class RateSample:
    """One window of a training: ``samples_per_s`` of the whole job over ``seconds``. ``batch`` is
    global, None: unknown; ``run`` names the attempt, so that its windows count as one run, as do
    those of one that ``is_known`` from earlier windows although others came between."""

    model: str
    gpu_type: str
    gpus: int
    batch: int | None
    samples_per_s: float
    seconds: float
    uid: int = 0
    run: str = ""
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured rate in samples/s. ``batch`` is global, 0: unknown. ``seconds``: measured so far.

    ``weight_s`` is the same with what is older counted less; ``runs`` counts jobs or attempts.
    """

    uid: int
    model: str
    gpu_type: str
    gpus: int
    batch: int
    samples_per_s: float
    weight_s: float
    seconds: float
    runs: int
    last_run: str = ""

    @property
    def key(self) -> tuple[int, str, str, int, int]:
        """What it was measured of."""
        return self.uid, self.model, self.gpu_type, self.gpus, self.batch


class MeasuredStore:
    """Measurements in memory and, where a connection was handed in, in its file too."""

    def __init__(
        self, connection: sqlite3.Connection | None = None, table: str = "throughput"
    ) -> None:
        """Make the table if it is missing. Without a connection nothing outlives the process."""
        self._table = table
        self._connection = connection or sqlite3.connect(":memory:", isolation_level=None)
        self._write(_SCHEMA.format(table=table))
        self._found: dict[str, dict[tuple[int, str, str, int, int], Measurement]] = {}
        self._rows: dict[int, int] = {}
        self.read_again()

    def read_again(self) -> None:
        """Have what the file holds now."""
        self._found.clear()
        self._rows.clear()
        for row in self._connection.execute(f"SELECT {_COLUMNS} FROM {self._table}"):
            # SQLite keeps whatever a bad disk made of a cell.
            if all(isinstance(cell, kind) for cell, kind in zip(row, _KINDS, strict=True)):
                found = Measurement(*row)
                # Earlier releases took more.
                if _can_be(found):
                    self._keep(found)

    def of(self, model: str) -> Iterator[Measurement]:
        """All measurements of one model."""
        yield from self._found.get(model_key(model), {}).values()

    def record(self, sample: RateSample) -> bool:
        """Take in a rate.

        The mean is weighted by measured seconds, what is older by half per :data:`HALF_LIFE_S`.
        Returns False, and keeps nothing, for figures that cannot be (they come from users' files).
        """
        model, uid, run = model_key(sample.model), sample.uid, sample.run
        samples_per_s, seconds = sample.samples_per_s, sample.seconds
        key = (uid, model, sample.gpu_type, sample.gpus, sample.batch or 0)
        alone = Measurement(*key, samples_per_s, seconds, seconds, 1)
        if not (_can_be(alone) and _SHORTEST_S <= seconds <= _LONGEST_S):
            return False
        old = self._found.get(model, {}).get(key)
        if old is None:
            if self._rows.get(uid, 0) >= MOST_ROWS_PER_USER:
                self._drop_oldest(uid)
            old = Measurement(*key, samples_per_s, 0.0, 0.0, 0)
        is_new = not sample.is_known and (not run or run != old.last_run)
        faded = old.weight_s * math.exp2(-seconds / HALF_LIFE_S)
        weight = faded + seconds
        mean = (old.samples_per_s * faded + samples_per_s * seconds) / weight
        new = Measurement(
            *key,
            min(max(mean, SLOWEST), FASTEST),
            weight,
            old.seconds + seconds,
            old.runs + (old.runs == 0 or is_new),
            run,
        )
        self._keep(new)
        self._write(
            f"INSERT OR REPLACE INTO {self._table} ({_COLUMNS}, changed_s)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (
                *key,
                new.samples_per_s,
                new.weight_s,
                new.seconds,
                new.runs,
                new.last_run,
                time.time(),
            ),
        )
        return True

    def _drop_oldest(self, uid: int) -> None:
        found = self._connection.execute(
            f"SELECT rowid, uid, model, gpu_type, gpus, batch FROM {self._table} WHERE uid=?"
            " ORDER BY changed_s LIMIT 1",
            (uid,),
        ).fetchone()
        row, key = found[0], tuple(found[1:])
        self._write(f"DELETE FROM {self._table} WHERE rowid=?", (row,))
        rows = self._found.get(key[1], {})
        if rows.pop(key, None) is not None:
            self._rows[uid] -= 1
        if not rows:
            self._found.pop(key[1], None)

    def _keep(self, measurement: Measurement) -> None:
        rows = self._found.setdefault(measurement.model, {})
        if measurement.key not in rows:
            self._rows[measurement.uid] = self._rows.get(measurement.uid, 0) + 1
        rows[measurement.key] = measurement

    def _write(self, statement: str, values: tuple[object, ...] = ()) -> None:
        # A transaction that the caller has open is the caller's to commit.
        outside = not self._connection.in_transaction
        try:
            self._connection.execute(statement, values)
            if outside and self._connection.in_transaction:
                self._connection.commit()
        except BaseException:
            if outside and self._connection.in_transaction:
                self._connection.rollback()
            raise


def _can_be(found: Measurement) -> bool:
    """Whether figures are such as a training could have: rates come from users' files."""
    return (
        bool(found.model and found.gpu_type)
        and 0 < found.gpus < _MOST_GPUS
        and 0 <= found.batch < _MOST_BATCH
        and SLOWEST <= found.samples_per_s <= FASTEST
        and _SHORTEST_S <= found.weight_s < 1e12
        and _SHORTEST_S <= found.seconds < math.inf
    )
