"""Evolutionary search for the job of each GPU and its samples per step.

The representation and the four operators of ONES (arXiv 2108.03645, recalled): a candidate assigns
to each GPU (job, local batch); fill, uniform crossover, uniform mutation, reorder. Selection is by
rank, and the best candidate survives. Independent of the clock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.evolution_fill import fill
from slurm_hadar.solvers.evolution_operators import crossover, mutate
from slurm_hadar.solvers.evolution_space import Candidates, Keys, Score, Space

_KEPT = 4
"""Candidates that are yielded after each generation."""


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
