"""Free GPUs, CPUs and memory while a plan is made, and the nodes that a gang gets.

A *pool* is the nodes of one access group that have GPUs of one type. A *slot* is one such node in
one pool: a node with two GPU types has a slot in each.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import IntArray, View
from slurm_hadar.policies.unavailable import NO_GPU

_FINE = 1_000_000
"""CPUs and MB are counted in integer millionths, so that taking and giving back leaves no
rounding."""
_SLACK = 1_000
"""Millionths by which a demand may exceed what is free."""
_FAR = 1 << 20
"""Added to a rank: larger than any number of GPUs of a node."""

Allocation = tuple[tuple[int, int], ...]
"""The nodes of a gang: (slot, GPUs) for each."""


@dataclass(frozen=True)
class ResourcePools:
    """The slots and pools of a view, constant during one decision. S slots."""

    node: IntArray
    """(S,) node index of each slot."""
    gpu_type: IntArray
    """(S,) type index of each slot."""
    pool: IntArray
    """(S,) pool of each slot; the slots of a pool are contiguous."""
    spans: tuple[tuple[int, int], ...]
    """Per pool: its first slot and the slot after its last."""
    pool_type: tuple[int, ...]
    """Per pool: type index."""
    pool_group: tuple[int, ...]
    """Per pool: access group."""
    capacity: tuple[int, ...]
    """GPUs per pool."""
    of_type: tuple[tuple[int, ...], ...]
    """Per type: its pools."""
    slot_of: dict[tuple[int, int], int]
    """(node, type) -> slot."""
    node_of: tuple[int, ...]
    """``node`` as a tuple of ints."""
    same_node: tuple[tuple[int, ...], ...]
    """(S,) all slots of the node of each slot, the slot itself included."""
    pool_of: tuple[int, ...]
    """``pool`` as a tuple of ints."""


def resource_pools(view: View) -> ResourcePools:
    """The pools of a view. A node without usable GPUs of a type has a slot for it only if a job
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
    """What each GPU of a job needs beside itself: CPUs, and memory in MB."""

    cpus: float = 0.0
    mem_mb: float = 0.0
    _fine: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fine = round(self.cpus * _FINE), round(self.mem_mb * _FINE)
        object.__setattr__(self, "_fine", fine)

    def fine(self) -> tuple[int, int]:
        """CPUs and memory in the millionths that :class:`FreeCapacity` counts in."""
        return self._fine


def demands_of(view: View) -> list[Demand]:
    """The demand per GPU of each job, in the order of the view; equal demands share one object."""
    known: dict[tuple[float, float], Demand] = {}
    jobs = view.jobs
    pairs = zip(jobs.cpus_per_gpu.tolist(), jobs.mem_per_gpu_mb.tolist(), strict=True)
    return [known.setdefault(pair, Demand(*pair)) for pair in pairs]


def held_allocations(view: View, pools: ResourcePools) -> dict[int, Allocation]:
    """What running jobs hold: row of the job -> its allocation, in the order of
    ``JobArrays.held``."""
    held: dict[int, Allocation] = {}
    for job, node, kind, count in view.jobs.held.tolist():
        if count > 0:
            held[job] = (*held.get(job, ()), (pools.slot_of[node, kind], count))
    return held


def placement_of(
    view: View, pools: ResourcePools, allocation: Allocation, reason: str
) -> Placement:
    """A :class:`Placement` for this allocation, with node names and the reason."""
    gpus, nodes = gpus_and_nodes(view, rows_of(pools, allocation))
    return Placement(gpus=gpus, nodes=nodes, reason=reason)


def rows_of(pools: ResourcePools, allocation: Allocation) -> list[tuple[int, int, int]]:
    """The rows (node, type, count) of an allocation."""
    return [(int(pools.node[at]), int(pools.gpu_type[at]), count) for at, count in allocation]


def gpus_and_nodes(
    view: View, rows: Iterable[tuple[int, int, int]]
) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """GPUs by type, and by node and type, as in :class:`Placement`, of rows (node, type, count)."""
    gpus: dict[str, int] = {}
    nodes: dict[str, dict[str, int]] = {}
    for node, kind, count in rows:
        name = view.types[kind]
        on_node = nodes.setdefault(view.nodes.names[node], {})
        gpus[name] = gpus.get(name, 0) + count
        on_node[name] = on_node.get(name, 0) + count
    return gpus, nodes


def gpus_text(placement: Placement) -> str:
    """The GPUs of a placement as text: ``1 x k80 + 2 x v100``."""
    return " + ".join(f"{count} x {kind}" for kind, count in placement.gpus.items())


def nodes_text(placement: Placement) -> str:
    """The node name of a placement on one node, else the number of nodes."""
    nodes = placement.nodes
    return next(iter(nodes)) if len(nodes) == 1 else f"{len(nodes)} nodes"


