"""Throughput tables: read from JSON, looked up between the points that were measured."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path

from slurm_hadar import reading
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles import table_file
from slurm_hadar.profiles.table_file import number

SCALING = 0.8
"""Exponent of the samples/s over the GPUs where no scaling was measured, and the most by which a
measured one is carried on beyond the table: ten times the GPUs give 6.3 times the samples/s."""

COLUMNS = (
    "model",
    "gpu_type",
    "gpus",
    "batch_per_gpu",
    "samples_per_s",
    "spread_samples_per_s",
)


@lru_cache(4096)
def model_key(name: str) -> str:
    """A model's name without case, ``-``, ``_`` and the like.

    A leading ``~`` (a job's own name in place of a model's) is kept, so that a job that happens to
    be called resnet18 is not taken for the table's ResNet-18.
    """
    key = "".join(c for c in name.lower() if c.isalnum())
    return "~" + key if name.startswith("~") else key


@dataclass(frozen=True, slots=True)
class TableRate:
    """A looked-up rate: samples/s of the whole job; whether it lies within what was measured."""

    rate: float
    within: bool


class Curve:
    """What was measured of one model on one GPU type: samples/s by GPUs and batch per GPU."""

    def __init__(self, cells: Mapping[tuple[int, int], float]) -> None:
        """``cells``: (GPUs, batch per GPU) -> samples/s of the whole job, 0 where it cannot run."""
        by_count: dict[int, dict[int, float]] = {}
        for (gpus, batch), rate in cells.items():
            by_count.setdefault(gpus, {})[batch] = rate
        self.cells = dict(cells)
        self._counts = sorted(by_count)
        self._batches = {n: sorted(row) for n, row in by_count.items()}
        self._rates = {n: [row[b] for b in sorted(row)] for n, row in by_count.items()}

    def at(self, gpus: int, batch: float | None) -> TableRate:
        """Samples/s of the whole job on ``gpus`` GPUs with a **global** batch.

        The batch per GPU is batch / gpus. Between two points the logarithms are interpolated; a
        point where the job cannot run makes its surroundings 0 too. A larger batch per GPU than
        any measured is taken to be accumulated (the rate stays), a smaller one to take as long a
        step. More GPUs than measured: the last slope, at most :data:`SCALING`. Without a batch the
        middle one of those measured is assumed.
        """
        counts = self._counts
        local = None if batch is None else batch / gpus
        i = bisect_left(counts, gpus)
        if i < len(counts) and counts[i] == gpus:
            return self._along_batches(gpus, local)
        if i == 0:
            first = self._along_batches(counts[0], local)
            return TableRate(first.rate * gpus / counts[0], False)
        low = self._along_batches(counts[i - 1], local)
        if i == len(counts):
            return TableRate(low.rate * self._beyond(gpus, local, low.rate), False)
        high = self._along_batches(counts[i], local)
        rate = _between(gpus, counts[i - 1], low.rate, counts[i], high.rate)
        return TableRate(rate, low.within and high.within)

    def _beyond(self, gpus: int, local: float | None, last: float) -> float:
        slope = SCALING
        if len(self._counts) > 1 and last > 0:
            before = self._along_batches(self._counts[-2], local).rate
            if before > 0:
                slope = math.log(last / before) / math.log(self._counts[-1] / self._counts[-2])
        return float((gpus / self._counts[-1]) ** min(max(slope, 0.0), SCALING))

    def _along_batches(self, gpus: int, local: float | None) -> TableRate:
        batches, rates = self._batches[gpus], self._rates[gpus]
        if local is None:
            return TableRate(rates[(len(rates) - 1) // 2], True)
        i = bisect_left(batches, local)
        if i == len(batches):
            return TableRate(rates[-1], True)
        if batches[i] == local:
            return TableRate(rates[i], True)
        if i == 0:
            return TableRate(rates[0] * local / batches[0], False)
        return TableRate(_between(local, batches[i - 1], rates[i - 1], batches[i], rates[i]), True)


def _between(x: float, x0: float, y0: float, x1: float, y1: float) -> float:
    if y0 <= 0 or y1 <= 0:
        return 0.0
    part = math.log(x / x0) / math.log(x1 / x0)
    return float(math.exp(math.log(y0) * (1 - part) + math.log(y1) * part))


class Table:
    """Samples/s by (model, GPU type, GPUs, batch per GPU), GPUs together on nodes or spread."""

    def __init__(self, rows: Iterable[Sequence[object]], source: str) -> None:
        """``rows`` of :data:`COLUMNS`, checked. ``source`` names the table in explanations."""
        together: dict[str, dict[str, dict[tuple[int, int], float]]] = {}
        spread: dict[str, dict[str, dict[tuple[int, int], float]]] = {}
        self.rows = [_checked(row, source) for row in rows]
        for model, kind, gpus, batch, rate, apart in self.rows:
            key = model_key(model)
            together.setdefault(key, {}).setdefault(kind, {})[gpus, batch] = rate
            if apart is not None:
                spread.setdefault(key, {}).setdefault(kind, {})[gpus, batch] = apart
        self._together = _curves(together)
        self._spread = _curves(spread)
        self._source = dict.fromkeys(self._together, source)

    def curves(self, model: str, spread: bool = False) -> Mapping[str, Curve]:
        """GPU type -> what was measured of a model, empty where the table does not know it."""
        return (self._spread if spread else self._together).get(model_key(model), {})

    def source(self, model: str) -> str:
        """Name of the table that a model's figures come from."""
        return self._source.get(model_key(model), "")

    def over(self, other: "Table") -> "Table":
        """This table over another one: a model that both know is taken from this one."""
        joined = Table((), "")
        joined.rows = [*other.rows, *self.rows]
        joined._together = {**other._together, **self._together}
        kept = {m: c for m, c in other._spread.items() if m not in self._together}
        joined._spread = {**kept, **self._spread}
        joined._source = {**other._source, **self._source}
        return joined


