"""Traces in slurm-hadar's own format: CSV with a header, described in docs/simulator.md.

Columns: job_id, arrival_s, gpus, samples, and for the speed either model (with batch, the global
one, if wanted) or rate_TYPE for each GPU type (samples/s of the whole job on its GPUs; 0: cannot).
Optional: counts (``1-4`` or ``1 2 4``, for a model), weight, max_nodes, cpus_per_gpu,
mem_per_gpu_gb, gradient_mb, tasks, most_batch with noise_scale and, if it is not constant,
noise_growth (see ``batches_of``), and those of ``queue_columns.py``.
"""

import re
from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.declaration_values import doublings
from slurm_hadar.domain.traits import BatchTrait
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.profiles.sizes import gradient_bytes
from slurm_hadar.simulator.counts import Elastic, columns, spread_over
from slurm_hadar.simulator.traces.csv_rows import LATEST_S, CsvRow, rows
from slurm_hadar.simulator.traces.gavel import unique_ids
from slurm_hadar.simulator.traces.queue_columns import queued
from slurm_hadar.simulator.workload import Workload

NEEDED = ("job_id", "arrival_s", "gpus", "samples")
_ANY_NODES = 1_000_000
_MOST_COUNTS = 64


def read(
    text: str, name: str, types: Sequence[str], rates: Rates, elastic: bool = False
) -> Workload:
    """A workload for these types; work is in samples. Models are looked up in ``rates``.

    ``elastic``: rows without counts of their own also run at 1, 2, 4 and 8 GPUs where the shipped
    table has them with the same batch per GPU, at most 4 times the request. Raises UsageError
    naming the file and the line.
    """
    found = list(rows(text, name, NEEDED))
    requests = np.array([row.whole("gpus") for row in found], dtype=np.int64)
    given = [_counts(row, int(n)) for row, n in zip(found, requests, strict=True)]
    counts = tuple(sorted({*columns(requests, elastic), *(n for some in given for n in some)}))
    fixed = np.array(
        [_rates(row, int(n), types, rates) for row, n in zip(found, requests, strict=True)]
    ).reshape(len(found), len(types))
    jobs = [
        _elastic(row, int(n)) if elastic and not some else None
        for row, n, some in zip(found, requests, given, strict=True)
    ]
    rate = spread_over(fixed, requests, counts, types, jobs)
    for at, (row, some) in enumerate(zip(found, given, strict=True)):
        if some:
            columns_ = [counts.index(n) for n in some]
            rate[at, :, :] = 0.0
            rate[at][:, columns_] = _looked_up(row, types, some, rates)
    return Workload(
        name=name,
        types=tuple(types),
        counts=counts,
        ids=unique_ids(found),
        arrival_s=np.array([row.number("arrival_s", most=LATEST_S) for row in found]),
        request=requests,
        total=np.array([row.number("samples", above=True) for row in found]),
        rate=rate,
        weight=np.array([_optional(row, "weight", 1.0, above=True) for row in found]),
        models=tuple(row.word("model") for row in found),
        tasks=np.array(
            [row.whole("tasks") if row.text("tasks") else 1 for row in found], dtype=np.int64
        ),
        max_nodes=np.array(
            [row.whole("max_nodes") if row.text("max_nodes") else _ANY_NODES for row in found],
            dtype=np.int64,
        ),
        cpus_per_gpu=np.array([_optional(row, "cpus_per_gpu", 0.0) for row in found]),
        mem_per_gpu_mb=np.array([_optional(row, "mem_per_gpu_gb", 0.0) * 1024 for row in found]),
        batches=batches_of(found, types, counts, rate, rates),
        noise_growth=np.array([_noise_growth(row) for row in found]),
        gradients=np.array([_gradients(row) for row in found]),
        lines=tuple(row.line for row in found),
        queue=queued(found, types),
    )


def _optional(row: CsvRow, column: str, default: float, above: bool = False) -> float:
    return row.number(column, above=above) if row.text(column) else default


