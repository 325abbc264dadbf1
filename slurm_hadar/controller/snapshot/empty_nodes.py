"""On which nodes a waiting job would fit if nothing ran there.

A list of partitions must keep one in which the job fits: Slurm refuses a list without one, or lets
the job wait forever.
"""

from collections.abc import Iterable

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.constraints import OpaqueConstraint, met
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.groups import next_reservation
from slurm_hadar.controller.snapshot.resource_request import cpus_per_copy
from slurm_hadar.domain.job import UNTYPED
from slurm_hadar.domain.node import Node

Names = frozenset[str]
_Need = tuple[int, int, int, tuple[str, ...], str, tuple[str, ...], Names]
_Shape = tuple[tuple[tuple[str, int], ...], int, int, tuple[str, ...]]


class EmptyNodes:
    """The usable nodes of a tick, each as if it were empty; what was found is kept."""

    def __init__(self, observation: Observation) -> None:
        self._seen = observation
        self._closes = next_reservation(observation)
        shapes: dict[_Shape, set[str]] = {}
        for node in observation.nodes.values():
            shapes.setdefault(_shape(node), set()).add(node.name)
        self._unusable = frozenset(
            node.name for node in observation.nodes.values() if not node.usable
        )
        self._shapes = {shape: frozenset(names) for shape, names in shapes.items()}
        self._of_need: dict[_Need, Names] = {}
        self._numbers: dict[tuple[Names, str], int] = {}

    def fitting(self, target: SchedulableJob) -> Names:
        """Nodes that could hold the job's part on a node for its whole time limit; none where its
        request does not show that."""
        end_s = self._seen.now + target.job.time_limit_s
        closed = frozenset(name for name, at_s in self._closes.items() if at_s < end_s)
        # The same object for most jobs: its hash is known.
        return self._fitting(target, self._unusable | closed if closed else self._unusable)

    def _fitting(self, target: SchedulableJob, closed: Names) -> Names:
        job, want = target.job, target.request
        if not self.is_clear(target):
            return frozenset()
        nodes = max(1, want.nodes)
        copies = want.copies[1] > 1
        cpus = cpus_per_copy(job) if copies else -(-job.cpus // nodes)
        memory = job.mem_per_node_mb or job.mem_per_cpu_mb * cpus
        need = (
            -(-want.count // nodes),
            min(max(cpus, job.least_cpus), pending_demand.MOST),
            min(memory, pending_demand.MOST),
            tuple(sorted(kind for kind in job.request.gpus if kind != UNTYPED)),
            want.constraint,
            job.excluded_nodes,
            closed,
        )
        if need not in self._of_need:
            self._of_need[need] = self._found(need)
        return self._of_need[need]

    @staticmethod
    def is_clear(target: SchedulableJob) -> bool:
        """Whether the job's request shows which nodes could hold it."""
        job = target.job
        # Memory per CPU of a whole node is that of all its CPUs.
        return not (job.per_gpu or job.odd or (job.whole_nodes and job.mem_per_cpu_mb))

    def fits(
        self, target: SchedulableJob, partitions: Iterable[str], some_day: bool = False
    ) -> frozenset[str]:
        """The partitions in which the job surely fits; ``some_day``: with the nodes that may not be
        used now."""
        fitting = self._fitting(target, frozenset()) if some_day else self.fitting(target)
        nodes = max(1, target.request.nodes)
        found = set()
        for name in partitions:
            if (fitting, name) not in self._numbers:
                inside = fitting.intersection(self._seen.partitions[name].nodes)
                self._numbers[fitting, name] = len(inside)
            partition = self._seen.partitions[name]
            in_limits = (
                -(-target.job.cpus // nodes) <= partition.max_cpus_per_node
                and target.job.mem_per_node_mb <= partition.max_mem_per_node_mb
            )
            if in_limits and self._numbers[fitting, name] >= nodes:
                found.add(name)
        return frozenset(found)

    def _found(self, need: _Need) -> Names:
        gpus, cpus, memory, types, constraint, excluded, closed = need
        found: set[str] = set()
        for (kinds, has_cpus, has_memory, features), names in self._shapes.items():
            most = max((n for kind, n in kinds if not types or kind in types), default=0)
            if most >= gpus and has_cpus >= cpus and has_memory >= memory:
                found |= names if _may_meet(constraint, features) else frozenset()
        return frozenset(found) - set(excluded) - closed


def _shape(node: Node) -> _Shape:
    gpus = tuple(sorted(node.gpus.items()))
    return gpus, node.cpus, node.memory_mb, tuple(sorted(node.features))


def _may_meet(constraint: str, features: tuple[str, ...]) -> bool:
    try:
        return met(constraint, frozenset(features))
    except OpaqueConstraint:
        return False


UNFIT = ("PartitionConfig", "BadConstraints")
"""Slurm's reasons of a job that fits nowhere in a partition of its list."""