_Row = tuple[str, str, int, int, float, float | None]


def _curves(
    cells: Mapping[str, Mapping[str, Mapping[tuple[int, int], float]]],
) -> dict[str, dict[str, Curve]]:
    return {
        model: {kind: Curve(grid) for kind, grid in by_type.items()}
        for model, by_type in cells.items()
    }


def _checked(row: Sequence[object], source: str) -> _Row:
    if len(row) == len(COLUMNS):
        model, kind, gpus, batch, rate, apart = row
        if (
            isinstance(model, str)
            and model_key(model).strip("~")
            and isinstance(kind, str)
            and kind
            and type(gpus) is int
            and gpus > 0
            and type(batch) is int
            and batch > 0
            and _is_rate(rate)
            and (apart is None or _is_rate(apart))
        ):
            return (model, kind.lower(), gpus, batch, number(rate), _optional(apart))
    raise UsageError(
        f"throughput table {reading.shown(source)}: row {list(row)!r:.200} is not "
        f"{', '.join(COLUMNS)} with whole numbers above 0 for gpus and batch_per_gpu, and rates of "
        "0 or more"
    )


def _is_rate(value: object) -> bool:
    return type(value) in (int, float) and 0 <= number(value) < math.inf


def _optional(value: object) -> float | None:
    return None if value is None else number(value)


def parse(text: str, name: str) -> Table:
    """Read a table's JSON: ``{"version": 1, "source": str, "rows": [...]}`` with :data:`COLUMNS`.

    Raises UsageError naming the file and the row at fault.
    """
    rows, head = table_file.parsed(text, f"throughput table {name}")
    source = head.get("source", name)
    if not isinstance(source, str):
        raise UsageError(f'throughput table {name}: "source" is no text')
    return Table(rows, source)


def load(path: Path) -> Table:
    """Read a site's own table. Raises UsageError when it cannot be read."""
    return parse(table_file.read(path, "throughput table", "profiles.tables"), str(path))


@cache
def shipped() -> Table:
    """The table that comes with slurm-hadar: Gavel's measurements."""
    file = resources.files("slurm_hadar.profiles") / "data" / "gavel.json"
    return parse(file.read_text(), "gavel.json")
