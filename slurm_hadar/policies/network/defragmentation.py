"""A node or a rack made free for a gang that would run apart, by moving other jobs elsewhere.

GPUs come free bit by bit, here and there, so a gang that needs most of a rack finds enough of them
long before it finds them together. Each job that changes nodes for it restarts once; the gang may
exchange its gradients over the uplinks of several racks for as long as it runs.
"""

from collections.abc import Mapping, Sequence

from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import Allocation, FreeCapacity
from slurm_hadar.policies.network.rack_capacity import MACHINE, RACK, GangRequest, RackCapacity

_PLACES = 4
"""Nodes or racks that are tried for a gang."""
_TRIALS = 64
"""Searches in a round, so that thousands of gangs cost no more time."""

Moved = dict[int, Allocation]
"""Job -> its new place."""


class Defragmenter:
    """Finds near places for gangs within one round, and who moves for them.

    None of those who move is farther apart afterwards.
    """

    def __init__(
        self, view: View, rack_capacity: RackCapacity, stay: Mapping[int, Allocation]
    ) -> None:
        """``stay``: jobs that the plan leaves where they run; ``rack_capacity``: what is free
        beside all placed jobs. Of the former those that are movable move, once they have run for a
        round."""
        jobs = view.jobs
        self._view, self._racks, self._trials = view, rack_capacity, _TRIALS
        settled = jobs.movable & (view.now - jobs.since_s >= view.round_s)
        self._stay = {job: allocation for job, allocation in stay.items() if settled[job]}
        self._size = {job: sum(n for _, n in allocation) for job, allocation in self._stay.items()}
        self._on: dict[int, list[int]] = {}
        for job, allocation in self._stay.items():
            for slot, _ in allocation:
                self._on.setdefault(slot, []).append(job)

    def make(
        self, request: GangRequest, tier: int, most_s: float
    ) -> tuple[Allocation, Moved] | None:
        """An allocation of that tier for a gang, and the new ones of the jobs that leave it; both
        are taken from the capacity. ``most_s``: the most that the restarts may cost together, s."""
        if self._trials <= 0:
            return None
        self._trials -= 1
        near = []
        for slots in self._places(request, tier):
            lacks = request.count - sum(
                max(int(self._racks.free_capacity.free[slot]), 0) for slot in slots
            )
            if lacks > 0:
                near.append((lacks, slots))
        near.sort(key=lambda one: one[0])
        for lacks, slots in near[:_PLACES]:
            leave = self._leave(slots, lacks, most_s)
            found = self._moved(request, slots, leave) if leave else None
            if found is not None:
                return found
        return None

    def _places(self, request: GangRequest, tier: int) -> list[list[int]]:
        """The slots of each node, or of each rack."""
        spans = self._racks.pools.spans
        racks = [
            [slot for pool in pools for slot in range(*spans[pool])]
            for pools in self._racks.open_pools(request).values()
        ]
        if tier == MACHINE:
            return [[slot] for slots in racks for slot in slots]
        return racks if tier == RACK and request.most_nodes > 1 else []

    def _leave(self, slots: Sequence[int], lacks: int, most_s: float) -> list[int]:
        """Jobs there that hold just about so many GPUs together, few of them; none: they hold too
        few, or their restarts cost too much."""
        there = frozenset(slots)
        found = {job for slot in slots for job in self._on.get(slot, ())}
        inside = (job for job in found if all(slot in there for slot, _ in self._stay[job]))
        others = sorted(inside, key=lambda job: (-self._size[job], job))
        leave: list[int] = []
        for job in others:
            if self._size[job] <= lacks:
                leave.append(job)
                lacks -= self._size[job]
        for job in reversed(others):
            if lacks > 0 and job not in leave:
                leave.append(job)
                lacks -= self._size[job]
        cost_s = sum(float(self._view.jobs.restart_s[job]) for job in leave)
        return leave if lacks <= 0 and cost_s <= most_s else []

    def _moved(
        self, request: GangRequest, slots: Sequence[int], leave: Sequence[int]
    ) -> tuple[Allocation, Moved] | None:
        rack_capacity = self._racks
        after = rack_capacity.free_capacity.copy()
        for job in leave:
            after.give(self._stay[job], rack_capacity.needs[job])
        allocation = _within(rack_capacity, after, request, slots)
        if allocation is None:
            return None
        after.take(allocation, request.need)
        moved: Moved = {}
        for job in leave:
            here = self._stay[job]
            kind = int(rack_capacity.pools.gpu_type[here[0][0]])
            own = rack_capacity.request(job, kind, self._size[job])
            tiers = range(MACHINE, rack_capacity.tier_of(here) + 1)
            places = (rack_capacity.find_in(after, own, tier) for tier in tiers)
            new = next((place for place in places if place is not None), None)
            if new is None:
                return None
            after.take(new, rack_capacity.needs[job])
            moved[job] = new
        for job in leave:
            self.keep(job)
        rack_capacity.free_capacity = after
        return allocation, moved

    def keep(self, job: int) -> None:
        """Move this job no more: it has another place in this round already."""
        for slot, _ in self._stay.pop(job, ()):
            self._on[slot].remove(job)


def _within(
    rack_capacity: RackCapacity,
    free_capacity: FreeCapacity,
    request: GangRequest,
    slots: Sequence[int],
) -> Allocation | None:
    """A place for the gang on these slots, a node's or a rack's."""
    pools = tuple(dict.fromkeys(rack_capacity.pools.pool_of[slot] for slot in slots))
    if len(slots) == 1:
        allocation: Allocation = ((slots[0], request.count),)
        return allocation if free_capacity.holds(allocation, request.need) else None
    return rack_capacity.find_within(free_capacity, request, pools)
