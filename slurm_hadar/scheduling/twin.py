"""When waiting jobs would end in Slurm's own order, each on the GPUs that are released first."""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray

LIMIT_SHARE = 1 / 2.25
"""Share of its time limit that a job of unknown length runs: limits are usually 1.5 to 3 times the
true time (recalled, from the prototype behind the project's hints)."""

_J = TypeVar("_J")
_LATER_S = 1e12
"""More than any promise."""


@dataclass
class ExpectedEnds(Generic[_J]):
    """When each job would have ended in Slurm's own order, as of when it was first seen (s).

    Who orders a queue by such ends serves it as a fair sojourn protocol does (Friedman and
    Henderson, SIGMETRICS 2003; recalled), with Slurm in the place of processor sharing.
    """

    ends: dict[_J, float] = field(default_factory=dict)

    def known(self, jobs: Iterable[_J]) -> bool:
        """Whether all of them have one."""
        return all(job in self.ends for job in jobs)

    def add(self, jobs: Iterable[_J], ends: Iterable[float]) -> None:
        """What was promised holds."""
        for job, end in zip(jobs, ends, strict=True):
            self.ends.setdefault(job, end)

    def wish(self, jobs: Sequence[_J], planned: Sequence[bool]) -> FloatArray:
        """(W,) lesser goes first: the jobs that a policy would start now, then the rest, both by
        their promised ends; without one last."""
        ends = np.minimum([self.ends.get(job, inf) for job in jobs], _LATER_S)
        return np.where(planned, ends, ends + 2 * _LATER_S)


@dataclass(frozen=True)
class Served:
    """Seconds from now; inf: never. ``starts``: (W, R) of each job on each type, behind those ahead
    of it; ``ends``: (W,) on the type that it takes."""

    starts: FloatArray
    ends: FloatArray


def ends(released: Sequence[Sequence[float]], counts: IntArray, times: FloatArray) -> FloatArray:
    """(W,) seconds from now until each of W waiting jobs, in Slurm's order, would end on the GPUs
    that are released first; inf: never. The rest as in :func:`served`."""
    return served(released, counts, times, np.zeros(len(counts), dtype=np.bool_)).ends


def served(
    released: Sequence[Sequence[float]], counts: IntArray, times: FloatArray, choosy: BoolArray
) -> Served:
    """W waiting jobs in Slurm's order, each on the type where it starts first or, those that are
    ``choosy`` (W,), where it ends first.

    ``released``: for each of R types when each of its GPUs is free, s from now, rising; ``counts``:
    (W,) GPUs; ``times``: (W, R) seconds that the job runs on that type, inf where it may not.
    Borders of nodes and backfill are left out: rule 1 of the prototype (recalled).
    """
    pools = [list(pool) for pool in released]
    found = Served(np.full(times.shape, inf), np.full(len(counts), inf))
    kinds = range(len(pools))
    if not kinds:
        # No GPU is free or will be: no job starts.
        return found
    rows = zip(counts.tolist(), times.tolist(), choosy.tolist(), strict=True)
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
