"""Rates at other GPU counts than the one asked for, out of the throughput table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.profiles.table import shipped

ELASTIC = (1, 2, 4, 8)
GROWTH = 4
"""An elastic job grows to this many times its request at most."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """What an elastic job is in the table: a model and the batch per GPU, which stays as it is."""

    model: str
    batch_per_gpu: int
    samples_per_unit: float
    """Samples in one unit of the workload's work: the batch where that counts in steps."""


def columns(requests: IntArray, elastic: bool) -> tuple[int, ...]:
    """The GPU counts that a workload needs, rising."""
    found = set(requests.tolist())
    if elastic:
        most = GROWTH * int(requests.max(initial=1))
        found |= {n for n in ELASTIC if n <= most}
    return tuple(sorted(found))


def spread_over(
    fixed: FloatArray,
    requests: IntArray,
    counts: Sequence[int],
    types: Sequence[str],
    jobs: Sequence[Elastic | None],
) -> FloatArray:
    """(J, R, C) rates: ``fixed`` (J, R) at the request, the shipped table's at the other counts.

    A count that the table lacks for the model and type stays 0. ``jobs``: None where fixed.
    """
    table = shipped()
    at = {count: i for i, count in enumerate(counts)}
    rate = np.zeros((len(requests), len(types), len(counts)))
    rate[np.arange(len(requests)), :, [at[int(n)] for n in requests]] = fixed
    for row, job in enumerate(jobs):
        if job is None:
            continue
        curves = table.curves(job.model)
        for kind, name in enumerate(types):
            cells = curves[name].cells if name in curves else {}
            for count in ELASTIC:
                if count == requests[row] or count > GROWTH * requests[row]:
                    continue
                samples = cells.get((count, job.batch_per_gpu), 0.0)
                rate[row, kind, at[count]] = samples / job.samples_per_unit
    return rate
