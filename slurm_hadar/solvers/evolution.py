"""Evolutionary search for the job of each GPU and its samples per step.

The representation and the four operators of ONES (arXiv 2108.03645, recalled): a candidate assigns
to each GPU (job, local batch); fill, uniform crossover, uniform mutation, reorder. Selection is by
rank, and the best candidate survives. Independent of the clock. Axes as in ``evolution_space.py``.
The repair of a child whose gangs were cut is ours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.solvers.evolution_space import Candidates, Keys, Score, Space, used

_KEPT = 4
"""Candidates that are yielded after each generation."""
_SHORT_LIST = 64
"""Waiting jobs that a candidate considers in one pass."""
_PASSES = 3
_WILLING = 0.7
"""Fraction of the candidates in which running jobs grow onto idle GPUs."""
_WAIT = -1


@dataclass(frozen=True)
class Best:
    """The best candidate so far: (J,) option or -1, (J,) index of the batch."""

    option: IntArray
    batch: IntArray
    score: float
    generation: int
    others: tuple[tuple[IntArray, IntArray], ...] = ()
    """The next best, best first."""


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """What is searched: the best candidate of a ``space`` by its ``score``. ``keys``: which jobs
    come first where GPUs are given out."""

    space: Space
    score: Score
    keys: Keys


@dataclass(frozen=True, slots=True)
class Effort:
    """The effort of a search."""

    population: int = 48
    theta: float = 0.15
    """Probability that a mutation preempts a job."""


def evolve(
    problem: SearchProblem,
    seeds: Sequence[tuple[IntArray, IntArray]],
    effort: Effort,
    rng: np.random.Generator,
) -> Iterator[Best]:
    """Generations without end, each with the best candidate so far; the caller may stop at any
    time.

    ``seeds``: valid candidates (options, batches) to begin with; the first one wins ties. Every
    candidate is valid: no pool above its capacity, whole gangs, allowed options. Lower scores are
    better.
    """
    number = max(effort.population, _KEPT)
    first = Candidates(np.stack([s[0] for s in seeds]), np.stack([s[1] for s in seeds]))
    rows = np.arange(max(number, len(seeds))) % len(seeds)
    candidates = first.take(rows)
    fresh = np.arange(len(rows)) >= len(seeds)
    if fresh.any():
        more = fill(problem.space, candidates.take(np.flatnonzero(fresh)), problem.keys, rng)
        candidates = first.join(more)
    points = problem.score(candidates.option, candidates.batch)
    generation = 0
    while True:
        order = _fittest(points, number)
        candidates, points = candidates.take(order), points[order]
        pairs = [(candidates.option[at].copy(), candidates.batch[at].copy()) for at in range(_KEPT)]
        yield Best(*pairs[0], float(points[0]), generation, tuple(pairs[1:]))
        generation += 1
        children = _offspring(problem, candidates, effort, rng)
        candidates = candidates.join(children)
        points = np.concatenate([points, problem.score(children.option, children.batch)])


def _fittest(points: FloatArray, number: int) -> IntArray:
    """The best rows; duplicates only if there are too few others; the first of equals."""
    order = np.argsort(points, kind="stable")
    twin = np.zeros(len(order), dtype=bool)
    twin[1:] = points[order][1:] == points[order][:-1]
    kept: IntArray = np.concatenate([order[~twin], order[twin]])[:number]
    return kept[np.argsort(points[kept], kind="stable")]


def _offspring(
    problem: SearchProblem, parents: Candidates, effort: Effort, rng: np.random.Generator
) -> Candidates:
    space = problem.space
    number = len(parents.option)
    mothers, fathers = rng.permutation(number), rng.permutation(number)
    crossed = crossover(space, parents.take(mothers), parents.take(fathers), rng)
    # The better half mutates twice as often: by rank, as selection is by rank alone.
    chosen = np.sort(rng.integers(0, number, (2, number)).min(axis=0))
    mutants = mutate(space, parents.take(chosen), effort.theta, rng)
    return fill(space, crossed.join(mutants), problem.keys, rng)


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
