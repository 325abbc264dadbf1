"""Which nodes a gang gets: free GPUs, CPUs and memory while a plan is being made.

A *pool* is the nodes of one access group that have GPUs of one type; a *slot* is one such node in
one pool. A node with two types has a slot in each.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import IntArray, View

_FINE = 1_000_000
"""CPUs and MB are counted in whole millionths: giving back what was taken leaves no rounding."""
_SLACK = 1_000
_FAR = 1 << 20

Allocation = tuple[tuple[int, int], ...]
"""A gang's place: (slot, GPUs) per node."""


@dataclass(frozen=True)
class ResourcePools:
    """The cluster's shape, the same for a whole decision."""

    node: IntArray
    """(S,) node of each slot."""
    gpu_type: IntArray
    """(S,) type of each slot."""
    pool: IntArray
    """(S,) pool of each slot; the slots of a pool stand together."""
    spans: tuple[tuple[int, int], ...]
    """Per pool: first slot, and the one behind its last."""
    pool_type: tuple[int, ...]
    pool_group: tuple[int, ...]
    capacity: tuple[int, ...]
    """GPUs per pool."""
    of_type: tuple[tuple[int, ...], ...]
    """Pools per type."""
    slot_of: dict[tuple[int, int], int]
    """(node, type) -> slot."""
    node_of: tuple[int, ...]
    """``node`` as plain numbers."""
    same_node: tuple[tuple[int, ...], ...]
    """(S,) all slots of the slot's node, itself included."""
    pool_of: tuple[int, ...]
    """``pool`` as plain numbers."""


