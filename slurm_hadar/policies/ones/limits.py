"""ONES's own limits of a batch's growth (arXiv 2108.03645, recalled).

A job starts with its declared batch. Its limit doubles with each trained epoch (a tenth of its work
counts as one) and is cut when the job has run long; a job that was stopped resumes with a lower
one. The limits ignore the noise scale; where that is known they only delay.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import IntArray, View
from slurm_hadar.policies.ones.progress import EPOCHS

_LONG_S = 4 * 3600.0
"""sigma: run time from which the limit is cut, in favour of other jobs."""
_SHRINK = 1.0 / (4 * 3600.0)
"""lambda, per s."""
_MOST = 1e15


@dataclass(frozen=True)
class BatchLimits:
    """``most`` (J,): largest batch in samples; ``kept``: job -> [epochs seen, times lowered,
    whether it ran]."""

    most: IntArray
    kept: Mapping[str, list[int]]


def limits_of(view: View, before: Mapping[str, list[int]]) -> BatchLimits:
    """The limits of this round, from what the round before kept."""
    jobs = view.jobs
    base = jobs.batches.base if jobs.batches is not None else np.zeros(len(jobs.ids))
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.nan_to_num((jobs.total - jobs.left) / jobs.total)
    epochs = np.floor(np.clip(part, 0.0, 1.0) * EPOCHS).astype(np.int64)
    gpus = np.zeros(len(jobs.ids))
    if len(jobs.held):
        np.add.at(gpus, jobs.held[:, 0], jobs.held[:, 3])
    most = np.zeros(len(jobs.ids))
    kept: dict[str, list[int]] = {}
    for row, id_ in enumerate(jobs.ids):
        _, lowered, ran = before.get(id_, [0, 0, 0])
        if ran and not jobs.running[row]:
            lowered += 1
        doubled = float(np.clip(epochs[row] - lowered, 0, 40))
        ran_s = float(jobs.attained[row]) / max(1.0, gpus[row])
        cut = 1.0 + np.ceil(max(0.0, _SHRINK * (ran_s - _LONG_S)))
        most[row] = max(base[row], min(base[row] * 2.0**doubled / cut, _MOST))
        kept[id_] = [int(epochs[row]), int(lowered), int(jobs.running[row])]
    return BatchLimits(most.astype(np.int64), kept)
