"""Which nodes a gang gets: free GPUs, CPUs and memory while a plan is being made.

A *pool* is the nodes of one access group that have GPUs of one type; a *slot* is one such node in
one pool. A node with two types has a slot in each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray, View

_SLACK = 1e-6

Parts = tuple[tuple[int, int], ...]
"""A gang's place: (slot, GPUs) per node."""


@dataclass(frozen=True)
class Floor:
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


def floor_of(view: View) -> Floor:
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
    ends = np.append(starts[1:], len(node))
    pool = np.cumsum(new) - 1
    types = tuple(int(kind[s]) for s in starts)
    return Floor(
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
        slot_of={(int(n), int(r)): s for s, (n, r) in enumerate(zip(node, kind, strict=True))},
    )


@dataclass(frozen=True, slots=True)
class Need:
    """What each GPU of a job brings along: CPUs, and memory in MB."""

    cpus: float = 0.0
    mem_mb: float = 0.0


class Room:
    """What is still free. ``soft`` GPUs are free only if their running holder goes elsewhere, so
    they are taken last."""

    __slots__ = ("_cpus", "_mem", "_plain", "floor", "free", "left", "smallest", "soft")

    def __init__(self, view: View, floor: Floor) -> None:
        self.floor = floor
        self.free: IntArray = view.nodes.gpus[floor.node, floor.gpu_type].copy()
        self.soft: IntArray = np.zeros_like(self.free)
        self._cpus: FloatArray = view.nodes.cpus.astype(np.float64)
        self._mem: FloatArray = view.nodes.mem_mb.astype(np.float64)
        self._plain = not (view.jobs.cpus_per_gpu.any() or view.jobs.mem_per_gpu_mb.any())
        self.left = [int(self.free[a:b].sum()) for a, b in floor.spans]
        self.smallest = 1
        """Size of the smallest gang that is still to be placed."""

    def copy(self) -> "Room":
        """An independent room with the same contents."""
        other = Room.__new__(Room)
        other.floor, other._plain, other.smallest = self.floor, self._plain, self.smallest
        other.free, other.soft = self.free.copy(), self.soft.copy()
        other._cpus, other._mem = self._cpus.copy(), self._mem.copy()
        other.left = list(self.left)
        return other

    def key(self) -> bytes:
        """Equal for rooms with the same future."""
        rest = b"" if self._plain else self._cpus.tobytes() + self._mem.tobytes()
        return self.free.tobytes() + self.soft.tobytes() + rest

    def full(self) -> bool:
        """Whether not even the smallest gang fits by its number of GPUs."""
        return sum(n for n in self.left if n > 0) < self.smallest

    def make_room_for(self, holdings: Iterable[tuple[Parts, Need]]) -> None:
        """What is held is there, even where the view's numbers say less: nodes shrink, and the
        CPUs of a running job are known only roughly."""
        gpus = np.zeros_like(self.free)
        cpus, mem = np.zeros_like(self._cpus), np.zeros_like(self._mem)
        for parts, need in holdings:
            for slot, count in parts:
                gpus[slot] += count
                cpus[self.floor.node[slot]] += count * need.cpus
                mem[self.floor.node[slot]] += count * need.mem_mb
        self.free = np.maximum(self.free, gpus)
        self._cpus, self._mem = np.maximum(self._cpus, cpus), np.maximum(self._mem, mem)
        self.left = [int(self.free[a:b].sum()) for a, b in self.floor.spans]

    def take(self, parts: Parts, need: Need, soft: bool = False) -> None:
        """Set GPUs, CPUs and memory aside. ``soft``: only mark the GPUs as somebody's for now."""
        for slot, count in parts:
            if soft:
                self.soft[slot] += count
                continue
            self._change(slot, count, need)

    def give(self, parts: Parts, need: Need, soft: bool = False) -> None:
        """The opposite of :meth:`take`."""
        for slot, count in parts:
            if soft:
                self.soft[slot] -= count
                continue
            self._change(slot, -count, need)

    def _change(self, slot: int, count: int, need: Need) -> None:
        self.free[slot] -= count
        self.left[int(self.floor.pool[slot])] -= count
        node = self.floor.node[slot]
        self._cpus[node] -= count * need.cpus
        self._mem[node] -= count * need.mem_mb

    def holds(self, parts: Parts, need: Need) -> bool:
        """Whether exactly this place is free."""
        per_node: dict[int, int] = {}
        for slot, count in parts:
            if self.free[slot] < count:
                return False
            node = int(self.floor.node[slot])
            per_node[node] = per_node.get(node, 0) + count
        return all(
            self._cpus[node] + _SLACK >= count * need.cpus
            and self._mem[node] + _SLACK >= count * need.mem_mb
            for node, count in per_node.items()
        )

    def one_node(self, pool: int, gpus: int, need: Need) -> Parts | None:
        """The fullest node of the pool that still takes the whole gang."""
        if self.left[pool] < gpus:
            return None
        first, end = self.floor.spans[pool]
        free = self.free[first:end]
        fits = free >= gpus
        if not self._plain:
            nodes = self.floor.node[first:end]
            fits &= self._cpus[nodes] + _SLACK >= gpus * need.cpus
            fits &= self._mem[nodes] + _SLACK >= gpus * need.mem_mb
        where = fits.nonzero()[0]
        if not len(where):
            return None
        hard = free[where] - self.soft[first:end][where]
        # Idle GPUs come first; among nodes that need somebody to leave, the fullest as well.
        rank = np.where(hard >= gpus, hard, free[where] + 1_000_000)
        return ((first + int(where[int(rank.argmin())]), gpus),)

    def several_nodes(
        self, pools: Sequence[int], gpus: int, need: Need, most_nodes: int
    ) -> Parts | None:
        """The fewest nodes of these pools that together take the gang; one type a node."""
        if sum(max(0, self.left[p]) for p in pools) < gpus:
            return None
        slots = np.concatenate([np.arange(*self.floor.spans[p]) for p in pools])
        usable = self._usable(slots, need)
        keep = usable > 0
        slots, usable = slots[keep], usable[keep]
        hard = np.minimum(usable, self.free[slots] - self.soft[slots])
        order = np.lexsort((slots, -usable, -hard))
        parts: list[tuple[int, int]] = []
        taken: set[int] = set()
        missing = gpus
        for at in order.tolist():
            node = int(self.floor.node[slots[at]])
            if node in taken:
                continue
            if len(parts) + 1 > most_nodes:
                return None
            count = min(missing, int(usable[at]))
            parts.append((int(slots[at]), count))
            taken.add(node)
            missing -= count
            if not missing:
                return tuple(parts)
        return None

    def _usable(self, slots: IntArray, need: Need) -> IntArray:
        usable: FloatArray = self.free[slots].astype(np.float64)
        if not self._plain:
            nodes = self.floor.node[slots]
            if need.cpus > 0:
                usable = np.minimum(usable, (self._cpus[nodes] + _SLACK) // need.cpus)
            if need.mem_mb > 0:
                usable = np.minimum(usable, (self._mem[nodes] + _SLACK) // need.mem_mb)
        return np.maximum(usable, 0).astype(np.int64)

    def shortage(self, pools: Iterable[int], gpus: int, need: Need, most_nodes: int) -> str:
        """In plain words: which resource keeps a gang of this size out of these pools."""
        allowed = list(pools)
        if not allowed:
            return "no node with a GPU type that suits it is open to its owner"
        free = sum(max(0, self.left[p]) for p in allowed)
        if free < gpus:
            return f"GPUs: it needs {gpus}, {free} are free on nodes open to it"
        slots = np.concatenate([np.arange(*self.floor.spans[p]) for p in allowed])
        by_gpu = int(self.free[slots].max(initial=0))
        if by_gpu < gpus and most_nodes <= 1:
            return f"GPUs on one node: it needs {gpus} together, the emptiest node has {by_gpu}"
        nodes = self.floor.node[slots][self.free[slots] >= min(gpus, max(by_gpu, 1))]
        if len(nodes) and self._cpus[nodes].max() + _SLACK < min(gpus, by_gpu) * need.cpus:
            return f"CPUs: it needs {need.cpus:g} per GPU where GPUs are free"
        if len(nodes) and self._mem[nodes].max() + _SLACK < min(gpus, by_gpu) * need.mem_mb:
            return f"memory: it needs {need.mem_mb:g} MB per GPU where GPUs are free"
        return f"no set of at most {most_nodes} nodes has {gpus} GPUs of a type together"
