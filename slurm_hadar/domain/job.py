"""A job as Slurm shows it, in the terms of the field."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from slurm_hadar.domain.declaration import Declaration

UNTYPED = ""
"""The GPU type of a request that names none."""


class JobState(Enum):
    """What a job is doing. UNKNOWN is a state that this release of ours has not met:
    it is never taken for finished, and nothing is done to such a job."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETING = "completing"
    FINISHED = "finished"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPUs that the job asks for, by type (:data:`UNTYPED` where it names none)."""

    per_node: Mapping[str, int] = field(default_factory=dict)
    per_job: Mapping[str, int] = field(default_factory=dict)
    per_task: Mapping[str, int] = field(default_factory=dict)

    @property
    def typed(self) -> bool:
        """Whether any part of the request names a type."""
        return any(t != UNTYPED for p in (self.per_node, self.per_job, self.per_task) for t in p)

    @property
    def gpus(self) -> Mapping[str, int]:
        """Of each node, of the job or of each task: in the one of these ways in which it asks."""
        return self.per_node or self.per_job or self.per_task


@dataclass(frozen=True, slots=True)
class Job:
    """One job, or one task of an array.

    ``id`` is what a person types: ``"123"``, or ``"84_2"`` for a task of an array.
    ``raw_id`` is Slurm's own number of it (``SLURM_JOB_ID``), equal to the array's for tasks that
    Slurm has not split off yet. Times are seconds since the epoch, 0 where Slurm has none.
    """

    id: str
    raw_id: int
    uid: int
    user: str
    name: str
    state: JobState
    slurm_state: str
    reason: str = ""
    account: str = ""
    qos: str = ""
    partitions: tuple[str, ...] = ()
    priority: int = 0
    held: bool = False
    submit_s: float = 0.0
    eligible_s: float = 0.0
    accrue_s: float = 0.0
    """Since when Slurm counts the age in its priority."""
    start_s: float = 0.0
    """Start of a running job; begin or expected start of a pending one."""
    end_s: float = 0.0
    time_limit_s: float = inf
    least_limit_s: float = 0.0
    """``--time-min``: down to this Slurm may cut the limit at a start; 0: not at all."""
    deadline_s: float = 0.0
    """``--deadline``, s since the epoch; 0: none."""
    nodes: tuple[str, ...] = ()
    gpus: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Allocated GPUs: node -> type -> count. Empty while pending."""
    request: GpuRequest = field(default_factory=GpuRequest)
    features: str = ""
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    node_count: int = 1
    tasks: int = 1
    cpus: int = 1
    cpus_per_task: int = 1
    mem_per_cpu_mb: int = 0
    mem_per_node_mb: int = 0
    per_gpu: bool = False
    """CPUs or memory are asked for per GPU (``--cpus-per-gpu``, ``--mem-per-gpu``)."""
    least_cpus: int = 0
    """CPUs that each of its nodes must have (``--mincpus``)."""
    odd: bool = False
    """It asks for more of a node than GPUs, CPUs and memory: temporary disk, sockets, cores or
    threads, GPUs per socket, or another GRES. So whether it fits a node, Slurm alone can tell."""
    batch: bool = True
    requeue: bool = True
    external: bool = False
    """It asks for licences or a burst buffer, which a requeue would give to others, or for segments
    of a block topology, which no plan of ours knows."""
    other_gres: bool = False
    """It asks for other GRES than GPUs as well."""
    expedited: bool = False
    """Submitted with ``--requeue=expedite`` (25.11): a requeue starts it at once, and an exit other
    than 0 starts one."""
    exclusive: bool = False
    """Others, or other users, are kept off its nodes."""
    whole_nodes: bool = False
    """It has its nodes alone (``--exclusive`` without a value), and so all of their GPUs and CPUs,
    whatever it asks for of each."""
    restarts: int = 0
    exit_code: int = 0
    """With which the batch script of a job that has ended left; 0 where a signal ended it."""
    not_before_s: float = 0.0
    """What its last attempt left on a node that was down may still be leaving until then."""
    het: bool = False
    nice: int = 0
    array_job_id: int = 0
    array_tasks: str = ""
    """Of a waiting task that Slurm keeps in one record with others: the tasks of that record, such
    as ``0-3,7``; empty of any other job, and where the list is too long for Slurm to show."""
    reservation: str = ""
    dependency: str = ""
    comment: str = ""
    admin_comment: str = ""
    workdir: str = ""
    declaration: Declaration | None = None
    """What the owner declared; None where the job did not opt in."""
    by_partition: bool = False
    """Whether its partition alone opted it in, so that nothing of its request was written for its
    declaration."""
    declaration_error: str = ""
    """Why a declaration in the Comment could not be read; such a job is left alone."""
    outside: str = ""
    """Why the site leaves it alone though it opted in; empty where it does not."""
    own_partitions: frozenset[str] = frozenset()
    """Partitions for which its owner and account have an association of their own, or may have."""

    @property
    def managed(self) -> bool:
        """Whether the job opted in and may be touched."""
        declared = self.declaration is not None and not self.declaration.off
        return declared and self.batch and not self.het and not self.outside

    def may_start_at(self, now: float) -> bool:
        """Whether it waits, and neither a hold nor its begin time keeps it from starting then."""
        waits = self.state is JobState.PENDING and not self.held and self.priority > 0
        return waits and self.eligible_s <= now

    @property
    def never_met(self) -> bool:
        """Whether Slurm says that its dependency can never be met, so that it never starts."""
        return self.reason.startswith("DependencyNeverSatisfied")

    @property
    def opted_out(self) -> bool:
        """Whether its owner opted it out (``off=yes``)."""
        return self.declaration is not None and self.declaration.off

    @property
    def gpu_count(self) -> int:
        """GPUs allocated now."""
        return sum(n for by_type in self.gpus.values() for n in by_type.values())
