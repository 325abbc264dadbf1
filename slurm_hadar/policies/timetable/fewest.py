"""One node for a gang that fits on one, though smaller jobs must change theirs for it."""

from collections.abc import Mapping, Sequence

import numpy as np

from slurm_hadar.domain.view import BoolArray
from slurm_hadar.policies.allocation import Allocation, FreeCapacity
from slurm_hadar.policies.timetable.work import Options

_LARGEST_PART = 0.5
"""Of a gang's GPUs: so many, at the most, of other jobs change nodes for it."""
_NODES = 4
"""Nodes that are tried for a gang."""
_TRIALS = 64
"""Nodes that are tried in a round, so that thousands of gangs cost no more time."""


class NodeMaker:
    """Empties nodes for gangs within one round. Jobs that change nodes keep their number of GPUs,
    on one other node of the pool each."""

    def __init__(
        self, options: Options, parts: Mapping[int, Allocation], gives_way: BoolArray
    ) -> None:
        """``parts``: where jobs stay; ``gives_way`` (J,): who of them may be moved."""
        self._options, self._trials = options, _TRIALS
        self._on: dict[int, list[int]] = {}
        for job, where in parts.items():
            if gives_way[job] and len(where) == 1:
                self._on.setdefault(where[0][0], []).append(job)

    def make(
        self, room: FreeCapacity, parts: Mapping[int, Allocation], job: int, option: int
    ) -> tuple[FreeCapacity, dict[int, Allocation]] | None:
        """What is free, and the new places, once the job has that option on one node; None where no
        node can be emptied for it. The node on which the fewest GPUs must be given up."""
        pool, gpus = int(self._options.pool[option]), int(self._options.gpus[option])
        first, end = room.pools.spans[pool]
        missing = gpus - room.free[first:end]
        near = np.flatnonzero((missing > 0) & (missing <= _LARGEST_PART * gpus))
        for at in near[np.argsort(missing[near], kind="stable")][:_NODES].tolist():
            leave = self._leave(first + at, parts, int(missing[at]))
            if not leave or self._trials <= 0:
                continue
            self._trials -= 1
            found = self._moved(room, parts, leave, (job, ((first + at, gpus),)))
            if found is not None:
                self._on[first + at] = [o for o in self._on[first + at] if o not in leave]
                return found
        return None

    def _leave(self, slot: int, parts: Mapping[int, Allocation], lacks: int) -> list[int]:
        """Jobs on a node that hold just about so many GPUs together, few of them; none: empty."""
        others = self._on.get(slot, [])
        sizes = [parts[other][0][1] for other in others]
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
        room: FreeCapacity,
        parts: Mapping[int, Allocation],
        leave: Sequence[int],
        gang: tuple[int, Allocation],
    ) -> tuple[FreeCapacity, dict[int, Allocation]] | None:
        job, here = gang
        needs, after = self._options.needs, room.copy()
        for other in leave:
            after.give(parts[other], needs[other])
        if not after.holds(here, needs[job]):
            return None
        after.take(here, needs[job])
        new: dict[int, Allocation] = {job: here}
        for other in sorted(leave, key=lambda one: -parts[one][0][1]):
            ((slot, count),) = parts[other]
            place = after.one_node(int(room.pools.pool[slot]), count, needs[other])
            if place is None:
                return None
            after.take(place, needs[other])
            new[other] = place
        return after, new
