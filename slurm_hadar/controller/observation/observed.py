"""What one tick sees: Slurm's answers, the jobs' own files, and what we did before."""

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.waiting_on_others import (
    Dependents,
    LimitWaiters,
    dependents,
    limit_waiters,
)
from slurm_hadar.domain import steering
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import JustStartedError, SlurmError
from slurm_hadar.domain.job import UNTYPED, Job, JobState
from slurm_hadar.domain.node import Node, Partition, Reservation, asleep_partitions, highest_tier
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.gpu_sampling import TrainingUse
from slurm_hadar.profiles.gpu_sampling_files import NodeUse
from slurm_hadar.slurm.cluster import Cluster
from slurm_hadar.slurm.records import USUAL_QUEUE_DEPTH, BillingRule, Preemption
from slurm_hadar.slurm.waiting_age import AgePriority
from slurm_hadar.users import is_member

_NOT_STEERED = Steering()


@dataclass(frozen=True)
class Observation:
    """One reading of the cluster. ``now`` in s since the epoch."""

    now: float
    jobs: Mapping[str, Job]
    nodes: Mapping[str, Node]
    partitions: Mapping[str, Partition]
    reservations: tuple[Reservation, ...] = ()
    progress: Mapping[str, Progress] = field(default_factory=dict)
    gpus: Mapping[str, list[NodeUse]] = field(default_factory=dict)
    """What the GPUs of running jobs do, as their own samplers say."""
    uses: dict[str, tuple[tuple[object, ...], TrainingUse | None]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Filled by :func:`slurm_hadar.controller.profiling.gpu_use.present`: job -> what its answer
    depends on, and the answer."""
    members: dict[tuple[str, str], bool] = field(default_factory=dict, repr=False, compare=False)
    """Filled by :meth:`is_member`."""
    all_reports: bool = True
    """Whether every report that a job left was looked at; else one that is missing says nothing."""
    steering: Mapping[str, Steering] = field(default_factory=dict)
    nice_changed: frozenset[str] = frozenset()
    """Jobs with another Nice than the one that we gave them; said of each once, as it is their
    author's from then on (``Steering.foreign``)."""
    opted_out: Mapping[str, Steering] = field(default_factory=dict)
    """What we did to each job that has not ended before its owner opted it out; for reports."""
    racks: Mapping[str, str] = field(default_factory=dict)
    """Node -> its leaf switch; empty without a tree, or where the policy does not look at it."""
    slurm_version: tuple[int, int, int] = (0, 0, 0)
    priority_returns: bool = False
    """Whether a moved job gets the priority back that its requeue takes
    (``priority_after_requeue``); else it may be the last of all."""
    age: AgePriority = field(default_factory=AgePriority)
    """What an update does to a waiting job's priority."""
    keeps_ages: bool = False
    """Whether a job whose age such an update takes can keep its place
    (``age_after_list_update``)."""
    counted_ages: Mapping[int, float] = field(default_factory=dict)
    """Slurm's own number of a waiting job -> the age in its priority, in points, where places are
    exchanged and ages count; nothing where that could not be read."""
    in_order: bool = False
    """Whether a job that waits for a type keeps all behind it waiting (sched/builtin)."""
    preemption: Preemption = field(default_factory=Preemption)
    billing_rule: BillingRule = BillingRule.SUM
    queue_depth: int = USUAL_QUEUE_DEPTH
    """How many jobs Slurm looks at in a scheduling pass, each once for every partition of it."""

    @cached_property
    def free_gpus(self) -> Mapping[str, Mapping[str, int]]:
        """Node -> GPU type -> GPUs that are idle, of usable nodes outside reservations that are
        awake; computed once for all that ask in a tick."""
        closed = self.reserved_nodes()
        return {
            node.name: {
                kind: max(0, count - node.gpus_used.get(kind, 0))
                for kind, count in node.gpus.items()
            }
            for node in self.nodes.values()
            if node.usable and not node.asleep and node.name not in closed
        }

    @cached_property
    def asleep(self) -> frozenset[str]:
        """Partitions in which a job that starts now waits until a node has booted."""
        return asleep_partitions(self.nodes.values(), self.reserved_nodes())

    @cached_property
    def giving_way(self) -> Mapping[str, str]:
        """Partition -> its PreemptMode, of those whose jobs give way to jobs of a higher tier on
        the same nodes; computed once for all moves of a tick."""
        known = self.partitions.values()
        return {
            one.name: one.preempt_mode.upper()
            for one in known
            if one.preempt_mode.upper() != "OFF" and one.priority_tier < highest_tier(one, known)
        }

    @cached_property
    def gpu_types(self) -> Mapping[str, frozenset[str]]:
        """Partition -> the GPU types of its nodes; computed once for all jobs of a tick."""
        return {
            name: frozenset(
                kind for node in one.nodes if node in self.nodes for kind in self.nodes[node].gpus
            )
            for name, one in self.partitions.items()
        }

    @cached_property
    def throttled_arrays(self) -> frozenset[int]:
        """Arrays of which tasks wait for others to end (``--array=...%N``)."""
        return frozenset(
            job.array_job_id
            for job in self.jobs.values()
            if job.array_job_id and job.reason == "JobArrayTaskLimit"
        )

    @cached_property
    def _queue(self) -> list[tuple[float, int]]:
        """Priority and number, turned, of the jobs that wait: the last of all first. Tasks that
        Slurm keeps in one record count once."""
        waiting = {job.raw_id: job for job in self.jobs.values() if job.state is JobState.PENDING}
        return sorted((job.priority, -id_) for id_, job in waiting.items() if job.priority > 0)

    def others_ahead(self, job: Job, points: float) -> bool:
        """Whether other jobs wait ahead of this one with up to ``points`` more priority."""
        first = bisect_right(self._queue, (float(job.priority), -job.raw_id))
        return first < bisect_right(self._queue, (job.priority + points, inf))

    @cached_property
    def dependents(self) -> Dependents:
        """The waiting jobs that depend on others; computed once for all moves of a tick."""
        return dependents(self.jobs.values())

    @cached_property
    def limit_waiters(self) -> LimitWaiters:
        """The waiting jobs at a limit of Slurm; computed once for all moves of a tick."""
        return limit_waiters(self.jobs.values())

    def is_member(self, user: str, group: str) -> bool:
        """Whether a user belongs to a group, by the system's databases; each is looked up once."""
        key = (user, group)
        if key not in self.members:
            self.members[key] = is_member(user, group)
        return self.members[key]

    def reserved_nodes(self, horizon_s: float = 600.0) -> set[str]:
        """Nodes under a reservation that is active, or begins within ``horizon_s``."""
        return {
            node
            for reservation in self.reservations
            if reservation.start_s <= self.now + horizon_s and reservation.end_s > self.now
            for node in reservation.nodes
        }

    def steered(self, job: str) -> Steering:
        """What we did to a job so far."""
        return self.steering.get(job, _NOT_STEERED)

    def record_of(self, job: str) -> Steering:
        """As :meth:`steered`, also of a job that opted out since."""
        return self.steering.get(job) or self.opted_out.get(job, _NOT_STEERED)

    def opted_out_jobs(self) -> dict[str, Job]:
        """The jobs that opted out and have not ended."""
        return {
            job.id: job
            for job in self.jobs.values()
            if job.opted_out and job.state is not JobState.FINISHED
        }


def read(cluster: Cluster, now: float, config: Config, own_uid: int) -> Observation:
    """One bulk query of each kind. Raises SlurmError when any of them fails: no partial data."""
    jobs = {
        job.id: opted_in(job, config, job.partitions)
        for job in cluster.read_jobs(None, config.guards.max_jobs_per_array)
    }
    if config.site.rights == "user":
        jobs = {
            job.id: job if job.uid == own_uid else _left_alone(job, "another user's job")
            for job in jobs.values()
        }
    nodes = {node.name: typed(node, config) for node in cluster.read_nodes()}
    _nothing_missing(jobs, nodes)
    _nodes_known(nodes)
    return Observation(
        now=now,
        jobs=jobs,
        nodes=nodes,
        partitions={partition.name: partition for partition in cluster.read_partitions()},
        reservations=tuple(cluster.read_reservations()),
        slurm_version=cluster.slurm_version,
    )


def _nothing_missing(jobs: Mapping[str, Job], nodes: Mapping[str, Node]) -> None:
    for job in jobs.values():
        if job.managed and job.state is JobState.RUNNING:
            for name in job.nodes:
                if name not in nodes:
                    raise SlurmError(
                        f"Slurm shows job {job.id} on node {name} but no such node: its answer "
                        "about the nodes is not whole",
                        retry=True,
                    )


def _nodes_known(nodes: Mapping[str, Node]) -> None:
    """A slurmctld that has just started shows all nodes, but none that a job could use."""
    with_gpus = [node for node in nodes.values() if node.gpus]
    unknown = sum(node.state.startswith("UNKNOWN") for node in with_gpus)
    # Half of them: where SlurmdTimeout is 0 a dead node stays unknown.
    if unknown > len(with_gpus) / 2:
        raise JustStartedError(
            f"Slurm does not know {unknown} of {len(with_gpus)} nodes with GPUs yet: slurmctld "
            "has just started",
            retry=True,
        )


def remember(jobs: Mapping[str, Job]) -> dict[str, Steering]:
    """What we did to each managed job, as the jobs themselves carry it."""
    steering_of = {}
    for job in jobs.values():
        if job.managed:
            decoded = steering.decode(job.admin_comment)
            if decoded is not None:
                steering_of[job.id] = decoded
    return steering_of


def typed(node: Node, config: Config) -> Node:
    """The node with its untyped GPUs named by the feature that the site gives their type."""
    if UNTYPED not in node.gpus:
        return node
    names = [name for name, gpu in config.gpu_types.items() if gpu.feature in node.features]
    if len(names) != 1:
        return node
    name = names[0]
    return _replaced(node, _renamed(node.gpus, name), _renamed(node.gpus_used, name))


def _renamed(gpus: Mapping[str, int], name: str) -> dict[str, int]:
    renamed = {kind: count for kind, count in gpus.items() if kind != UNTYPED}
    renamed[name] = renamed.get(name, 0) + gpus.get(UNTYPED, 0)
    return renamed


def _replaced(node: Node, gpus: Mapping[str, int], used: Mapping[str, int]) -> Node:
    return replace(node, gpus=gpus, gpus_used=used)


def may_come_from_opt_in(job: Job, config: Config) -> bool:
    """Whether a job that declared nothing may have been in an opt-in partition before it was given
    those that this one stands for."""
    names = config.partitions.opt_in
    members = {one for name in names for one in config.partitions.groups.get(name, ())}
    return job.declaration is None and bool(job.partitions) and set(job.partitions) <= members


def opted_in(job: Job, config: Config, partitions: Collection[str]) -> Job:
    """The job with the declaration that being submitted in these partitions is; by itself where
    that is none."""
    if job.declaration is not None or job.declaration_error or job.state is JobState.FINISHED:
        return job
    if not set(partitions) & set(config.partitions.opt_in):
        return job
    kinds = tuple(config.wrapper.default_types.split(",")) if config.wrapper.default_types else ()
    return replace(job, declaration=Declaration(types=kinds), by_partition=True)


def _left_alone(job: Job, why: str) -> Job:
    return replace(job, declaration=None, declaration_error=why if job.declaration else "")
