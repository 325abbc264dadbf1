"""Nodes, partitions and reservations as Slurm shows them."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True, slots=True)
class Node:
    """One node. Memory in MB. ``usable`` is False for down, drained, failing or reserved-for-boot
    nodes: their idle GPUs do not exist for a plan. Nor do those of one that is ``asleep``: it is
    powered down or boots, and only Slurm wakes it, for a job that finds no other place. Slurm gives
    free nodes of a lower ``weight`` first."""

    name: str
    gpus: Mapping[str, int] = field(default_factory=dict)
    gpus_used: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cpus: int = 1
    cpus_used: int = 0
    memory_mb: int = 0
    memory_used_mb: int = 0
    state: str = ""
    usable: bool = True
    asleep: bool = False
    weight: int = 1

    @property
    def used_without_cpus(self) -> Mapping[str, int]:
        """GPUs that count as used on a usable node where no job runs, as each has a CPU."""
        if self.cpus_used or not self.usable:
            return {}
        return {kind: count for kind, count in self.gpus_used.items() if count > 0}


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition and who may use it. Empty ``allow_*`` means all users."""

    name: str
    nodes: tuple[str, ...] = ()
    state: str = "UP"
    default: bool = False
    max_time_s: float = inf
    default_time_s: float = inf
    min_nodes: int = 0
    max_nodes: float = inf
    max_cpus_per_node: float = inf
    priority_tier: int = 1
    priority_factor: int = 1
    """PriorityJobFactor: its part in the priority of its jobs."""
    preempt_mode: str = ""
    grace_s: float = 0.0
    allow_groups: tuple[str, ...] = ()
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()
    root_only: bool = False
    reservation_required: bool = False
    exclusive: bool = False
    submit_hosts: tuple[str, ...] = ()
    """Hosts from which alone it takes jobs; empty: all."""
    max_mem_per_node_mb: float = inf
    max_mem_per_cpu_mb: float = inf
    qos: str = ""
    """Its own QOS, whose limits hold beside the job's."""
    billing: str = ""
    """TRESBillingWeights: what a job there is billed; empty where it has none."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Key of slurm.conf -> value, of what else it gives or forbids its jobs: default memory,
    defaults per GPU, sharing. Only where it differs from what Slurm does by itself."""

    @property
    def up(self) -> bool:
        """Whether it takes and starts jobs."""
        return self.state == "UP"

    def __hash__(self) -> int:
        """By its name alone: the names of thousands of nodes are not hashed for each job."""
        return hash(self.name)


def asleep_partitions(nodes: Iterable[Node], closed: Container[str] = ()) -> frozenset[str]:
    """Partitions of which no node that is awake has an idle GPU, and one that is asleep has: a job
    that starts there now waits until that node has booted. ``closed``: names of nodes whose idle
    GPUs do not count."""
    asleep, free = set[str](), set[str]()
    for node in (one for one in nodes if one.usable and one.gpus):
        idle = any(count > node.gpus_used.get(kind, 0) for kind, count in node.gpus.items())
        if node.asleep:
            asleep.update(node.partitions)
        elif idle and node.name not in closed:
            free.update(node.partitions)
    return frozenset(asleep - free)


def highest_tier(partition: Partition, partitions: Iterable[Partition]) -> int:
    """The highest PriorityTier of the partitions that share a node with this one, itself one of
    them."""
    nodes = set(partition.nodes)
    beside = (one.priority_tier for one in partitions if not nodes.isdisjoint(one.nodes))
    return max(beside, default=partition.priority_tier)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that Slurm keeps for a user between two times (s since the epoch)."""

    name: str
    nodes: tuple[str, ...]
    start_s: float
    end_s: float
