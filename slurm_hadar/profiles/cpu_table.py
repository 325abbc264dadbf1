"""Tables of the rate by CPUs and memory beside each GPU: read from JSON, put on common axes.

Only ratios count: a table may hold samples/s, or rates over that with a fair share. What lies
between two measured points is interpolated, beyond the last one nothing changes any more.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from slurm_hadar import reading
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.traits import CpuTrait
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles import table_file
from slurm_hadar.profiles.table import model_key
from slurm_hadar.profiles.table_file import number

COLUMNS = ("model", "gpus", "cpus_per_gpu", "mem_per_gpu_gb", "rate")
MB_PER_GB = 1024.0


@dataclass(frozen=True)
class Grid:
    """What was measured of one model on one number of GPUs."""

    cpus: FloatArray
    """(P,) CPUs per GPU, rising."""
    mem_mb: FloatArray
    """(M,) memory per GPU in MB, rising."""
    rate: FloatArray
    """(P, M) rate of the whole job, of any unit."""

    def on(self, cpus: FloatArray, mem_mb: FloatArray) -> FloatArray:
        """(len(cpus), len(mem_mb)) rates at other points, bilinear; below the least one measured in
        proportion to it, in the absence of data."""
        along = np.stack([np.interp(mem_mb, self.mem_mb, row) for row in self.rate])
        found = np.stack([np.interp(cpus, self.cpus, column) for column in along.T], axis=1)
        found *= np.minimum(1.0, cpus / self.cpus[0])[:, None]
        found *= np.minimum(1.0, mem_mb / self.mem_mb[0])[None, :]
        return np.asarray(found)


class CpuTable:
    """Rates by (model, GPUs, CPUs per GPU, memory per GPU)."""

    def __init__(self, rows: Iterable[Sequence[object]], source: str) -> None:
        """``rows`` of :data:`COLUMNS`. Raises UsageError for one that cannot be, and where a
        model's points are no full grid."""
        self.rows = [_checked(row, source) for row in rows]
        points: dict[str, dict[int, dict[tuple[float, float], float]]] = {}
        for model, gpus, cpus, gb, rate in self.rows:
            cells = points.setdefault(model_key(model), {}).setdefault(gpus, {})
            cells[cpus, gb * MB_PER_GB] = rate
        self._grids = {
            model: {gpus: _grid(model, gpus, cells, source) for gpus, cells in by_count.items()}
            for model, by_count in points.items()
        }

    def grid(self, model: str, gpus: int) -> Grid | None:
        """The grid at the largest measured number of GPUs up to ``gpus``, else at the least one;
        None for a model that the table does not know."""
        found = self._grids.get(model_key(model))
        if not found:
            return None
        smaller = [count for count in found if count <= gpus]
        return found[max(smaller) if smaller else min(found)]

    def over(self, other: "CpuTable") -> "CpuTable":
        """This table over another one: a model that both know is taken from this one."""
        joined = CpuTable((), "")
        joined.rows = [*other.rows, *self.rows]
        joined._grids = {**other._grids, **self._grids}
        return joined


def cpu_trait_of(
    grids: Sequence[Grid | None],
    asked: tuple[FloatArray, FloatArray],
    least: tuple[FloatArray, FloatArray],
    most: tuple[FloatArray, FloatArray],
) -> CpuTrait:
    """The trait of J jobs. ``asked``, ``least``, ``most``: (J,) CPUs and (J,) MB per GPU.

    A job without a grid is as fast with everything.
    """
    distinct: dict[int, Grid] = {id(grid): grid for grid in grids if grid is not None}
    cpus = _axis([grid.cpus for grid in distinct.values()])
    mem = _axis([grid.mem_mb for grid in distinct.values()])
    laid = {key: grid.on(cpus, mem) for key, grid in distinct.items()}
    factor = np.ones((len(grids), len(cpus), len(mem)))
    for row, grid in enumerate(grids):
        if grid is not None:
            at = grid.on(asked[0][row : row + 1], asked[1][row : row + 1])[0, 0]
            factor[row] = laid[id(grid)] / max(at, 1e-12)
    return CpuTrait(cpus, mem, factor, least[0], most[0], least[1], most[1])


def _axis(parts: Sequence[FloatArray]) -> FloatArray:
    return np.unique(np.concatenate(parts)) if parts else np.zeros(1)


_Row = tuple[str, int, float, float, float]


def _grid(model: str, gpus: int, cells: Mapping[tuple[float, float], float], source: str) -> Grid:
    cpus = sorted({c for c, _ in cells})
    mem = sorted({m for _, m in cells})
    if len(cells) != len(cpus) * len(mem):
        raise UsageError(
            f"CPU table {reading.shown(source)}: {reading.shown(model)} on {gpus} GPUs has "
            f"{len(cells)} points, which is no full grid of {len(cpus)} numbers of CPUs by "
            f"{len(mem)} amounts of memory"
        )
    rate = np.array([[cells[c, m] for m in mem] for c in cpus])
    return Grid(np.array(cpus), np.array(mem), rate)


def _checked(row: Sequence[object], source: str) -> _Row:
    if len(row) == len(COLUMNS):
        model, gpus, *numbers = row
        if (
            isinstance(model, str)
            and model_key(model).strip("~")
            and type(gpus) is int
            and gpus > 0
            and all(type(n) in (int, float) and 0 < number(n) < 1e15 for n in numbers)
        ):
            cpus, gb, rate = (number(n) for n in numbers)
            return model, gpus, cpus, gb, rate
    raise UsageError(
        f"CPU table {reading.shown(source)}: row {list(row)!r:.200} is not {', '.join(COLUMNS)} "
        "with a whole number for gpus and all numbers above 0"
    )


def parse(text: str, name: str) -> CpuTable:
    """Read a table's JSON: ``{"version": 1, "source": str, "rows": [...]}`` with :data:`COLUMNS`.

    Raises UsageError naming the file and the row at fault.
    """
    rows, head = table_file.parsed(text, f"CPU table {name}")
    return CpuTable(rows, str(head.get("source", name)))


def text(rows: Iterable[Sequence[object]], head: Mapping[str, object]) -> str:
    """A table's text, one row a line so that a difference can be read. ``head``: what else it
    says of itself, such as ``source``."""
    first = json.dumps({"version": 1, **head, "columns": COLUMNS}, indent=1)[:-2]
    lines = ",\n  ".join(json.dumps(list(row)) for row in rows)
    return first + f',\n "rows": [\n  {lines}\n ]\n}}\n'


def load(path: Path) -> CpuTable:
    """Read a site's own table. Raises UsageError when it cannot be read."""
    return parse(table_file.read(path, "CPU table", "profiles.cpu_tables"), str(path))


@cache
def shipped() -> CpuTable:
    """Synergy's measurements, which come with slurm-hadar for simulations. A live cluster uses
    only tables of its own: with another input pipeline or disk the curves are others."""
    file = resources.files("slurm_hadar.profiles") / "data" / "synergy.json"
    return parse(file.read_text(), "synergy.json")
