"""The columns most_batch and noise_scale of a trace: jobs that may train with larger batches."""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.batch_sizes import doublings
from slurm_hadar.domain.traits import BatchTrait
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.simulator.traces.csv_rows import CsvRow

_MOST_BATCH = 100_000_000


def batches_of(
    found: Sequence[CsvRow],
    types: Sequence[str],
    counts: Sequence[int],
    rate: FloatArray,
    rates: Rates,
) -> BatchTrait | None:
    """The trait of a trace's jobs; None where no row has a most_batch.

    ``rate`` (J, R, C) with the declared batch. Raises UsageError naming the file and the line.
    """
    own = [_sizes(row) for row in found]
    most = max((len(sizes) for sizes in own), default=0)
    if not most:
        return None
    sizes = np.zeros((len(found), most), dtype=np.int64)
    good = np.zeros((*rate.shape, most))
    noise, base = np.zeros(len(found)), np.zeros(len(found))
    for at, (row, mine) in enumerate(zip(found, own, strict=True)):
        if not mine:
            continue
        sizes[at, : len(mine)], base[at] = mine, mine[0]
        noise[at] = row.number("noise_scale")
        for column, size in enumerate(mine[1:], 1):
            looked_up, _ = rates.rates(row.text("model"), size, types, counts)
            good[at, :, :, column] = np.where(rate[at] > 0, looked_up, 0.0)
    good[..., 0] = np.where((base > 0)[:, None, None], rate, 0.0)
    present = np.zeros(len(found), dtype=np.int64)
    return BatchTrait(sizes=sizes, rate=good, noise=noise, base=base, present=present)


def _sizes(row: CsvRow) -> tuple[int, ...]:
    if not row.text("most_batch"):
        return ()
    for column in ("model", "batch", "noise_scale"):
        if not row.text(column):
            raise row.error(f"most_batch needs {column} as well; fill it in, or leave both empty")
    low = row.whole("batch", most=_MOST_BATCH)
    return doublings(low, row.whole("most_batch", least=low, most=_MOST_BATCH))
