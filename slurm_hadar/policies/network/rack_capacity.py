"""Free GPUs by tier: on one machine, in one rack, anywhere."""

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
class GangRequest:
    """A gang to be placed. ``groups``: index of the set of access groups open to its owner."""

    kind: int
    count: int
    need: Demand
    groups: int
    most_nodes: int
    each: int = 0
    """GPUs on each of its nodes; 0: any split."""


class RackCapacity:
    """The nodes of a view with their free capacity. The part of a pool in one rack is a pool
    here."""

    def __init__(self, view: View) -> None:
        self.view = view
        nodes = view.nodes
        pairs, group = np.unique(
            np.stack([nodes.group, nodes.rack], axis=1), axis=0, return_inverse=True
        )
        split = replace(view, nodes=replace(nodes, group=group.reshape(-1).astype(np.int64)))
        self.pools: ResourcePools = resource_pools(split)
        self.free_capacity = FreeCapacity(split, self.pools)
        self._group = [int(pairs[at, 0]) for at in self.pools.pool_group]
        self._rack = [int(pairs[at, 1]) for at in self.pools.pool_group]
        masks, set_of = np.unique(view.jobs.groups, axis=0, return_inverse=True)
        self._masks, self._set_of = masks, set_of.reshape(-1).tolist()
        self.needs = demands_of(view)
        network = view.jobs.network
        self._each = network.per_node.tolist() if network else [0] * len(view.jobs.ids)
        self._most = view.jobs.max_nodes.tolist()
        self._open_pools: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
        self._empty = self.free_capacity.copy()
        self._ever = self
        if nodes.whole is not None:
            jobs = replace(view.jobs, held=view.jobs.held[:0])
            self._ever = RackCapacity(replace(view, nodes=nodes.whole, jobs=jobs))
        self._best: dict[GangRequest, int] = {}
        self.rack_of: list[int] = nodes.rack.tolist()

    def request(self, job: int, kind: int, count: int) -> GangRequest:
        """The request of a job on a type."""
        most = min(self._most[job], len(self.view.nodes.names))
        each = self._each[job] if count > self._each[job] else 0
        return GangRequest(kind, count, self.needs[job], self._set_of[job], most, each)

    def open_pools(self, request: GangRequest) -> dict[int, tuple[int, ...]]:
        """Rack -> its pools that are open to the request."""
        key = (request.kind, request.groups)
        if key not in self._open_pools:
            found: dict[int, list[int]] = {}
            for pool in self.pools.of_type[request.kind]:
                if self._masks[request.groups, self._group[pool]]:
                    found.setdefault(self._rack[pool], []).append(pool)
            self._open_pools[key] = {rack: tuple(pools) for rack, pools in found.items()}
        return self._open_pools[key]

    def best_tier(self, request: GangRequest) -> int:
        """The nearest tier that could hold the gang on an empty cluster; 3: none."""
        if request not in self._best:
            tiers, ever = (MACHINE, RACK, ANYWHERE), self._ever
            fits = (tier for tier in tiers if ever._find(ever._empty, request, tier) is not None)
            self._best[request] = next(fits, len(tiers))
        return self._best[request]

    def find(self, request: GangRequest, tier: int) -> Allocation | None:
        """A free allocation at that tier or a nearer one."""
        what: Hashable = (request, tier)
        if what in self.free_capacity.hopeless:
            return None
        allocation = self._find(self.free_capacity, request, tier)
        if allocation is None:
            self.free_capacity.hopeless.add(what)
        return allocation

    def could_hold(self, request: GangRequest, rack: int) -> bool:
        """Whether the gang would fit in a rack without the jobs of the view."""
        return self.find_within(self._empty, request, self.open_pools(request)[rack]) is not None

    def find_within(
        self, free_capacity: FreeCapacity, request: GangRequest, pools: tuple[int, ...]
    ) -> Allocation | None:
        """A free allocation on one rack's pools, on several nodes of it."""
        only = {0: pools}
        if request.each:
            return self._evenly(free_capacity, request, only, RACK)
        return self._in_rack(free_capacity, request, only)

    def find_in(
        self, free_capacity: FreeCapacity, request: GangRequest, tier: int
    ) -> Allocation | None:
        """:meth:`find` in another copy of the free capacity."""
        return self._find(free_capacity, request, tier)

    def tier_of(self, allocation: Allocation) -> int:
        """The tier of an allocation."""
        nodes = {self.pools.node_of[slot] for slot, _ in allocation}
        if len(nodes) == 1:
            return MACHINE
        return RACK if len({self.rack_of[node] for node in nodes}) == 1 else ANYWHERE

    def _find(
        self, free_capacity: FreeCapacity, request: GangRequest, tier: int
    ) -> Allocation | None:
        racks = self.open_pools(request)
        if request.each:
            return self._evenly(free_capacity, request, racks, tier)
        if tier == MACHINE:
            return self._machine(free_capacity, request, racks)
        if request.most_nodes < 2:
            return None
        if tier == RACK:
            return self._in_rack(free_capacity, request, racks)
        return self._anywhere(free_capacity, request, racks)

    def _machine(
        self, free_capacity: FreeCapacity, request: GangRequest, racks: dict[int, tuple[int, ...]]
    ) -> Allocation | None:
        """The node with the fewest free GPUs that fits, in the rack with the fewest: large free
        blocks stay whole."""
        best: tuple[int, int, Allocation] | None = None
        for pools in racks.values():
            left = sum(free_capacity.left[pool] for pool in pools)
            for pool in pools:
                allocation = free_capacity.one_node(pool, request.count, request.need)
                if allocation is not None:
                    found = (int(free_capacity.free[allocation[0][0]]), left, allocation)
                    best = found if best is None else min(best, found)
        return best[2] if best else None

    def _in_rack(
        self, free_capacity: FreeCapacity, request: GangRequest, racks: dict[int, tuple[int, ...]]
    ) -> Allocation | None:
        best: tuple[int, int, Allocation] | None = None
        for pools in racks.values():
            left = sum(free_capacity.left[pool] for pool in pools)
            if left < request.count:
                continue
            allocation = free_capacity.several_nodes(
                pools, request.count, request.need, request.most_nodes
            )
            if allocation is not None:
                found = (len(allocation), left, allocation)
                best = found if best is None else min(best, found)
        return best[2] if best else None

    def _anywhere(
        self, free_capacity: FreeCapacity, request: GangRequest, racks: dict[int, tuple[int, ...]]
    ) -> Allocation | None:
        """In few racks, since each rack has one uplink that may slow the exchange."""
        order = sorted(racks.values(), key=lambda pools: -sum(free_capacity.left[p] for p in pools))
        few: list[int] = []
        left = 0
        for pools in order:
            few += pools
            left += sum(free_capacity.left[pool] for pool in pools)
            if left >= request.count:
                break
        if left < request.count:
            return None
        every = tuple(pool for pools in order for pool in pools)
        for some in dict.fromkeys((tuple(few), every)):
            allocation = free_capacity.several_nodes(
                some, request.count, request.need, request.most_nodes
            )
            if allocation is not None:
                return allocation
        return None

    def _evenly(
        self,
        free_capacity: FreeCapacity,
        request: GangRequest,
        racks: dict[int, tuple[int, ...]],
        tier: int,
    ) -> Allocation | None:
        """The nodes with the fewest free GPUs that fit ``each``, in the rack with the fewest of
        them."""
        nodes = request.count // request.each
        if tier == MACHINE or nodes > request.most_nodes or nodes * request.each != request.count:
            return None
        fits = [
            free_capacity.fitting(pools, request.each, request.need) for pools in racks.values()
        ]
        if tier == RACK:
            enough = [slots for slots in fits if len(slots) >= nodes]
            some = min(enough, key=len)[:nodes] if enough else ()
        else:
            fits.sort(key=len, reverse=True)
            some = tuple(slot for slots in fits for slot in slots)[:nodes]
        return tuple((slot, request.each) for slot in some) if len(some) == nodes else None
