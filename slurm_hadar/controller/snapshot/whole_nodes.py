"""Jobs that have their nodes alone (``--exclusive``): which nodes are of a shape for them.

Slurm 22.05.8 and 24.11.5 give such a job all GPUs and CPUs of each of its nodes, whatever it asks
for, and show its own numbers again when it is requeued. So the nodes decide how many GPUs the job
has, and no request has to change for another number: a plan names nodes of the right size, and a
move pins the job to them.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.resource_request import (
    ResourceRequest,
    cpus_asked,
    may_have,
)
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Node


@dataclass(frozen=True, slots=True)
class HostShape:
    """What decides whether a job may have a node as a whole. ``gpus``: 0 where it has GPUs of
    several types; ``shared``: a job that no plan can move has CPUs there. Memory in MB."""

    gpus: int
    cpus: int
    memory_mb: int
    shared: bool


@dataclass(frozen=True, slots=True)
class WholeNodeNeed:
    """What each whole node of a job must have: a number of GPUs out of ``sizes``, at least so many
    CPUs and MB; ``per_cpu_mb``: memory that is asked for each of its CPUs, all of which are given.
    """

    sizes: frozenset[int]
    cpus: int
    memory_mb: int
    per_cpu_mb: int

    def met_by(self, host: HostShape) -> bool:
        """Whether a node is one that the job may have as a whole."""
        memory = max(self.memory_mb, self.per_cpu_mb * host.cpus)
        enough = host.cpus >= self.cpus and host.memory_mb >= memory
        return host.gpus in self.sizes and enough and not host.shared


def need_of(job: Job, want: ResourceRequest) -> WholeNodeNeed | None:
    """What its nodes must have; None for a job that shares its nodes."""
    if not want.whole:
        return None
    return WholeNodeNeed(
        frozenset(count // want.nodes for count in want.counts),
        max(-(-cpus_asked(job) // want.nodes), job.least_cpus),
        job.mem_per_node_mb,
        job.mem_per_cpu_mb,
    )


def host_shapes(observation: Observation, managed: Collection[Job]) -> dict[str, HostShape]:
    """Node -> its shape. ``managed``: jobs of which a plan disposes; what they have on a node is
    given back with their GPUs."""
    ours: dict[str, float] = {}
    for job in managed:
        if job.state is JobState.RUNNING:
            for name in job.gpus:
                part = (
                    observation.nodes[name].cpus
                    if job.whole_nodes and name in observation.nodes
                    else 0
                )
                ours[name] = ours.get(name, 0.0) + (part or job.cpus / len(job.gpus))
    return {
        name: HostShape(
            gpus_of(node), node.cpus, node.memory_mb, node.cpus_used > ours.get(name, 0)
        )
        for name, node in observation.nodes.items()
    }


class WholeNodes:
    """The shapes of whole nodes that jobs may have, in one tick."""

    def __init__(self, observation: Observation) -> None:
        self._seen = observation
        self._sizes: dict[tuple[str, ...], dict[tuple[str, int], int]] = {}

    def fitted(self, job: Job, want: ResourceRequest) -> ResourceRequest | str:
        """The request with the GPU counts of whole nodes that the owner allows, or why it has none.

        These are the count that it asks for, or those of ``gpus``, as far as nodes of its
        partitions have as many. A request of less than a whole node gets more than it asks for,
        which is no shape that the owner named.
        """
        if not want.whole:
            return want
        each = want.count // want.nodes
        by_type: dict[str, list[int]] = {}
        for (kind, size), number in sorted(self._in(want.partitions).items()):
            count = size * want.nodes
            declared = may_have(job.declaration, count, count == want.count)
            # Slurm starts it on no smaller node.
            if declared and size >= each and number >= want.nodes:
                by_type.setdefault(kind, []).append(count)
        counts = tuple(sorted({count for some in by_type.values() for count in some}))
        if not counts:
            no_nodes = "no node has" if want.nodes == 1 else f"no {want.nodes} nodes of a type have"
            return (
                f"it has its nodes alone (--exclusive), and {no_nodes} the number of GPUs that it "
                "asks for; declare gpus= with the GPUs of whole nodes"
            )
        held = job.gpu_count
        if job.state is JobState.RUNNING and held and held not in counts:
            return f"it has whole nodes with {held} GPUs, which it neither asks for nor declares"
        count = want.count if want.count in counts else counts[0]
        some = {kind: tuple(found) for kind, found in by_type.items()}
        return replace(want, counts=counts, count=count, by_type=some)

    def _in(self, partitions: tuple[str, ...]) -> dict[tuple[str, int], int]:
        """(GPU type, GPUs of a node) -> nodes of that kind in these partitions."""
        if partitions not in self._sizes:
            known = [self._seen.partitions[p] for p in partitions if p in self._seen.partitions]
            found: dict[tuple[str, int], int] = {}
            for name in {name for partition in known for name in partition.nodes}:
                node = self._seen.nodes.get(name)
                if node is not None and (size := gpus_of(node)):
                    key = (next(iter(node.gpus)), size)
                    found[key] = found.get(key, 0) + 1
            self._sizes[partitions] = found
        return self._sizes[partitions]


def gpus_of(node: Node) -> int:
    """The GPUs of a node, which are all of one type; 0 where they are not."""
    return sum(node.gpus.values()) if len(node.gpus) == 1 else 0
