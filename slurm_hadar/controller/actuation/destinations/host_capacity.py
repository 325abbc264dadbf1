"""Whether a moved job finds CPUs and memory beside the GPUs that it moves to."""

from collections.abc import Collection, Mapping, Sequence

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.domain.job import Job


class FreeHostResources:
    """CPUs and memory (MB) that are free now on each node, less what earlier moves of this tick
    take.

    Slurm does not say on which node a job has how many of them: equal parts are assumed.
    """

    def __init__(self, observation: Observation) -> None:
        self._free = {
            node.name: (node.cpus - node.cpus_used, node.memory_mb - node.memory_used_mb)
            for node in observation.nodes.values()
        }
        self._cpus = {node.name: node.cpus for node in observation.nodes.values()}

    def add(self, job: Job) -> None:
        """Count what a running job has as free."""
        self._add(job.gpus, *has(job))

    def take(
        self, job: Job, fields: Mapping[str, str], names: Sequence[str], own: Collection[str]
    ) -> bool:
        """Whether a running job that gets these ``fields`` of Slurm's fits on the nodes ``names``;
        then what it takes from others is taken.

        ``own``: nodes on which its part is its own already.
        """
        if job.whole_nodes:
            return self._take_whole(names, own)
        cpus, memory = _part(*_wants(job, fields, len(names)), len(names))
        had_cpus, had_memory = has(job)
        for name in names:
            free_cpus, free_memory = self._free[name]
            if name in own:
                # What it has fits, even where the node is overcommitted.
                free_cpus = max(0, free_cpus) + had_cpus
                free_memory = max(0, free_memory) + had_memory
            if cpus > free_cpus or memory > free_memory:
                return False
        for name in names:
            more = (cpus - had_cpus, memory - had_memory) if name in own else (cpus, memory)
            self._add([name], -max(0, more[0]), -max(0, more[1]))
        return True

    def _take_whole(self, names: Sequence[str], own: Collection[str]) -> bool:
        """What :meth:`take` does, for a job that has its nodes alone."""
        for name in names:
            if name not in own and self._free[name][0] < self._cpus[name]:
                return False
        for name in names:
            self._free[name] = (0, 0)
        return True

    def _add(self, names: Collection[str], cpus: int, memory: int) -> None:
        for name in names:
            if name in self._free:
                free_cpus, free_memory = self._free[name]
                self._free[name] = (free_cpus + cpus, free_memory + memory)


def has(job: Job) -> tuple[int, int]:
    """CPUs and memory (MB) that a running job has on each of its nodes."""
    return _part(pending_demand.cpus(job), pending_demand.memory_mb(job), len(job.gpus))


def _wants(job: Job, fields: Mapping[str, str], nodes: int) -> tuple[int, int]:
    """CPUs and memory of the whole job."""
    cpus = pending_demand.cpus(job)
    if "NumCPUs" in fields:
        cpus = int(fields["NumCPUs"].partition("-")[0])
    memory = job.mem_per_node_mb * nodes or job.mem_per_cpu_mb * cpus
    if "MinMemoryNode" in fields:
        memory = int(fields["MinMemoryNode"]) * nodes
    elif "MinMemoryCPU" in fields:
        memory = int(fields["MinMemoryCPU"]) * cpus
    return cpus, memory


def _part(cpus: int, memory: int, nodes: int) -> tuple[int, int]:
    return -(-cpus // max(1, nodes)), -(-memory // max(1, nodes))