def gang_tier(placement: Placement) -> str:
    """The network tier of a placement where racks are unknown: ``node`` or ``network``."""
    return "node" if len(placement.nodes) == 1 else "network"


class FreeCapacity:
    """The GPUs, CPUs and memory that are still free.

    ``soft`` GPUs are free only if the running job that holds them goes elsewhere, so they are taken
    last. Values are negative where jobs hold more than the view offers: a node may have shrunk, and
    the CPUs of a running job are known only roughly.
    """

    __slots__ = (
        "_cpus", "_key", "_mem", "_plain", "_softened", "free", "hopeless", "left", "pools", "soft"
    )  # fmt: skip

    def __init__(self, view: View, pools: ResourcePools) -> None:
        self.pools = pools
        self.free: IntArray = view.nodes.gpus[pools.node, pools.gpu_type].copy()
        self.soft: IntArray = np.zeros_like(self.free)
        # By slot, so that a pool is a slice; the slots of a node always have equal values.
        self._cpus: IntArray = view.nodes.cpus[pools.node].astype(np.int64) * _FINE
        self._mem: IntArray = view.nodes.mem_mb[pools.node].astype(np.int64) * _FINE
        self._plain = not (view.jobs.cpus_per_gpu.any() or view.jobs.mem_per_gpu_mb.any())
        self.left = [int(np.maximum(self.free[a:b], 0).sum()) for a, b in pools.spans]
        """Free GPUs per pool, 0 or more."""
        self._key = 0
        self._softened = False
        self.hopeless: set[Hashable] = set()
        """Requests known not to fit; cleared as soon as something is given back."""

    def copy(self) -> "FreeCapacity":
        """An independent copy."""
        other = FreeCapacity.__new__(FreeCapacity)
        other.pools, other._plain, other._key = self.pools, self._plain, self._key
        other.free, other._softened = self.free.copy(), self._softened
        other.soft = self.soft.copy() if self._softened else self.soft
        # If no job needs CPUs or memory, these never change.
        other._cpus = self._cpus if self._plain else self._cpus.copy()
        other._mem = self._mem if self._plain else self._mem.copy()
        other.left = self.left.copy()
        other.hopeless = self.hopeless.copy()
        return other

    def key(self) -> int:
        """A Zobrist hash of the state: equal for two copies of one original with the same
        contents."""
        return self._key

    def take(self, allocation: Allocation, need: Demand, soft: bool = False) -> None:
        """Subtract the GPUs of an allocation, with their CPUs and memory. ``soft``: only mark the
        GPUs."""
        for slot, count in allocation:
            if soft:
                self._soften(slot, count)
            else:
                self._change(slot, count, need)

    def give(self, allocation: Allocation, need: Demand, soft: bool = False) -> None:
        """Undo :meth:`take`."""
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
        """Whether exactly this allocation is free."""
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
        """CPUs and memory (MB) that are free on the node of a slot."""
        return int(self._cpus[slot]) / _FINE, int(self._mem[slot]) / _FINE

    def overfull(self, allocation: Allocation) -> bool:
        """Whether jobs hold more on one of these nodes than the view offers."""
        return any(
            self.free[slot] < 0 or self._cpus[slot] < -_SLACK or self._mem[slot] < -_SLACK
            for slot, _ in allocation
        )

    def one_node(self, pool: int, gpus: int, need: Demand) -> Allocation | None:
        """The node of the pool with the fewest free GPUs that fits the whole gang (best fit); None
        if no node does."""
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
            # Nodes with enough idle GPUs come first; the others also in best-fit order.
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
        """The fewest nodes of these pools that together fit the gang, one GPU type per node; None
        if there are not at most ``most_nodes`` such nodes."""
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
        # Idle GPUs first; if that takes too many nodes, the nodes with the most free GPUs.
        allocation = self._gather(
            slots, usable, np.lexsort((slots, -usable, -hard)), gpus, most_nodes
        )
        if allocation is None:
            allocation = self._gather(slots, usable, np.lexsort((slots, -usable)), gpus, most_nodes)
        if allocation is None:
            self.hopeless.add(what)
        return allocation

    def fitting(self, pools: tuple[int, ...], gpus: int, need: Demand) -> tuple[int, ...]:
        """The slots of these pools that fit so many GPUs, fewest free GPUs first. The pools are of
        one type, so that each slot is on a node of its own."""
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
        """As text: the resource that a gang of this size lacks in these pools."""
        allowed = list(pools)
        if not allowed:
            return "GPUs: none of a type that suits it is free on nodes open to it"
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
    """The plan if the view has no job, or no GPU for its jobs; None otherwise."""
    if not view.jobs.ids:
        return Plan(notes=("no managed job waits or runs",))
    if not view.nodes.gpus.any() and not len(view.jobs.held):
        return Plan(waiting=dict.fromkeys(view.jobs.ids, NO_GPU), notes=(NO_GPU,))
    return None
