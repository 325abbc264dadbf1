"""CPUs and memory of the pretend nodes: a plan that gives away more than there is, is refused."""

from collections.abc import Sequence

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.placement import Placement
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.workload import Workload

_SLACK = 1e-6
"""CPUs and MB that rounding may take beyond the last."""

Part = tuple[int, int, int]
"""(node, type, count)"""


class NodeLimits:
    """What is free beside the GPUs of each node. A job takes what its placement says, else what it
    asked for, for each of its GPUs; what the cluster does not count (0) is never short."""

    def __init__(self, cluster: VirtualCluster, workload: Workload) -> None:
        each = cluster.gpus.sum(axis=1)
        self._free: tuple[list[float], list[float]] = (
            (each * float(cluster.cpus_per_gpu)).tolist(),
            (each * float(cluster.mem_per_gpu_mb)).tolist(),
        )
        self._counted = (cluster.cpus_per_gpu > 0, cluster.mem_per_gpu_mb > 0)
        self._asked = (workload.cpus_per_gpu.tolist(), workload.mem_per_gpu_mb.tolist())
        self._taken: dict[int, list[tuple[int, float, float]]] = {}
        self._names = cluster.names

    def per_gpu(self, job: int, placement: Placement) -> tuple[float, float]:
        """CPUs and MB per GPU that the job takes, as far as they are counted."""
        given = (placement.cpus_per_gpu, placement.mem_per_gpu_mb)
        cpus, mem = (
            float(self._asked[at][job] if given[at] is None else given[at] or 0.0)
            if self._counted[at]
            else 0.0
            for at in (0, 1)
        )
        return cpus, mem

    def take(self, job: int, placement: Placement, parts: Sequence[Part], name: str) -> None:
        """Set aside what the job needs. Raises HadarError where a node has less."""
        cpus, mem = self.per_gpu(job, placement)
        if cpus < 0 or mem < 0:
            raise HadarError(f"the plan gives job {name} {cpus:g} CPUs and {mem:g} MB per GPU")
        taken = [(node, count * cpus, count * mem) for node, _, count in parts]
        for node, *amounts in taken:
            for at, what in enumerate(("CPUs", "MB of memory")):
                free = self._free[at][node]
                if amounts[at] > free + _SLACK:
                    raise HadarError(
                        f"the plan gives job {name} {amounts[at]:g} {what} on "
                        f"{self._names[node]}, where {free:g} are free"
                    )
                self._free[at][node] = free - amounts[at]
        self._taken[job] = taken

    def give(self, job: int) -> None:
        """Give back what a job took."""
        for node, cpus, mem in self._taken.pop(job, ()):
            self._free[0][node] += cpus
            self._free[1][node] += mem

    def cut(
        self, job: int, placement: Placement, nodes: Sequence[int], free: Sequence[int]
    ) -> list[int]:
        """``free`` GPUs of these nodes, as far as their CPUs and memory suffice for this job."""
        each = self.per_gpu(job, placement)
        found = list(free)
        for at, need in enumerate(each):
            if need > 0:
                found = [
                    min(n, int((self._free[at][node] + _SLACK) // need))
                    for n, node in zip(found, nodes, strict=True)
                ]
        return found


def limits_of(cluster: VirtualCluster, workload: Workload) -> NodeLimits | None:
    """None where the cluster counts neither CPUs nor memory."""
    counted = cluster.cpus_per_gpu > 0 or cluster.mem_per_gpu_mb > 0
    return NodeLimits(cluster, workload) if counted else None
