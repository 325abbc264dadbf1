"""Free places by tier: on one machine, in one rack, anywhere."""

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import (
    Allocation,
    Demand,
    FreeCapacity,
    ResourcePools,
    demands_of,
    resource_pools,
)

MACHINE, RACK, ANYWHERE = range(3)


@dataclass(frozen=True, slots=True)
class Ask:
    """A gang to be placed. ``groups``: which set of access groups its owner may use."""

    kind: int
    count: int
    need: Demand
    groups: int
    most_nodes: int
    each: int = 0
    """GPUs on each of its nodes; 0: split as it comes."""


class Ground:
    """The nodes of a view with what is free on them; each rack's part of a pool is a pool."""

    def __init__(self, view: View) -> None:
        self.view = view
        nodes = view.nodes
        pairs, group = np.unique(
            np.stack([nodes.group, nodes.rack], axis=1), axis=0, return_inverse=True
        )
        split = replace(view, nodes=replace(nodes, group=group.reshape(-1).astype(np.int64)))
        self.pools: ResourcePools = resource_pools(split)
        self.room = FreeCapacity(split, self.pools)
        self._group = [int(pairs[at, 0]) for at in self.pools.pool_group]
        self._rack = [int(pairs[at, 1]) for at in self.pools.pool_group]
        masks, set_of = np.unique(view.jobs.groups, axis=0, return_inverse=True)
        self._masks, self._set_of = masks, set_of.reshape(-1).tolist()
        self.needs = demands_of(view)
        network = view.jobs.network
        self._each = network.per_node.tolist() if network else [0] * len(view.jobs.ids)
        self._most = view.jobs.max_nodes.tolist()
        self._open_pools: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
        self._empty = self.room.copy()
        self._ever = self
        if nodes.whole is not None:
            jobs = replace(view.jobs, held=view.jobs.held[:0])
            self._ever = Ground(replace(view, nodes=nodes.whole, jobs=jobs))
        self._best: dict[Ask, int] = {}
        self.rack_of: list[int] = nodes.rack.tolist()

    def ask(self, job: int, kind: int, count: int) -> Ask:
        """What a job asks for on a type."""
        most = min(self._most[job], len(self.view.nodes.names))
        each = self._each[job] if count > self._each[job] else 0
        return Ask(kind, count, self.needs[job], self._set_of[job], most, each)

    def open_pools(self, ask: Ask) -> dict[int, tuple[int, ...]]:
        """Rack -> its pools that are open to the asker."""
        key = (ask.kind, ask.groups)
        if key not in self._open_pools:
            found: dict[int, list[int]] = {}
            for pool in self.pools.of_type[ask.kind]:
                if self._masks[ask.groups, self._group[pool]]:
                    found.setdefault(self._rack[pool], []).append(pool)
            self._open_pools[key] = {rack: tuple(pools) for rack, pools in found.items()}
        return self._open_pools[key]

    def best_tier(self, ask: Ask) -> int:
        """The nearest tier that could hold the gang if no other job were there; 3: none."""
        if ask not in self._best:
            tiers, ever = (MACHINE, RACK, ANYWHERE), self._ever
            fits = (tier for tier in tiers if ever._find(ever._empty, ask, tier) is not None)
            self._best[ask] = next(fits, len(tiers))
        return self._best[ask]

    def find(self, ask: Ask, tier: int) -> Allocation | None:
        """A free place of that tier or a nearer one."""
        what: Hashable = (ask, tier)
        if what in self.room.hopeless:
            return None
        parts = self._find(self.room, ask, tier)
        if parts is None:
            self.room.hopeless.add(what)
        return parts

    def could_hold(self, ask: Ask, rack: int) -> bool:
        """Whether the gang fits in a rack once the view's jobs have left it."""
        return self.find_within(self._empty, ask, self.open_pools(ask)[rack]) is not None

    def find_within(
        self, room: FreeCapacity, ask: Ask, pools: tuple[int, ...]
    ) -> Allocation | None:
        """A free place on one rack's pools, on several nodes of it."""
        only = {0: pools}
        if ask.each:
            return self._evenly(room, ask, only, RACK)
        return self._in_rack(room, ask, only)

    def find_in(self, room: FreeCapacity, ask: Ask, tier: int) -> Allocation | None:
        """The same in another copy of the free capacity."""
        return self._find(room, ask, tier)

    def tier_of(self, parts: Allocation) -> int:
        """How far apart a place is."""
        nodes = {self.pools.node_of[slot] for slot, _ in parts}
        if len(nodes) == 1:
            return MACHINE
        return RACK if len({self.rack_of[node] for node in nodes}) == 1 else ANYWHERE

    def _find(self, room: FreeCapacity, ask: Ask, tier: int) -> Allocation | None:
        racks = self.open_pools(ask)
        if ask.each:
            return self._evenly(room, ask, racks, tier)
        if tier == MACHINE:
            return self._machine(room, ask, racks)
        if ask.most_nodes < 2:
            return None
        if tier == RACK:
            return self._in_rack(room, ask, racks)
        return self._anywhere(room, ask, racks)

    def _machine(
        self, room: FreeCapacity, ask: Ask, racks: dict[int, tuple[int, ...]]
    ) -> Allocation | None:
        """The fullest node that takes it, in the fullest rack: whole nodes and racks stay so."""
        best: tuple[int, int, Allocation] | None = None
        for pools in racks.values():
            left = sum(room.left[pool] for pool in pools)
            for pool in pools:
                parts = room.one_node(pool, ask.count, ask.need)
                if parts is not None:
                    found = (int(room.free[parts[0][0]]), left, parts)
                    best = found if best is None else min(best, found)
        return best[2] if best else None

    def _in_rack(
        self, room: FreeCapacity, ask: Ask, racks: dict[int, tuple[int, ...]]
    ) -> Allocation | None:
        best: tuple[int, int, Allocation] | None = None
        for pools in racks.values():
            left = sum(room.left[pool] for pool in pools)
            if left < ask.count:
                continue
            parts = room.several_nodes(pools, ask.count, ask.need, ask.most_nodes)
            if parts is not None:
                found = (len(parts), left, parts)
                best = found if best is None else min(best, found)
        return best[2] if best else None

    def _anywhere(
        self, room: FreeCapacity, ask: Ask, racks: dict[int, tuple[int, ...]]
    ) -> Allocation | None:
        """In few racks: each of them has one uplink to lose."""
        order = sorted(racks.values(), key=lambda pools: -sum(room.left[p] for p in pools))
        few: list[int] = []
        left = 0
        for pools in order:
            few += pools
            left += sum(room.left[pool] for pool in pools)
            if left >= ask.count:
                break
        if left < ask.count:
            return None
        every = tuple(pool for pools in order for pool in pools)
        for some in dict.fromkeys((tuple(few), every)):
            parts = room.several_nodes(some, ask.count, ask.need, ask.most_nodes)
            if parts is not None:
                return parts
        return None

    def _evenly(
        self, room: FreeCapacity, ask: Ask, racks: dict[int, tuple[int, ...]], tier: int
    ) -> Allocation | None:
        """The fullest nodes that take ``each``, in the rack that has the fewest of them."""
        nodes = ask.count // ask.each
        if tier == MACHINE or nodes > ask.most_nodes or nodes * ask.each != ask.count:
            return None
        fits = [room.fitting(pools, ask.each, ask.need) for pools in racks.values()]
        if tier == RACK:
            enough = [slots for slots in fits if len(slots) >= nodes]
            some = min(enough, key=len)[:nodes] if enough else ()
        else:
            fits.sort(key=len, reverse=True)
            some = tuple(slot for slots in fits for slot in slots)[:nodes]
        return tuple((slot, ask.each) for slot in some) if len(some) == nodes else None
