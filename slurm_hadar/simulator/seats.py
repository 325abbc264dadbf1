"""Which GPUs of the pretend cluster each job holds; a plan that cannot be is refused."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.placement import Placement, by_type
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.node_limits import NodeLimits

Seat = tuple[int, int, int]
"""(node, type, count)"""


class Seats:
    """GPUs held and free. A placement without nodes goes where capacity is free: on one node if it
    fits (the fullest that does), else on the emptiest ones."""

    def __init__(self, cluster: VirtualCluster, limits: NodeLimits | None = None) -> None:
        """``limits``: CPUs and memory of the nodes, None where they are not counted."""
        self._limits = limits
        # Lists, not arrays: each job looks at few numbers, and finds them faster so.
        self._by_type: list[list[int]] = [
            np.flatnonzero(cluster.gpus[:, kind]).tolist() for kind in range(len(cluster.types))
        ]
        self._free: list[list[int]] = [
            cluster.gpus[nodes, kind].tolist() for kind, nodes in enumerate(self._by_type)
        ]
        # How many nodes of the type have so many GPUs free.
        self._with = [Counter(free) for free in self._free]
        self._at = {
            (node, kind): at
            for kind, nodes in enumerate(self._by_type)
            for at, node in enumerate(nodes)
        }
        self.of: dict[int, tuple[Seat, ...]] = {}
        self._cluster = cluster
        self._node = {name: at for at, name in enumerate(cluster.names)}
        self._type = {name: at for at, name in enumerate(cluster.types)}

    def release(self, job: int) -> tuple[Seat, ...]:
        """Give back what a job holds."""
        held = self.of.pop(job, ())
        if self._limits is not None:
            self._limits.give(job)
        for node, kind, count in held:
            self._change(kind, self._at[node, kind], count)
        return held

    def take(self, placements: Mapping[int, Placement], names: Sequence[str]) -> None:
        """Seat these jobs, which hold nothing. Raises HadarError where a plan asks for what there
        is not; ``names`` (J,) says who is who."""
        for job, placement in placements.items():
            if placement.nodes:
                self._hold(job, placement, self._named(placement, names[job]), names[job])
        loose = [job for job, placement in placements.items() if not placement.nodes]
        loose.sort(key=lambda job: -placements[job].gpu_count)
        for job in loose:
            seats = self._laid(job, placements[job], names[job])
            self._hold(job, placements[job], seats, names[job])

    def fits(self, job: int, placement: Placement, most_nodes: int) -> bool:
        """Whether the capacity for a placement is free, counting what the job holds as free;
        without named nodes it may spread over so many. CPUs and memory are not looked at."""
        own = {(node, kind): count for node, kind, count in self.of.get(job, ())}
        if placement.nodes:
            return all(
                (at := (self._node.get(node, -1), self._type.get(kind, -1))) in self._at
                and self._free[at[1]][self._at[at]] + own.get(at, 0) >= count
                for node, gpus in placement.nodes.items()
                for kind, count in gpus.items()
            )
        for name, count in placement.gpus.items():
            kind = self._type[name]
            free = sorted(
                (n + own.get((node, kind), 0)
                 for node, n in zip(self._by_type[kind], self._free[kind], strict=True)),
                reverse=True,
            )  # fmt: skip
            if sum(free[:most_nodes]) < count:
                return False
        return True

    def _hold(self, job: int, placement: Placement, seats: tuple[Seat, ...], name: str) -> None:
        for node, kind, count in seats:
            at = self._at.get((node, kind), -1)
            if at < 0 or self._free[kind][at] < count:
                raise HadarError(
                    f"the plan gives job {name} {count} {self._cluster.types[kind]} on "
                    f"{self._cluster.names[node]}, more than are free there"
                )
            self._change(kind, at, -count)
        if self._limits is not None:
            self._limits.take(job, placement, seats, name)
        self.of[job] = seats

    def _change(self, kind: int, at: int, by: int) -> None:
        free, nodes = self._free[kind], self._with[kind]
        nodes[free[at]] -= 1
        free[at] += by
        nodes[free[at]] += 1

    def _named(self, placement: Placement, name: str) -> tuple[Seat, ...]:
        seats: list[Seat] = []
        for node, gpus in placement.nodes.items():
            for kind, count in gpus.items():
                if node not in self._node or kind not in self._type or count < 1:
                    raise HadarError(f"the plan gives job {name} {count} {kind} on {node}")
                seats.append((self._node[node], self._type[kind], int(count)))
        if by_type(placement.nodes) != {
            kind: count for kind, count in placement.gpus.items() if count
        }:
            raise HadarError(f"the plan's nodes and types for job {name} do not agree")
        return tuple(seats)

    def _laid(self, job: int, placement: Placement, name: str) -> tuple[Seat, ...]:
        seats: list[Seat] = []
        for kind_name, count in placement.gpus.items():
            kind = self._type.get(kind_name, -1)
            if kind < 0 or count < 1:
                raise HadarError(f"the plan gives job {name} {count} {kind_name}")
            nodes, free = self._by_type[kind], self._free[kind]
            if self._limits is None:
                fits = [n for n, often in self._with[kind].items() if often and n >= count]
            else:
                free = self._limits.cut(job, placement, nodes, free)
                fits = [n for n in free if n >= count]
            if fits:
                seats.append((nodes[free.index(min(fits))], kind, count))
                continue
            missing = count
            for at in sorted(range(len(free)), key=free.__getitem__, reverse=True):
                part = min(missing, free[at])
                if part <= 0:
                    break
                seats.append((nodes[at], kind, part))
                missing -= part
            if missing:
                beside = " with its CPUs and memory" if self._limits is not None else ""
                raise HadarError(
                    f"the plan gives job {name} {count} {kind_name}, {missing} more than are free"
                    + beside
                )
        return tuple(sorted(seats))
