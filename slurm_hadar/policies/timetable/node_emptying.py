"""Frees one node for a gang that fits on a node, by moving smaller jobs to other nodes."""

from collections.abc import Mapping, Sequence

import numpy as np

from slurm_hadar.domain.view import BoolArray
from slurm_hadar.policies.allocation import Allocation, FreeCapacity
from slurm_hadar.policies.timetable.work import Options

_LARGEST_PART = 0.5
"""Other jobs that change nodes hold at most this fraction of the gang's GPUs."""
_NODES = 4
"""Most nodes that are tried for a gang."""
_TRIALS = 64
"""Most nodes that a round tries, to bound its time."""


class NodeEmptier:
    """Empties nodes for gangs within one round. Jobs that change nodes keep their number of GPUs,
    each on one other node of the pool."""

    def __init__(
        self, options: Options, allocations: Mapping[int, Allocation], gives_way: BoolArray
    ) -> None:
        """``allocations``: of the jobs that stay; ``gives_way`` (J,): which of them may be
        moved."""
        self._options, self._trials = options, _TRIALS
        self._on: dict[int, list[int]] = {}
        for job, where in allocations.items():
            if gives_way[job] and len(where) == 1:
                self._on.setdefault(where[0][0], []).append(job)

    def empty_node_for(
        self,
        free_capacity: FreeCapacity,
        allocations: Mapping[int, Allocation],
        job: int,
        option: int,
    ) -> tuple[FreeCapacity, dict[int, Allocation]] | None:
        """The free capacity and the changed allocations after the job gets this option on one node,
        that on which the fewest GPUs must be given up; None if no node can be emptied for it."""
        pool, gpus = int(self._options.pool[option]), int(self._options.gpus[option])
        first, end = free_capacity.pools.spans[pool]
        missing = gpus - free_capacity.free[first:end]
        near = np.flatnonzero((missing > 0) & (missing <= _LARGEST_PART * gpus))
        for at in near[np.argsort(missing[near], kind="stable")][:_NODES].tolist():
            leave = self._leave(first + at, allocations, int(missing[at]))
            if not leave or self._trials <= 0:
                continue
            self._trials -= 1
            found = self._moved(free_capacity, allocations, leave, (job, ((first + at, gpus),)))
            if found is not None:
                self._on[first + at] = [o for o in self._on[first + at] if o not in leave]
                return found
        return None

    def _leave(self, slot: int, allocations: Mapping[int, Allocation], lacks: int) -> list[int]:
        """Few jobs of a node that together hold at least ``lacks`` GPUs, and little more; empty if
        there are none."""
        others = self._on.get(slot, [])
        sizes = [allocations[other][0][1] for other in others]
        order = sorted(range(len(others)), key=lambda at: -sizes[at])
        leave: list[int] = []
        for at in order:
            if 0 < sizes[at] <= lacks:
                leave.append(others[at])
                lacks -= sizes[at]
        for at in reversed(order):
            if lacks > 0 and others[at] not in leave:
                leave.append(others[at])
                lacks -= sizes[at]
        return leave if lacks <= 0 else []

    def _moved(
        self,
        free_capacity: FreeCapacity,
        allocations: Mapping[int, Allocation],
        leave: Sequence[int],
        gang: tuple[int, Allocation],
    ) -> tuple[FreeCapacity, dict[int, Allocation]] | None:
        job, here = gang
        needs, after = self._options.needs, free_capacity.copy()
        for other in leave:
            after.give(allocations[other], needs[other])
        if not after.holds(here, needs[job]):
            return None
        after.take(here, needs[job])
        new: dict[int, Allocation] = {job: here}
        for other in sorted(leave, key=lambda one: -allocations[one][0][1]):
            ((slot, count),) = allocations[other]
            place = after.one_node(int(free_capacity.pools.pool[slot]), count, needs[other])
            if place is None:
                return None
            after.take(place, needs[other])
            new[other] = place
        return after, new
