"""A node or a rack made free for a gang that would run apart, by moving other jobs elsewhere.

GPUs come free bit by bit, here and there, so a gang that needs most of a rack finds enough of them
long before it finds them together. Each job that changes nodes for it restarts once; the gang may
exchange its gradients over the uplinks of several racks for as long as it runs.
"""

from collections.abc import Mapping, Sequence

from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import Allocation, FreeCapacity
from slurm_hadar.policies.network.places import MACHINE, RACK, Ask, Ground

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

    def __init__(self, view: View, ground: Ground, stay: Mapping[int, Allocation]) -> None:
        """``stay``: jobs that the plan leaves where they run; ``ground``: what is free beside all
        that was placed so far. Of these jobs those move that may, once they have run a round."""
        jobs = view.jobs
        self._view, self._ground, self._trials = view, ground, _TRIALS
        settled = jobs.movable & (view.now - jobs.since_s >= view.round_s)
        self._stay = {job: parts for job, parts in stay.items() if settled[job]}
        self._size = {job: sum(n for _, n in parts) for job, parts in self._stay.items()}
        self._on: dict[int, list[int]] = {}
        for job, parts in self._stay.items():
            for slot, _ in parts:
                self._on.setdefault(slot, []).append(job)

    def make(self, ask: Ask, tier: int, most_s: float) -> tuple[Allocation, Moved] | None:
        """A place of that tier for a gang, and the new places of those who leave it; the ground has
        both then. ``most_s``: restarts, in s over all who move, that this may cost."""
        if self._trials <= 0:
            return None
        self._trials -= 1
        near = []
        for slots in self._places(ask, tier):
            lacks = ask.count - sum(max(int(self._ground.room.free[slot]), 0) for slot in slots)
            if lacks > 0:
                near.append((lacks, slots))
        near.sort(key=lambda one: one[0])
        for lacks, slots in near[:_PLACES]:
            leave = self._leave(slots, lacks, most_s)
            found = self._moved(ask, slots, leave) if leave else None
            if found is not None:
                return found
        return None

    def _places(self, ask: Ask, tier: int) -> list[list[int]]:
        """The slots of each node, or of each rack."""
        spans = self._ground.pools.spans
        racks = [
            [slot for pool in pools for slot in range(*spans[pool])]
            for pools in self._ground.open_pools(ask).values()
        ]
        if tier == MACHINE:
            return [[slot] for slots in racks for slot in slots]
        return racks if tier == RACK and ask.most_nodes > 1 else []

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
        self, ask: Ask, slots: Sequence[int], leave: Sequence[int]
    ) -> tuple[Allocation, Moved] | None:
        ground = self._ground
        after = ground.room.copy()
        for job in leave:
            after.give(self._stay[job], ground.needs[job])
        parts = _within(ground, after, ask, slots)
        if parts is None:
            return None
        after.take(parts, ask.need)
        moved: Moved = {}
        for job in leave:
            here = self._stay[job]
            kind = int(ground.pools.gpu_type[here[0][0]])
            own = ground.ask(job, kind, self._size[job])
            tiers = range(MACHINE, ground.tier_of(here) + 1)
            places = (ground.find_in(after, own, tier) for tier in tiers)
            new = next((place for place in places if place is not None), None)
            if new is None:
                return None
            after.take(new, ground.needs[job])
            moved[job] = new
        for job in leave:
            self.keep(job)
        ground.room = after
        return parts, moved

    def keep(self, job: int) -> None:
        """Move this job no more: it has another place in this round already."""
        for slot, _ in self._stay.pop(job, ()):
            self._on[slot].remove(job)


def _within(
    ground: Ground, room: FreeCapacity, ask: Ask, slots: Sequence[int]
) -> Allocation | None:
    """A place for the gang on these slots, a node's or a rack's."""
    pools = tuple(dict.fromkeys(ground.pools.pool_of[slot] for slot in slots))
    if len(slots) == 1:
        parts: Allocation = ((slots[0], ask.count),)
        return parts if room.holds(parts, ask.need) else None
    return ground.find_within(room, ask, pools)
