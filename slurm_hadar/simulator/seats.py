"""Which GPUs of the pretend cluster each job holds; a plan that cannot be is refused."""

from collections.abc import Iterable, Mapping

import numpy as np

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.placement import Placement
from slurm_hadar.simulator.cluster import Cluster

_FAR = np.iinfo(np.int64).max

Seat = tuple[int, int, int]
"""(node, type, count)"""


class Seats:
    """GPUs held and free. A placement without nodes is laid where there is room: on one node if it
    fits (the fullest that does), else on the emptiest ones."""

    def __init__(self, cluster: Cluster) -> None:
        self._by_type = [np.flatnonzero(cluster.gpus[:, r]) for r in range(len(cluster.types))]
        self._free = [cluster.gpus[nodes, r].copy() for r, nodes in enumerate(self._by_type)]
        self._at = {
            (node, kind): at
            for kind, nodes in enumerate(self._by_type)
            for at, node in enumerate(nodes.tolist())
        }
        self.of: dict[int, tuple[Seat, ...]] = {}
        self._cluster = cluster
        self._node = {name: at for at, name in enumerate(cluster.names)}
        self._type = {name: at for at, name in enumerate(cluster.types)}

    def release(self, job: int) -> tuple[Seat, ...]:
        """Give back what a job holds."""
        held = self.of.pop(job, ())
        for node, kind, count in held:
            self._free[kind][self._at[node, kind]] += count
        return held

    def take(self, placements: Mapping[int, Placement], names: Mapping[int, str]) -> None:
        """Seat these jobs, which hold nothing. Raises HadarError where a plan asks for what there
        is not; ``names`` says who is who."""
        for job, placement in placements.items():
            if placement.nodes:
                self._hold(job, self._named(placement, names[job]), names[job])
        loose = [job for job, placement in placements.items() if not placement.nodes]
        loose.sort(key=lambda job: -placements[job].gpu_count)
        for job in loose:
            self._hold(job, self._laid(placements[job], names[job]), names[job])

    def rows(self, order: Iterable[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
        """Rows (row, node, type, count) of a view for pairs (row in the view, job)."""
        return [(row, *seat) for row, job in order for seat in self.of[job]]

    def _hold(self, job: int, seats: tuple[Seat, ...], name: str) -> None:
        for node, kind, count in seats:
            at = self._at.get((node, kind), -1)
            free = self._free[kind]
            if at < 0 or free[at] < count:
                raise HadarError(
                    f"the plan gives job {name} {count} {self._cluster.types[kind]} on "
                    f"{self._cluster.names[node]}, more than are free there"
                )
            free[at] -= count
        self.of[job] = seats

    def _named(self, placement: Placement, name: str) -> tuple[Seat, ...]:
        seats: list[Seat] = []
        totals: dict[str, int] = {}
        for node, gpus in placement.nodes.items():
            for kind, count in gpus.items():
                if node not in self._node or kind not in self._type or count < 1:
                    raise HadarError(f"the plan gives job {name} {count} {kind} on {node}")
                seats.append((self._node[node], self._type[kind], int(count)))
                totals[kind] = totals.get(kind, 0) + count
        if totals != {kind: count for kind, count in placement.gpus.items() if count}:
            raise HadarError(f"the plan's nodes and types for job {name} do not agree")
        return tuple(seats)

    def _laid(self, placement: Placement, name: str) -> tuple[Seat, ...]:
        seats: list[Seat] = []
        for kind_name, count in placement.gpus.items():
            kind = self._type.get(kind_name, -1)
            if kind < 0 or count < 1:
                raise HadarError(f"the plan gives job {name} {count} {kind_name}")
            nodes, free = self._by_type[kind], self._free[kind]
            best = int(np.where(free >= count, free, _FAR).argmin()) if len(free) else -1
            if best >= 0 and free[best] >= count:
                seats.append((int(nodes[best]), kind, count))
                continue
            missing = count
            for at in np.argsort(-free, kind="stable").tolist():
                part = min(missing, int(free[at]))
                if part <= 0:
                    break
                seats.append((int(nodes[at]), kind, part))
                missing -= part
            if missing:
                raise HadarError(
                    f"the plan gives job {name} {count} {kind_name}, {missing} more than are free"
                )
        return tuple(sorted(seats))
