"""ONES's operators on GPUs: reorder, uniform crossover, uniform mutation; all candidates at once.

Axes as in ``evolution_space.py``. What mends a child whose gangs were cut is ours.
"""

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.evolution_space import Candidates, Space

_WAIT = -1


def lay(space: Space, crowd: Candidates) -> tuple[IntArray, IntArray]:
    """Reorder: (P, G) job of each GPU (-1: idle) and its local batch, each job's GPUs contiguous.

    A job's batch is dealt evenly, the rest to its first GPUs.
    """
    number, total = len(crowd.option), int(space.capacity.sum())
    who = np.full((number, total), _WAIT, dtype=np.int64)
    local = np.zeros((number, total), dtype=np.int64)
    row, job = np.nonzero(crowd.option >= 0)
    if not len(row):
        return who, local
    option = crowd.option[row, job]
    order = np.lexsort((job, space.pool[option], row))
    row, job, option = row[order], job[order], option[order]
    gpus = space.gpus[option]
    ahead = np.cumsum(gpus) - gpus
    group = row * len(space.capacity) + space.pool[option]
    new = np.ones(len(group), dtype=bool)
    new[1:] = group[1:] != group[:-1]
    base = ahead[new][np.cumsum(new) - 1]
    first = space.starts[space.pool[option]] + ahead - base
    step = np.arange(int(gpus.sum())) - np.repeat(ahead, gpus)
    at = np.repeat(row, gpus), np.repeat(first, gpus) + step
    who[at] = np.repeat(job, gpus)
    whole = space.sizes[job, crowd.batch[row, job]]
    local[at] = np.repeat(whole // gpus, gpus) + (step < np.repeat(whole % gpus, gpus))
    return who, local


def read(space: Space, who: IntArray, local: IntArray) -> Candidates:
    """Candidates out of GPUs: cut gangs are made whole again.

    A job keeps the pool in which it has most GPUs, and of these as many as it may run with; its
    batch is the allowed one nearest to the sum over them, on logarithms.
    """
    number, jobs, pools = len(who), len(space.sizes), len(space.capacity)
    pool_of = np.repeat(np.arange(pools), space.capacity)
    row, gpu = np.nonzero(who >= 0)
    flat = (row * jobs + who[row, gpu]) * pools + pool_of[gpu]
    gpus = np.bincount(flat, minlength=number * jobs * pools).reshape(number, jobs, pools)
    samples = np.bincount(flat, weights=local[row, gpu], minlength=gpus.size).reshape(gpus.shape)
    pool = gpus.argmax(axis=2)
    most = np.take_along_axis(gpus, pool[:, :, None], 2)[:, :, 0]
    row, job = np.nonzero(most)
    kind, most = pool[row, job], most[row, job]
    column = np.searchsorted(space.counts, most, side="right") - 1
    option = np.full((number, jobs), _WAIT, dtype=np.int64)
    batch = np.zeros((number, jobs), dtype=np.int64)
    found = np.where(
        column >= 0, space.below[job, kind * len(space.counts) + np.maximum(column, 0)], _WAIT
    )
    option[row, job] = found
    keep = found >= 0
    row, job, found = row[keep], job[keep], found[keep]
    mean = samples[row, job, kind[keep]] / most[keep]
    batch[row, job] = _nearest(space, job, found, mean * space.gpus[found])
    return Candidates(option, batch)


def _nearest(space: Space, job: IntArray, option: IntArray, wished: FloatArray) -> IntArray:
    sizes = np.maximum(space.sizes[job], 1)
    off = np.abs(np.log(sizes) - np.log(np.maximum(wished, 1.0))[:, None])
    found: IntArray = np.where(np.isfinite(space.seconds[job, option]), off, np.inf).argmin(axis=1)
    return found


def crossover(
    space: Space, mothers: Candidates, fathers: Candidates, rng: np.random.Generator
) -> Candidates:
    """Uniform crossover: each GPU of a child is the mother's or the father's."""
    who, local = lay(space, mothers)
    other, there = lay(space, fathers)
    mask = rng.random(who.shape) < 0.5
    return read(space, np.where(mask, who, other), np.where(mask, local, there))


def mutate(space: Space, crowd: Candidates, theta: float, rng: np.random.Generator) -> Candidates:
    """Uniform mutation: each running job loses its GPUs with probability ``theta``, with half of
    that those above its next smaller count only; with half of it it takes another batch."""
    option, batch = crowd.option.copy(), crowd.batch.copy()
    row, job = np.nonzero(option >= 0)
    luck = rng.random(len(row))
    held = option[row, job]
    column = held % len(space.counts)
    less = np.where(column > 0, space.below[job, np.maximum(held - 1, 0)], _WAIT)
    shrink = (luck >= theta) & (luck < 1.5 * theta) & (less >= 0)
    gone = (luck < theta) & ~space.keep[job]
    new = np.where(shrink, less, np.where(gone, _WAIT, held))
    option[row, job] = new
    change = (luck >= 1.5 * theta) & (luck < 2.0 * theta)
    step = np.where(rng.random(len(row)) < 0.5, -1, 1)
    there = np.clip(batch[row, job] + step, 0, space.sizes.shape[1] - 1)
    fits = change & np.isfinite(space.seconds[job, held, there])
    best = space.best[job, np.maximum(new, 0)]
    batch[row, job] = np.where(fits, there, np.where(shrink, best, batch[row, job]))
    return Candidates(option, batch)
