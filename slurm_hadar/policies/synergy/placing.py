"""Synergy's TUNE: one job after another gets its place, CPUs and memory [V: from its code].

A job is tried with its best case, then with its fair share. Where that does not fit although GPUs
are free, jobs there that have more than their fair share go back to it: those on the fewest nodes
first, then those with the most CPUs, then the most memory per GPU.

Ours: a running job stays on its GPUs unless moving pays for the restart, and its GPUs are kept for
it until it is its turn.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.allocation import Allocation, Demand, FreeCapacity, ResourcePools
from slurm_hadar.policies.synergy.demands import SAME

_NOTHING = Demand()
_NODES_TRIED = 16
_LITTLE = 0.02
"""A running job goes elsewhere for the good of others where its restart, with the margin that is
asked for, takes no more than this part of its time left."""


@dataclass(slots=True)
class ResourceWish:
    """What one job would have; points are (CPUs, MB) per GPU, with the factor they give."""

    job: int
    gpus: int
    pools: tuple[int, ...]
    most_nodes: int
    best: Demand
    best_factor: float
    fair: Demand
    floor: float
    present: Demand
    present_factor: float
    own: Allocation = ()
    """Where it runs, to stay if that is as good."""
    only_own: bool = False
    """It may be nowhere else."""
    seconds: float = 0.0
    """Time left at factor 1, s."""
    restart_s: float = 0.0
    """Least time that a change of a running job must save, s; 0: not running."""
    hint: Allocation = ()
    """Where to try the best case first."""

    def can_afford(self) -> bool:
        """Whether a restart is little beside what is left of the job."""
        return self.restart_s <= _LITTLE * self.seconds / max(self.best_factor, SAME)

    def pays(self, factor: float) -> bool:
        """Whether a running job gains enough to be restarted with this factor."""
        now = self.present_factor
        if not self.own or now <= 0:
            return True
        saved = self.seconds / max(now, SAME) - self.seconds / max(factor, SAME)
        return factor > now + SAME and saved > self.restart_s


@dataclass(slots=True)
class Given:
    """What a job has in this plan."""

    wish: ResourceWish
    parts: Allocation
    need: Demand
    factor: float
    fixed: bool = False
    """It keeps this in any case."""


class Placing:
    """The nodes while a plan is being made."""

    def __init__(self, view: View, pools: ResourcePools, needs: FloatArray) -> None:
        """``needs`` (J, 2): anything above 0 where CPUs or memory count at all."""
        # A room without any need does not count CPUs and memory.
        seen = _with_needs(view, needs)
        self.room = FreeCapacity(seen, pools)
        self.pools = pools
        self.given: dict[int, Given] = {}
        self._on: dict[int, set[int]] = {}

    def keep(self, wish: ResourceWish, parts: Allocation, need: Demand, factor: float) -> None:
        """Set aside what a job holds and keeps."""
        self._take(Given(wish, parts, need, factor, fixed=True))

    def reserve(self, wish: ResourceWish) -> None:
        """Keep the GPUs of a running job for it until its turn."""
        self.room.take(wish.own, _NOTHING)

    def release(self, wish: ResourceWish) -> None:
        """The GPUs of a running job, which was not placed, are free for others."""
        self.room.give(wish.own, _NOTHING)

    def place(self, wish: ResourceWish) -> bool:
        """Give a job its place; False where there is none."""
        if wish.own:
            self.release(wish)
            return self._stay(wish) or (not wish.only_own and self._come(wish))
        return self._come(wish)

    def change(self, given: Given, need: Demand, factor: float) -> None:
        """Other CPUs and memory on the same GPUs."""
        self.room.give(given.parts, given.need)
        given.need, given.factor = need, factor
        self.room.take(given.parts, need)

    def lift(self, given: Given) -> None:
        """Take a job out of its place, to be put elsewhere."""
        if given.wish.job not in self.given:
            return
        self.room.give(given.parts, given.need)
        del self.given[given.wish.job]
        for node in self.nodes(given.parts):
            self._on[node].discard(given.wish.job)

    def put(self, given: Given, parts: Allocation, need: Demand, factor: float) -> None:
        """Put a job that was lifted in a place that is known to be free."""
        given.parts, given.need, given.factor = parts, need, factor
        self._take(given)

    def nodes(self, parts: Allocation) -> set[int]:
        """The nodes of a place."""
        return {self.pools.node_of[slot] for slot, _ in parts}

    def on(self, node: int) -> list[Given]:
        """Who is on a node, in the order of coming."""
        return [self.given[job] for job in sorted(self._on.get(node, ()))]

    def _stay(self, wish: ResourceWish) -> bool:
        same = wish.best == wish.present
        if (same or wish.pays(wish.best_factor)) and self._own(wish, wish.best, wish.best_factor):
            return True
        has = wish.present_factor
        if has >= wish.floor - SAME and not same:
            if wish.pays(wish.best_factor) and not wish.only_own and self._best(wish):
                return True
            if self._own(wish, wish.present, has):
                return True
        if self._own(wish, wish.fair, wish.floor):
            return True
        return self._demote(wish, wish.own) and self._own(wish, wish.fair, wish.floor)

    def _come(self, wish: ResourceWish) -> bool:
        if self._best(wish):
            return True
        if wish.fair != wish.best and self._anywhere(wish, wish.fair, wish.floor):
            return True
        return any(
            self._demote(wish, parts) and self._at(wish, parts, wish.fair, wish.floor)
            for parts in self._with_gpus(wish)
        )

    def _best(self, wish: ResourceWish) -> bool:
        if wish.hint and self._at(wish, wish.hint, wish.best, wish.best_factor):
            return True
        return self._anywhere(wish, wish.best, wish.best_factor)

    def _own(self, wish: ResourceWish, need: Demand, factor: float) -> bool:
        return self._at(wish, wish.own, need, factor)

    def _at(self, wish: ResourceWish, parts: Allocation, need: Demand, factor: float) -> bool:
        if not self.room.holds(parts, need):
            return False
        self._take(Given(wish, parts, need, factor))
        return True

    def _anywhere(self, wish: ResourceWish, need: Demand, factor: float) -> bool:
        found: Allocation | None = None
        least = 1 << 30
        for pool in wish.pools:
            parts = self.room.one_node(pool, wish.gpus, need)
            if parts is not None and (free := int(self.room.free[parts[0][0]])) < least:
                found, least = parts, free
        if found is None and wish.most_nodes > 1 and wish.gpus > 1 and wish.pools:
            found = self.room.several_nodes(wish.pools, wish.gpus, need, wish.most_nodes)
        if found is None:
            return False
        self._take(Given(wish, found, need, factor))
        return True

    def _with_gpus(self, wish: ResourceWish) -> Iterable[Allocation]:
        """Places whose GPUs are free, whatever else is short: single nodes, the fullest first, then
        the fewest nodes together."""
        if not wish.pools:
            return
        slots = np.concatenate([np.arange(*self.pools.spans[p]) for p in wish.pools])
        free = self.room.free[slots]
        enough = slots[free >= wish.gpus]
        fullest = np.argsort(self.room.free[enough], kind="stable")[:_NODES_TRIED]
        for slot in enough[fullest].tolist():
            yield ((slot, wish.gpus),)
        if wish.most_nodes > 1 and wish.gpus > 1:
            parts = self.room.several_nodes(wish.pools, wish.gpus, _NOTHING, wish.most_nodes)
            if parts is not None and len(parts) > 1:
                yield parts

    def _demote(self, wish: ResourceWish, parts: Allocation) -> bool:
        """Bring jobs back to their fair share until ``wish.fair`` fits there; else nothing."""
        if any(self.room.free[slot] < count for slot, count in parts):
            return False
        back: dict[int, Given] = {}
        per_node: dict[int, int] = {}
        for slot, count in parts:
            node = self.pools.node_of[slot]
            per_node[node] = per_node.get(node, 0) + count
        for node, count in per_node.items():
            free = self.room.cpus_and_memory(self.pools.same_node[self._slot(parts, node)][0])
            short = [
                max(0.0, count * need - have)
                for need, have in zip((wish.fair.cpus, wish.fair.mem_mb), free, strict=True)
            ]
            for given in self._above(node):
                if not any(amount > 1e-3 for amount in short):
                    break
                excess = self._excess(given, node)
                if any(e > 1e-3 and s > 1e-3 for e, s in zip(excess, short, strict=True)):
                    back[given.wish.job] = given
                    short = [max(0.0, s - e) for s, e in zip(short, excess, strict=True)]
            if any(amount > 1e-3 for amount in short):
                return False
        for given in back.values():
            self.change(given, given.wish.fair, given.wish.floor)
        return True

    def _slot(self, parts: Allocation, node: int) -> int:
        return next(slot for slot, _ in parts if self.pools.node_of[slot] == node)

    def _above(self, node: int) -> list[Given]:
        """Jobs on a node that have more than their fair share and may be changed."""
        found = [
            given
            for given in self.on(node)
            if not given.fixed
            and (
                given.need.cpus > given.wish.fair.cpus + SAME
                or given.need.mem_mb > given.wish.fair.mem_mb + SAME
            )
        ]
        return sorted(found, key=lambda g: (len(g.parts), -g.need.cpus, -g.need.mem_mb))

    def _excess(self, given: Given, node: int) -> tuple[float, float]:
        count = sum(n for slot, n in given.parts if self.pools.node_of[slot] == node)
        fair = given.wish.fair
        return (
            count * (given.need.cpus - fair.cpus),
            count * (given.need.mem_mb - fair.mem_mb),
        )

    def _take(self, given: Given) -> None:
        self.room.take(given.parts, given.need)
        self.given[given.wish.job] = given
        for node in self.nodes(given.parts):
            self._on.setdefault(node, set()).add(given.wish.job)


def _with_needs(view: View, needs: FloatArray) -> View:
    jobs = replace(view.jobs, cpus_per_gpu=needs[:, 0], mem_per_gpu_mb=needs[:, 1])
    return replace(view, jobs=jobs)