def _gradients(row: CsvRow) -> float:
    """Bytes per sample: the GPUs exchange a step's gradients, whatever its batch."""
    each = gradient_bytes(row.word("model"))
    return _optional(row, "gradient_mb", each / 1e6) * 1e6 / (_batch(row) or np.inf)


def _batch(row: CsvRow) -> int | None:
    return row.whole("batch", most=100_000_000) if row.text("batch") else None


def _rates(row: CsvRow, gpus: int, types: Sequence[str], rates: Rates) -> list[float]:
    given = [kind for kind in types if row.text(f"rate_{kind}")]
    if given and len(given) < len(types):
        missing = next(kind for kind in types if kind not in given)
        raise row.error(f"rate_{missing} is empty; give a rate, or 0 where the job cannot run")
    if given:
        return [row.number(f"rate_{kind}") for kind in types]
    one: list[float] = _looked_up(row, types, (gpus,), rates)[:, 0].tolist()
    return one


def _looked_up(
    row: CsvRow, types: Sequence[str], counts: Sequence[int], rates: Rates
) -> FloatArray:
    model = row.word("model")
    if not model:
        raise row.error(
            "it names neither a model nor rates; fill in model, or "
            + ", ".join(f"rate_{kind}" for kind in types)
        )
    if not rates.anchored(model):
        raise row.error(
            f"model {model!r} is in no throughput table; correct it, or give "
            + ", ".join(f"rate_{kind}" for kind in types)
        )
    return rates.rates((None, model, _batch(row)), types, counts)[0]


def _counts(row: CsvRow, request: int) -> tuple[int, ...]:
    """The column counts, with the request; empty where it is not given."""
    text = row.text("counts")
    if not text:
        return ()
    words = text.replace("-", " - ").split()
    numbers = [int(word) for word in words if re.fullmatch(r"\d{1,9}", word, re.ASCII)]
    if len(words) == 3 and words[1] == "-" and len(numbers) == 2:
        numbers = list(range(numbers[0], min(numbers[1], numbers[0] + _MOST_COUNTS) + 1))
    elif len(numbers) != len(words):
        numbers = []
    if not numbers or min(numbers) < 1 or len(numbers) > _MOST_COUNTS or max(numbers) > 100_000:
        raise row.error(f"counts is {text!r}; write 1-4 or 1 2 4")
    return tuple(sorted({*numbers, request}))


def _elastic(row: CsvRow, request: int) -> Elastic | None:
    batch = _batch(row)
    if not row.word("model") or batch is None or batch % request:
        return None
    return Elastic(row.word("model"), batch // request, 1.0)


# The columns most_batch, noise_scale and noise_growth of a trace: jobs that may train with larger
# batches.
_MOST_BATCH = 100_000_000
_MOST_GROWTH = 1e6


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
    own = [_batch_sizes(row) for row in found]
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
            looked_up, _ = rates.rates((None, row.text("model"), size), types, counts)
            good[at, :, :, column] = np.where(rate[at] > 0, looked_up, 0.0)
    good[..., 0] = np.where((base > 0)[:, None, None], rate, 0.0)
    present = np.zeros(len(found), dtype=np.int64)
    return BatchTrait(sizes=sizes, rate=good, noise=noise, base=base, present=present)


def _noise_growth(row: CsvRow) -> float:
    if row.text("noise_growth") and not row.text("most_batch"):
        raise row.error("noise_growth needs most_batch as well; fill it in, or leave both empty")
    if not row.text("noise_growth"):
        return 1.0
    return row.number("noise_growth", above=True, most=_MOST_GROWTH)


def _batch_sizes(row: CsvRow) -> tuple[int, ...]:
    if not row.text("most_batch"):
        return ()
    for column in ("model", "batch", "noise_scale"):
        if not row.text(column):
            raise row.error(f"most_batch needs {column} as well; fill it in, or leave both empty")
    low = row.whole("batch", most=_MOST_BATCH)
    return doublings(low, row.whole("most_batch", least=low, most=_MOST_BATCH))
