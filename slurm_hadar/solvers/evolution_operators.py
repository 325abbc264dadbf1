"""ONES's operators on GPUs: reorder, uniform crossover, uniform mutation; for all candidates at
once.

Axes as in ``evolution_space.py``. The repair of a child whose gangs were cut is ours.
"""

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.evolution_space import Candidates, Space

_WAIT = -1


def gpus_of_jobs(space: Space, candidates: Candidates) -> tuple[IntArray, IntArray]:
    """Reorder: (P, G) job of each GPU (-1: idle) and its local batch, with contiguous GPUs per job.

    The batch of a job is split evenly, the remainder over its first GPUs.
    """
    number, total = len(candidates.option), int(space.capacity.sum())
    who = np.full((number, total), _WAIT, dtype=np.int64)
    local = np.zeros((number, total), dtype=np.int64)
    row, job = np.nonzero(candidates.option >= 0)
    if not len(row):
        return who, local
    option = candidates.option[row, job]
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
    whole = space.sizes[job, candidates.batch[row, job]]
    local[at] = np.repeat(whole // gpus, gpus) + (step < np.repeat(whole % gpus, gpus))
    return who, local


def jobs_of_gpus(space: Space, who: IntArray, local: IntArray) -> Candidates:
    """Candidates from GPUs; gangs that were cut are repaired.

    A job keeps the pool in which it has most GPUs, and of these the largest count that it may run
    with. Its batch is the allowed one nearest, on logarithms, to the sum over these GPUs.
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


def _nearest(space: Space, job: IntArray, option: IntArray, target: FloatArray) -> IntArray:
    sizes = np.maximum(space.sizes[job], 1)
    off = np.abs(np.log(sizes) - np.log(np.maximum(target, 1.0))[:, None])
    found: IntArray = np.where(np.isfinite(space.seconds[job, option]), off, np.inf).argmin(axis=1)
    return found


def crossover(
    space: Space, mothers: Candidates, fathers: Candidates, rng: np.random.Generator
) -> Candidates:
    """Uniform crossover: each GPU of a child is from the mother or the father."""
    who, local = gpus_of_jobs(space, mothers)
    other, there = gpus_of_jobs(space, fathers)
    mask = rng.random(who.shape) < 0.5
    return jobs_of_gpus(space, np.where(mask, who, other), np.where(mask, local, there))


def mutate(
    space: Space, candidates: Candidates, theta: float, rng: np.random.Generator
) -> Candidates:
    """Uniform mutation of each running job: with probability ``theta`` it loses its GPUs, with half
    of that it shrinks to its next smaller count, and with half of that it takes another batch."""
    option, batch = candidates.option.copy(), candidates.batch.copy()
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
