"""The search space of an evolutionary search, and candidates by job.

Axes: P candidates, G GPUs (contiguous per pool), J jobs, K pools, O options (pool-major: pool x
count), B batches.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray

Score = Callable[[IntArray, IntArray], FloatArray]
"""(P, J) options and (P, J) batches -> (P,); lower is better."""
Keys = Callable[[np.random.Generator, int], FloatArray]
"""A draw of (P, J) keys for P candidates: jobs with higher keys are served first."""


@dataclass(frozen=True)
class Space:
    """The allowed choices. ``seconds`` inf: not allowed."""

    capacity: IntArray
    """(K,) GPUs."""
    counts: IntArray
    """(C,) GPU counts, ascending."""
    seconds: FloatArray
    """(J, O, B) run time of the remaining work, s; O = K x C."""
    sizes: IntArray
    """(J, B) global batches in samples, ascending; 0: no choice."""
    keep: BoolArray
    """(J,) jobs that must not be preempted."""

    pool: IntArray = field(init=False)
    gpus: IntArray = field(init=False)
    best: IntArray = field(init=False)
    """(J, O) index of the batch with the shortest run time."""
    quickest: FloatArray = field(init=False)
    """(J, O) that run time, s."""
    below: IntArray = field(init=False)
    """(J, O) the largest option of the pool with at most that many GPUs; -1: none."""
    above: IntArray = field(init=False)
    """(J, O) the next larger option of the pool; -1: none."""

    def __post_init__(self) -> None:
        pools, columns = len(self.capacity), len(self.counts)
        jobs = len(self.seconds)
        put = object.__setattr__
        put(self, "pool", np.repeat(np.arange(pools), columns))
        put(self, "gpus", np.tile(self.counts, pools))
        if self.seconds.size:
            best = self.seconds.argmin(axis=2)
            quickest = np.take_along_axis(self.seconds, best[:, :, None], 2)[:, :, 0]
        else:
            best, quickest = np.zeros((jobs, 0), np.int64), np.zeros((jobs, 0))
        put(self, "best", best)
        put(self, "quickest", quickest)
        able = np.isfinite(self.quickest).reshape(jobs, pools, columns)
        number = np.arange(pools * columns).reshape(pools, columns)
        down = np.maximum.accumulate(np.where(able, number, -1), axis=2)
        put(self, "below", down.reshape(jobs, pools * columns))
        far = pools * columns
        up = np.where(able, number, far)
        up = np.minimum.accumulate(up[:, :, ::-1], axis=2)[:, :, ::-1]
        up = np.concatenate([up[:, :, 1:], np.full((jobs, pools, 1), far)], axis=2)[:, :, :columns]
        put(self, "above", np.where(up < far, up, -1).reshape(jobs, pools * columns))

    @property
    def starts(self) -> IntArray:
        """(K + 1,) first GPU of each pool."""
        return np.concatenate([[0], np.cumsum(self.capacity)]).astype(np.int64)


@dataclass
class Candidates:
    """P candidates by job: option (P, J), -1 waits; and batch (P, J)."""

    option: IntArray
    batch: IntArray

    def take(self, rows: IntArray) -> "Candidates":
        """These rows."""
        return Candidates(self.option[rows], self.batch[rows])

    def join(self, other: "Candidates") -> "Candidates":
        """Both sets of candidates."""
        return Candidates(
            np.concatenate([self.option, other.option]), np.concatenate([self.batch, other.batch])
        )


def used(space: Space, option: IntArray) -> IntArray:
    """(P, K) GPUs that the candidates use in each pool."""
    held = np.where(option >= 0, option, 0)
    gpus = np.where(option >= 0, space.gpus[held], 0)
    at = np.arange(len(option))[:, None] * len(space.capacity) + space.pool[held]
    size = len(option) * len(space.capacity)
    total = np.bincount(at.ravel(), weights=gpus.ravel(), minlength=size)
    return total.astype(np.int64).reshape(len(option), len(space.capacity))
