"""The ends of waiting jobs in Slurm's own order, each on the GPUs that are released first."""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray

LIMIT_SHARE = 1 / 2.25
"""Fraction of its time limit that a job of unknown length runs: limits are usually 1.5 to 3 times
the true time (recalled, from the prototype of the project's hints)."""

_J = TypeVar("_J")
_LATER_S = 1e12
"""Later than any expected end."""


@dataclass
class ExpectedEnds(Generic[_J]):
    """When each job would have ended in Slurm's own order, as of when it was first seen (s).

    Ordering a queue by these ends is a fair sojourn protocol (Friedman and Henderson, SIGMETRICS
    2003; recalled), with Slurm in the place of processor sharing.
    """

    ends: dict[_J, float] = field(default_factory=dict)

    def known(self, jobs: Iterable[_J]) -> bool:
        """Whether all these jobs have an expected end."""
        return all(job in self.ends for job in jobs)

    def add(self, jobs: Iterable[_J], ends: Iterable[float]) -> None:
        """Add ends of new jobs; the first end of a job stays."""
        for job, end in zip(jobs, ends, strict=True):
            self.ends.setdefault(job, end)

    def ranks(self, jobs: Sequence[_J], planned: Sequence[bool]) -> FloatArray:
        """(W,) lower goes first: the jobs that a policy would start now, then the others, both by
        their expected ends; jobs without one last."""
        ends = np.minimum([self.ends.get(job, inf) for job in jobs], _LATER_S)
        return np.where(planned, ends, ends + 2 * _LATER_S)


@dataclass(frozen=True)
class Served:
    """Seconds from now; inf: never. ``starts`` (W, R): start of each job on each type, behind the
    jobs ahead of it; ``ends`` (W,): on the type that it takes."""

    starts: FloatArray
    ends: FloatArray


def ends(released: Sequence[Sequence[float]], counts: IntArray, times: FloatArray) -> FloatArray:
    """(W,) seconds from now until each of W waiting jobs, in Slurm's order, would end on the GPUs
    that are released first; inf: never. Arguments as for :func:`served`."""
    return served(released, counts, times, np.zeros(len(counts), dtype=np.bool_)).ends


def served(
    released: Sequence[Sequence[float]],
    counts: IntArray,
    times: FloatArray,
    earliest_end: BoolArray,
) -> Served:
    """W waiting jobs in Slurm's order, each on the type where it starts first or, for
    ``earliest_end`` (W,), where it ends first.

    ``released``: for each of R types, when each of its GPUs becomes free, s from now, ascending;
    ``counts`` (W,): GPUs; ``times`` (W, R): run time on that type in s, inf if not allowed. Node
    boundaries and backfill are ignored: rule 1 of the prototype (recalled).
    """
    pools = [list(pool) for pool in released]
    found = Served(np.full(times.shape, inf), np.full(len(counts), inf))
    kinds = range(len(pools))
    if not kinds:
        # No GPU is or will be free.
        return found
    rows = zip(counts.tolist(), times.tolist(), earliest_end.tolist(), strict=True)
    for job, (count, row, by_end) in enumerate(rows):
        starts = [
            pools[kind][count - 1] if row[kind] < inf and count <= len(pools[kind]) else inf
            for kind in kinds
        ]
        found.starts[job] = starts
        rank = [start + time for start, time in zip(starts, row, strict=True)] if by_end else starts
        kind = min(kinds, key=rank.__getitem__)
        if starts[kind] == inf:
            continue
        end = starts[kind] + row[kind]
        found.ends[job] = end
        pool = pools[kind]
        del pool[:count]
        for _ in range(count):
            insort(pool, end)
    return found
