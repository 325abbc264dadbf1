"""ONES's fill: idle GPUs go to waiting and then to running jobs, in all candidates at once."""

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.solvers.evolution_space import Candidates, Keys, Space, used

_SHORT_LIST = 64
"""Waiting jobs that a candidate considers in one pass."""
_PASSES = 3
_WILLING = 0.7
"""Fraction of the candidates in which running jobs grow onto idle GPUs."""
_WAIT = -1


def fill(space: Space, candidates: Candidates, keys: Keys, rng: np.random.Generator) -> Candidates:
    """Give idle GPUs to waiting jobs, those with the highest random keys first, and in a random
    part of the candidates the rest to running jobs."""
    filling = _Filling(space, candidates, rng)
    key = keys(rng, len(candidates.option))
    for _ in range(_PASSES):
        if not filling.admit(key):
            break
    willing: BoolArray = np.array(rng.random(len(candidates.option)) < _WILLING, dtype=np.bool_)
    for _ in range(_PASSES):
        if not filling.grow(willing):
            break
    return Candidates(filling.option, filling.batch)


class _Filling:
    """Candidates that are being filled, with the GPUs that are idle in each; changed in place."""

    def __init__(self, space: Space, candidates: Candidates, rng: np.random.Generator) -> None:
        self.space, self.rng = space, rng
        self.option, self.batch = candidates.option.copy(), candidates.batch.copy()
        self.free = space.capacity[None, :] - used(space, self.option)

    def admit(self, key: FloatArray) -> bool:
        """Give idle GPUs to waiting jobs, the highest keys first; whether one got some."""
        space, option, free, rng = self.space, self.option, self.free, self.rng
        able = np.isfinite(space.quickest).any(axis=1, keepdims=True)
        preference = np.where((option < 0) & able.T, key, -np.inf)
        row, job = _highest(preference, min(_SHORT_LIST, preference.shape[1]))
        if not len(row):
            return False
        seconds = space.quickest[job]
        fits = np.isfinite(seconds) & (space.gpus[None, :] <= free[row][:, space.pool])
        with np.errstate(divide="ignore"):
            cost = np.log(np.where(fits, seconds * np.sqrt(space.gpus), np.inf))
        chance = -2.0 * cost + rng.gumbel(size=cost.shape)
        chosen = chance.argmax(axis=1)
        there = fits[np.arange(len(row)), chosen]
        return self._accept(row[there], job[there], chosen[there])

    def grow(self, willing: BoolArray) -> bool:
        """Let running jobs of the willing candidates grow; whether one did."""
        space, option, free, rng = self.space, self.option, self.free, self.rng
        held = np.maximum(option, 0)
        jobs = np.arange(option.shape[1])[None, :]
        larger = np.where(option >= 0, space.above[jobs, held], _WAIT)
        more = np.maximum(larger, 0)
        extra = space.gpus[more] - space.gpus[held]
        pool = space.pool[held]
        open_ = (larger >= 0) & willing[:, None]
        open_ &= extra <= np.take_along_axis(free, pool, 1)
        now = np.where(open_, space.quickest[jobs, held], 0.0)
        gain = now - np.where(open_, space.quickest[jobs, more], 0.0)
        open_ &= gain > 0
        preference = np.where(open_, np.log(np.maximum(gain, 1e-9) / np.maximum(extra, 1)), -np.inf)
        preference += np.where(open_, rng.gumbel(size=preference.shape), 0.0)
        row, job = _highest(preference, min(_SHORT_LIST, preference.shape[1]))
        if not len(row):
            return False
        return self._accept(row, job, larger[row, job])

    def _accept(self, row: IntArray, job: IntArray, chosen: IntArray) -> bool:
        """Apply the choices that fit, in this order; whether there was one."""
        space, option, free = self.space, self.option, self.free
        if not len(row):
            return False
        had = np.where(option[row, job] >= 0, space.gpus[np.maximum(option[row, job], 0)], 0)
        extra = space.gpus[chosen] - had
        taken = np.zeros(len(row), dtype=bool)
        new = np.ones(len(row), dtype=bool)
        new[1:] = row[1:] != row[:-1]
        part = np.cumsum(new) - 1
        for kind in range(len(space.capacity)):
            here = np.where(space.pool[chosen] == kind, extra, 0)
            total = np.cumsum(here)
            total -= (total - here)[new][part]
            taken |= (here > 0) & (total <= free[row, kind])
        row, job, chosen, extra = row[taken], job[taken], chosen[taken], extra[taken]
        option[row, job] = chosen
        self.batch[row, job] = space.best[job, chosen]
        np.subtract.at(free, (row, space.pool[chosen]), extra)
        return len(row) > 0


def _highest(preference: FloatArray, most: int) -> tuple[IntArray, IntArray]:
    """(row, column) of the highest entries of each row, row by row, highest first; -inf is
    skipped."""
    if most < preference.shape[1]:
        columns = np.argpartition(-preference, most - 1, axis=1)[:, :most]
    else:
        columns = np.broadcast_to(np.arange(preference.shape[1]), preference.shape)
    value = np.take_along_axis(preference, columns, 1)
    order = np.argsort(-value, axis=1, kind="stable")
    columns = np.take_along_axis(columns, order, 1)
    row, at = np.nonzero(np.isfinite(np.take_along_axis(value, order, 1)))
    return row, columns[row, at]
