"""Traces of jobs: Gavel's, our own format and what ``sacct`` prints, read into a workload. A trace
is opened by its path, or by the name of one that comes with slurm-hadar.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.simulator.traces import gavel, native, sacct
from slurm_hadar.simulator.traces.csv_rows import rows_of, text_of
from slurm_hadar.simulator.traces.sacct import ModelNames
from slurm_hadar.simulator.workload import Workload

_YEAR_S = 365.25 * 86_400.0
_MOST_YEARS = 100.0

_FOLDER = resources.files("slurm_hadar.simulator") / "data"


def shipped_names() -> tuple[str, ...]:
    """Traces that come with slurm-hadar."""
    return tuple(
        sorted(item.name.removesuffix(".csv") for item in _FOLDER.iterdir()
               if item.name.endswith(".csv"))
    )  # fmt: skip


def open_trace(
    trace: str, types: Sequence[str], rates: Rates | None = None, *, elastic: bool = False
) -> Workload:
    """Read a trace; the header tells the kind of a CSV (Gavel's has scale_factor).

    Raises UsageError for a file that is not there or is malformed.
    """
    name, text = _found(trace)
    header = next((line for line in rows_of(text) if line.strip()[:1] not in ("", "#")), "")
    if "scale_factor" in header or "total_steps" in header:
        return _ends(gavel.read(text, name, types, elastic))
    return _ends(native.read(text, name, types, rates or Rates(), elastic))


def open_sacct(
    trace: str, types: Sequence[str], rates: Rates, models: ModelNames | None = None
) -> Workload:
    """Read sacct's output. Raises UsageError for a file that is not there or is malformed."""
    name, text = _found(trace, "replace")
    return _ends(sacct.read(text, name, types, rates, models))


def _found(trace: str, errors: str = "strict") -> tuple[str, str]:
    """A trace's name and text; ``errors`` as in :func:`text_of`."""
    path = Path(trace)
    if path.exists():
        return path.name, text_of(path, errors)
    if trace in shipped_names():
        return trace, (_FOLDER / f"{trace}.csv").read_text()
    raise UsageError(f"there is no trace {trace}; shipped ones: {', '.join(shipped_names())}")


def _ends(work: Workload) -> Workload:
    """The same, if all jobs could end. Raises UsageError: a slip of some digits would otherwise
    keep a simulation busy forever."""
    if not work.ids:
        return work
    best = work.rate.max(axis=(1, 2), initial=0.0)
    years = np.where(best > 0, work.total / np.where(best > 0, best, 1.0), 0.0) / _YEAR_S
    row = int(years.argmax())
    if years[row] > _MOST_YEARS:
        raise UsageError(
            f"{work.name}, line {work.lines[row]}: job {work.ids[row]} would train for "
            f"{years[row]:.3g} years at its best rate; correct its work or its rates"
        )
    return work