def resource_pools(view: View) -> ResourcePools:
    """The pools of a view. Nodes without usable GPUs of a type have no slot for it, unless a job
    holds GPUs there."""
    gpus, group = view.nodes.gpus, view.nodes.group
    held = view.jobs.held
    present = gpus > 0
    if len(held):
        present = present.copy()
        present[held[:, 1], held[:, 2]] = True
    node, kind = np.nonzero(present)
    order = np.lexsort((node, group[node], kind))
    node, kind = node[order].astype(np.int64), kind[order].astype(np.int64)
    key = np.stack([kind, group[node]], axis=1) if len(node) else np.zeros((0, 2), np.int64)
    new = np.ones(len(node), bool)
    new[1:] = (key[1:] != key[:-1]).any(axis=1)
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(node))[: len(starts)]
    pool = np.cumsum(new) - 1
    types = tuple(int(kind[s]) for s in starts)
    together: dict[int, list[int]] = {}
    for slot, number in enumerate(node.tolist()):
        together.setdefault(number, []).append(slot)
    return ResourcePools(
        node=node,
        gpu_type=kind,
        pool=pool.astype(np.int64),
        spans=tuple((int(a), int(b)) for a, b in zip(starts, ends, strict=True)),
        pool_type=types,
        pool_group=tuple(int(group[node[s]]) for s in starts),
        capacity=tuple(
            int(gpus[node[a:b], kind[a:b]].sum()) for a, b in zip(starts, ends, strict=True)
        ),
        of_type=tuple(
            tuple(p for p, t in enumerate(types) if t == r) for r in range(len(view.types))
        ),
        slot_of={
            place: s for s, place in enumerate(zip(node.tolist(), kind.tolist(), strict=True))
        },
        node_of=tuple(node.tolist()),
        same_node=tuple(tuple(together[number]) for number in node.tolist()),
        pool_of=tuple(pool.tolist()),
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """What each GPU of a job brings along: CPUs, and memory in MB."""

    cpus: float = 0.0
    mem_mb: float = 0.0

    def fine(self) -> tuple[int, int]:
        """CPUs and memory in the millionths that a :class:`FreeCapacity` counts in."""
        return round(self.cpus * _FINE), round(self.mem_mb * _FINE)


def demands_of(view: View) -> list[Demand]:
    """What each GPU of each job brings along; one object for equal needs."""
    known: dict[tuple[float, float], Demand] = {}
    jobs = view.jobs
    pairs = zip(jobs.cpus_per_gpu.tolist(), jobs.mem_per_gpu_mb.tolist(), strict=True)
    return [known.setdefault(pair, Demand(*pair)) for pair in pairs]


def held_allocations(view: View, pools: ResourcePools) -> dict[int, Allocation]:
    """Where the running jobs are: row of the job -> its place, in the order of ``held``."""
    held: dict[int, Allocation] = {}
    for job, node, kind, count in view.jobs.held.tolist():
        if count > 0:
            held[job] = (*held.get(job, ()), (pools.slot_of[node, kind], count))
    return held


def placement_of(
    view: View, pools: ResourcePools, allocation: Allocation, reason: str
) -> Placement:
    """The placement of a gang that has this place, with its nodes."""
    gpus: dict[str, int] = {}
    nodes: dict[str, dict[str, int]] = {}
    for slot, count in allocation:
        kind = view.types[int(pools.gpu_type[slot])]
        on_node = nodes.setdefault(view.nodes.names[int(pools.node[slot])], {})
        gpus[kind] = gpus.get(kind, 0) + count
        on_node[kind] = on_node.get(kind, 0) + count
    return Placement(gpus=gpus, nodes=nodes, reason=reason)


def gpus_text(placement: Placement) -> str:
    """The GPUs of a placement: ``1 x k80 + 2 x v100``."""
    return " + ".join(f"{count} x {kind}" for kind, count in placement.gpus.items())


def nodes_text(placement: Placement) -> str:
    """The node of a placement, or how many it has."""
    nodes = placement.nodes
    return next(iter(nodes)) if len(nodes) == 1 else f"{len(nodes)} nodes"


def gang_tier(placement: Placement) -> str:
    """The tier of a gang where racks do not count."""
    return "node" if len(placement.nodes) == 1 else "network"


class FreeCapacity:
    """What is still free. ``soft`` GPUs are free only if their running holder goes elsewhere, so
    they are taken last. Below 0 where more is held than the view offers: nodes shrink, and the
    CPUs of a running job are known only roughly."""

    __slots__ = (
        "_cpus", "_key", "_mem", "_plain", "_softened", "free", "hopeless", "left", "pools", "soft"
    )  # fmt: skip

    def __init__(self, view: View, pools: ResourcePools) -> None:
        self.pools = pools
        self.free: IntArray = view.nodes.gpus[pools.node, pools.gpu_type].copy()
        self.soft: IntArray = np.zeros_like(self.free)
        # By slot, so that a pool is a slice; the slots of a node change together.
        self._cpus: IntArray = view.nodes.cpus[pools.node].astype(np.int64) * _FINE
        self._mem: IntArray = view.nodes.mem_mb[pools.node].astype(np.int64) * _FINE
        self._plain = not (view.jobs.cpus_per_gpu.any() or view.jobs.mem_per_gpu_mb.any())
        self.left = [int(np.maximum(self.free[a:b], 0).sum()) for a, b in pools.spans]
        """Free GPUs per pool."""
        self._key = 0
        self._softened = False
        self.hopeless: set[Hashable] = set()
        """What is known to find no place here; emptied as soon as something is given back."""

    def copy(self) -> "FreeCapacity":
        """An independent copy with the same contents."""
        other = FreeCapacity.__new__(FreeCapacity)
        other.pools, other._plain, other._key = self.pools, self._plain, self._key
        other.free, other._softened = self.free.copy(), self._softened
        other.soft = self.soft.copy() if self._softened else self.soft
        # Without needs nobody changes them.
        other._cpus = self._cpus if self._plain else self._cpus.copy()
        other._mem = self._mem if self._plain else self._mem.copy()
        other.left = self.left.copy()
        other.hopeless = self.hopeless.copy()
        return other

    def key(self) -> int:
        """Equal for copies that came from one original and have the same future: a Zobrist hash."""
        return self._key

    def take(self, allocation: Allocation, need: Demand, soft: bool = False) -> None:
        """Set GPUs, CPUs and memory aside. ``soft``: only mark the GPUs as taken for now."""
        for slot, count in allocation:
            if soft:
                self._soften(slot, count)
            else:
                self._change(slot, count, need)

    def give(self, allocation: Allocation, need: Demand, soft: bool = False) -> None:
        """The opposite of :meth:`take`."""
        for slot, count in allocation:
            if soft:
                self._soften(slot, -count)
            else:
                self._change(slot, -count, need)
        if not soft:
            self.hopeless = set()

    def _soften(self, slot: int, count: int) -> None:
        self._softened = True
        before = int(self.soft[slot])
        self.soft[slot] = before + count
        self._key ^= hash((0, slot, before)) ^ hash((0, slot, before + count))

    def _change(self, slot: int, count: int, need: Demand) -> None:
        pools, before = self.pools, int(self.free[slot])
        after = before - count
        self.free[slot] = after
        self.left[pools.pool_of[slot]] += max(after, 0) - max(before, 0)
        self._key ^= hash((1, slot, before)) ^ hash((1, slot, after))
        if self._plain:
            return
        each_cpus, each_mem = need.fine()
        cpus, mem = int(self._cpus[slot]), int(self._mem[slot])
        cpus_after, mem_after = cpus - count * each_cpus, mem - count * each_mem
        for other in pools.same_node[slot]:
            self._cpus[other], self._mem[other] = cpus_after, mem_after
        node = pools.node_of[slot]
        self._key ^= hash((2, node, cpus, mem)) ^ hash((2, node, cpus_after, mem_after))

    def holds(self, allocation: Allocation, need: Demand) -> bool:
        """Whether exactly this place is free."""
        per_node: dict[int, int] = {}
        for slot, count in allocation:
            if self.free[slot] < count:
                return False
            first = self.pools.same_node[slot][0]
            per_node[first] = per_node.get(first, 0) + count
        cpus, mem = need.fine()
        return self._plain or all(
            self._cpus[slot] + _SLACK >= count * cpus and self._mem[slot] + _SLACK >= count * mem
            for slot, count in per_node.items()
        )

    def cpus_and_memory(self, slot: int) -> tuple[float, float]:
        """CPUs and memory in MB that are free on the slot's node."""
        return int(self._cpus[slot]) / _FINE, int(self._mem[slot]) / _FINE

    def overfull(self, allocation: Allocation) -> bool:
        """Whether more is held on one of these nodes than the view offers."""
        return any(
            self.free[slot] < 0 or self._cpus[slot] < -_SLACK or self._mem[slot] < -_SLACK
            for slot, _ in allocation
        )

    def one_node(self, pool: int, gpus: int, need: Demand) -> Allocation | None:
        """The fullest node of the pool that still takes the whole gang."""
        if self.left[pool] < gpus:
            return None
        what = (pool, gpus, need)
        if what in self.hopeless:
            return None
        first, end = self.pools.spans[pool]
        free = self.free[first:end]
        fits = free >= gpus
        if not self._plain:
            cpus, mem = need.fine()
            fits &= self._cpus[first:end] >= gpus * cpus - _SLACK
            fits &= self._mem[first:end] >= gpus * mem - _SLACK
        if self._softened:
            # Idle GPUs come first; among nodes that need somebody to leave, the fullest as well.
            hard = free - self.soft[first:end]
            rank = np.where(hard >= gpus, hard, free + _FAR)
        else:
            rank = free
        rank = np.where(fits, rank, 2 * _FAR)
        at = int(rank.argmin())
        if not fits[at]:
            self.hopeless.add(what)
            return None
        return ((first + at, gpus),)

    def several_nodes(
        self, pools: tuple[int, ...], gpus: int, need: Demand, most_nodes: int
    ) -> Allocation | None:
        """The fewest nodes of these pools that together take the gang; one type a node."""
        if sum(self.left[p] for p in pools) < gpus:
            return None
        what = (pools, gpus, need, most_nodes)
        if what in self.hopeless:
            return None
        slots = np.concatenate([np.arange(*self.pools.spans[p]) for p in pools])
        usable = self._usable(slots, need)
        keep = usable > 0
        slots, usable = slots[keep], usable[keep]
        hard = np.minimum(usable, self.free[slots] - self.soft[slots])
        # Idle GPUs first; where that takes too many nodes, the emptiest nodes.
        allocation = self._gather(
            slots, usable, np.lexsort((slots, -usable, -hard)), gpus, most_nodes
        )
        if allocation is None:
            allocation = self._gather(slots, usable, np.lexsort((slots, -usable)), gpus, most_nodes)
        if allocation is None:
            self.hopeless.add(what)
        return allocation

    def fitting(self, pools: tuple[int, ...], gpus: int, need: Demand) -> tuple[int, ...]:
        """Slots of these pools that take so many GPUs, the fullest first. Pools of one type: each
        slot is on a node of its own."""
        if not pools:
            return ()
        slots = np.concatenate([np.arange(*self.pools.spans[p]) for p in pools])
        slots = slots[self._usable(slots, need) >= gpus]
        return tuple(slots[np.lexsort((slots, self.free[slots]))].tolist())

    def _gather(
        self, slots: IntArray, usable: IntArray, order: IntArray, gpus: int, most_nodes: int
    ) -> Allocation | None:
        allocation: list[tuple[int, int]] = []
        taken: set[int] = set()
        for at in order.tolist():
            slot = int(slots[at])
            node = self.pools.node_of[slot]
            if node in taken:
                continue
            if len(allocation) >= most_nodes:
                return None
            count = min(gpus, int(usable[at]))
            allocation.append((slot, count))
            taken.add(node)
            gpus -= count
            if not gpus:
                return tuple(allocation)
        return None

    def _usable(self, slots: IntArray, need: Demand) -> IntArray:
        usable: IntArray = self.free[slots]
        if not self._plain:
            cpus, mem = need.fine()
            if cpus > 0:
                usable = np.minimum(usable, (self._cpus[slots] + _SLACK) // cpus)
            if mem > 0:
                usable = np.minimum(usable, (self._mem[slots] + _SLACK) // mem)
        return np.maximum(usable, 0)

    def shortage(self, pools: Iterable[int], gpus: int, need: Demand, most_nodes: int) -> str:
        """As text: which resource keeps a gang of this size out of these pools."""
        allowed = list(pools)
        if not allowed:
            return "no node with a GPU type that suits it is open to its owner"
        free = sum(self.left[p] for p in allowed)
        if free < gpus:
            return f"GPUs: it needs {gpus}, {free} are free on nodes open to it"
        slots = np.concatenate([np.arange(*self.pools.spans[p]) for p in allowed])
        by_gpu = int(self.free[slots].max(initial=0))
        if by_gpu < gpus and most_nodes <= 1:
            return f"GPUs on one node: it needs {gpus} together, the emptiest node has {by_gpu}"
        slots = slots[self.free[slots] >= min(gpus, max(by_gpu, 1))]
        cpus, mem = need.fine()
        if len(slots) and self._cpus[slots].max() + _SLACK < min(gpus, by_gpu) * cpus:
            return f"CPUs: it needs {need.cpus:g} per GPU where GPUs are free"
        if len(slots) and self._mem[slots].max() + _SLACK < min(gpus, by_gpu) * mem:
            return f"memory: it needs {need.mem_mb:g} MB per GPU where GPUs are free"
        if most_nodes <= 1:
            return f"a node with {gpus} GPUs, their CPUs and their memory free together"
        return f"{gpus} GPUs of a type that are free on at most {most_nodes} nodes together"


def nothing_to_place(view: View) -> Plan | None:
    """The plan where no job waits or runs, or no node has a GPU for one; None elsewhere."""
    if not view.jobs.ids:
        return Plan(notes=("no managed job waits or runs",))
    if not view.nodes.gpus.any() and not len(view.jobs.held):
        why = "no node has a GPU that managed jobs may use"
        return Plan(waiting=dict.fromkeys(view.jobs.ids, why), notes=(why,))
    return None
