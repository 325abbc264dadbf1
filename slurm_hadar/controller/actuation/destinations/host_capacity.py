"""Whether a moved job finds CPUs and memory beside the GPUs that it moves to."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf, isfinite

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.domain.job import Job, JobState


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
        self._limits = _PartitionLimits(observation)

    def add(self, job: Job) -> None:
        """Count what a running job has as free."""
        self._add(job.gpus, *has(job))
        self._limits.use(job.partitions, job.gpus, -has(job)[0])

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
        if not self._limits.take(job, fields, cpus, [name for name in names if name not in own]):
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


class _PartitionLimits:
    """MaxCPUsPerNode: how many CPUs of a node all jobs of a partition may have together."""

    def __init__(self, observation: Observation) -> None:
        known = observation.partitions
        self._most = {
            name: one.max_cpus_per_node
            for name, one in known.items()
            if isfinite(one.max_cpus_per_node)
        }
        self._nodes: dict[str, frozenset[str]] = {}
        self._used: Counter[tuple[str, str]] = Counter()
        if self._most:
            self._nodes = {name: frozenset(one.nodes) for name, one in known.items()}
            for job in observation.jobs.values():
                if job.state in (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING):
                    part = -(-pending_demand.cpus(job) // max(1, len(job.nodes)))
                    self.use(job.partitions, job.nodes, part)

    def use(self, partitions: Iterable[str], nodes: Iterable[str], cpus: int) -> None:
        """Count CPUs that jobs of these partitions have on each of the nodes."""
        names = [name for name in partitions if name in self._most]
        self._used.update({(name, node): cpus for node in nodes for name in names})

    def take(self, job: Job, fields: Mapping[str, str], cpus: int, nodes: Collection[str]) -> bool:
        """Whether one of the partitions that the job then has lets it have so many CPUs on each of
        these nodes; then they are taken there."""
        if not self._most:
            return True
        names = fields["Partition"].split(",") if "Partition" in fields else job.partitions
        there = [name for name in names if self._nodes.get(name, frozenset()).issuperset(nodes)]
        found = next((name for name in there if self._has_room(name, nodes, cpus)), None)
        if found is not None:
            self.use([found], nodes, cpus)
        # Of partitions that are not known nothing is.
        return found is not None or not there

    def _has_room(self, partition: str, nodes: Collection[str], cpus: int) -> bool:
        most = self._most.get(partition, inf)
        return all(self._used[partition, node] + cpus <= most for node in nodes)


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
