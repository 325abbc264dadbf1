"""What jobs that are not ours hold, and what they are about to take.

Slurm starts a pending job by its priority. A plan that gave the same GPUs to a managed job of lower
priority would be vain at best, so such claims are set aside first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.observation.waiting_on_others import is_at_limit
from slurm_hadar.controller.snapshot.constraints import OpaqueConstraint, met
from slurm_hadar.domain.job import UNTYPED, Job, JobState
from slurm_hadar.domain.node import Node

_TURN = frozenset(
    {
        *("", "None", "Priority", "Resources", "BeginTime", "Cleaning"),
        # What 26.05 says in the place of Resources under block topologies (its source, acf2854820).
        "No_suitable_topology_unit_found",
    }
)

_AHEAD = ("reserved_for_jobs_in_higher_priority_partitions", "May_be_reserved_for_other_job")
"""How reasons end that Slurm gives where nodes are down or drained, and also where it keeps them
for a job ahead that waits in an overlapping partition."""

_OF_ONE_PARTITION = (
    *("PartitionDown", "PartitionInactive", "ReqNodeNotAvail"),
    "Nodes_required_for_job_are",
)
"""How reasons begin that Slurm gives for one partition, or its nodes, of the several in a list."""

_BLOCKED = (
    *(
        "Account",
        "Assoc",
        "BadConstraints",
        "BurstBuffer",
        "DeadLine",
        "Dependency",
        "FrontEndDown",
    ),
    *("Inactive", "Invalid", "JobArrayTaskLimit", "JobHeld", "JobLaunchFailure", "launch_failed"),
    *("Licenses", "Max", "NodeDown", "Nodes_required", "Partition", "Prolog", "QOS"),
    *("ReqNodeNotAvail", "Reserv", "SystemFailure"),
)
"""How the reasons of Slurm begin that keep a job waiting though GPUs are free."""

MOST = 10**10
"""CPUs or MB of a job that are counted: its owner may ask for what no array of numbers holds. Those
of all jobs of a node must fit in one together, in the millionths in which policies count."""

Payer = tuple[int, str, str]
"""Whom Slurm's limits look at: uid, account, QOS."""

Free = dict[str, dict[str, int]]
"""node -> GPU type -> GPUs free now."""


@dataclass(frozen=True, slots=True)
class PendingDemand:
    """GPUs that a pending job outside our management will get before any job below it."""

    job: str
    priority: int
    gpus: Mapping[str, Mapping[str, int]]
    """node -> type -> count."""


def free_now(observation: Observation) -> Free:
    """A copy of the free GPUs, for a caller that sets some of them aside."""
    return {name: dict(gpus) for name, gpus in observation.free_gpus.items()}


def competes_for_gpus(job: Job, observation: Observation) -> bool:
    """Whether a waiting job waits for its turn only.

    False where Slurm itself keeps it waiting: a limit, a dependency, a partition that is down,
    nodes that are drained or reserved, and every reason that we have not met. ``BeginTime`` stays
    for a moment after the begin time has come.
    """
    return job.reason.split(",")[0] in _TURN or _is_open(job, observation)


def _is_open(job: Job, observation: Observation) -> bool:
    """Whether a job may start that Slurm says waits for nodes or a partition that are not there."""
    return _is_behind(job, observation) or _is_open_elsewhere(job, observation)


def _is_open_elsewhere(job: Job, observation: Observation) -> bool:
    """Whether the reason is that of one partition of its list, where another has its nodes up."""
    if not job.reason.replace(" ", "_").startswith(_OF_ONE_PARTITION) or job.required_nodes:
        return False
    partitions = [
        observation.partitions[name] for name in job.partitions if name in observation.partitions
    ]
    able = [one for one in partitions if one.up and _has_nodes(one.nodes, job, observation)]
    return len(job.partitions) > 1 and bool(able)


def _has_nodes(names: Iterable[str], job: Job, observation: Observation) -> bool:
    up = sum(name in observation.nodes and observation.nodes[name].usable for name in names)
    return up >= max(1, job.node_count)


def _is_behind(job: Job, observation: Observation) -> bool:
    """Whether Slurm may keep the nodes of a waiting job for one ahead, as some of them are up."""
    if not job.reason.replace(" ", "_").endswith(_AHEAD):
        return False
    partitions = [
        observation.partitions[name] for name in job.partitions if name in observation.partitions
    ]
    names = job.required_nodes or [name for one in partitions for name in one.nodes]
    return any(observation.nodes[name].usable for name in names if name in observation.nodes)


def payer(job: Job) -> Payer:
    """On whose limits a job counts."""
    return job.uid, job.account, job.qos


def at_limit(observation: Observation) -> dict[Payer, Job]:
    """Who is at a limit of Slurm's, with a job of theirs that it keeps waiting for that."""
    return {payer(job): job for job in observation.jobs.values() if is_at_limit(job)}


def rank(job: Job, observation: Observation) -> tuple[int, int]:
    """Slurm's order: the partition's tier first, then the job's priority. Higher goes first."""
    tiers = [
        observation.partitions[p].priority_tier
        for p in job.partitions
        if p in observation.partitions
    ]
    return max(tiers, default=1), job.priority


def queue_key(
    job: Job, observation: Observation, priority: int | None = None
) -> tuple[int, int, int]:
    """Slurm's order as a key to sort by, the first to go first: tier, priority, and of equals the
    smaller number. ``priority``: in place of the job's own."""
    tier, own = rank(job, observation)
    return -tier, -(own if priority is None else priority), job.array_job_id or job.raw_id


def unmanaged_jobs(observation: Observation, managed_ids: Iterable[str]) -> list[Job]:
    """Pending jobs outside our management that Slurm would start as soon as GPUs are free.

    In Slurm's order, the first to go first.
    """
    return [
        job
        for job in possible_starts(observation, managed_ids)
        if not _expected_later(job, observation)
    ]


def possible_starts(observation: Observation, managed_ids: Iterable[str]) -> list[Job]:
    """Those, and the jobs whose start backfill expects for later, in Slurm's order. It expects that
    other jobs run for as long as they may; where one ends before, the next pass starts what fits.
    """
    skip = set(managed_ids)
    waiting = [
        job
        for job in observation.jobs.values()
        if job.may_start_at(observation.now)
        and job.id not in skip
        # A reason that a later version made up says nothing: it may start soon.
        and (not job.reason.replace(" ", "_").startswith(_BLOCKED) or _is_open(job, observation))
        and not job.reservation
    ]
    return sorted(waiting, key=lambda job: queue_key(job, observation))


def _expected_later(job: Job, observation: Observation) -> bool:
    return job.start_s > max(observation.now, job.eligible_s)


def pending_demand(
    job: Job, observation: Observation, free: Free, partly: bool = False
) -> PendingDemand | None:
    """Set a pending job's GPUs aside in ``free``; None when it would not fit now.

    ``partly``: what is free of them is set aside although it does not fit.

    A job that does not fit is not steered: its backfill keeps what that job needs from jobs that
    would delay it, and we never raise a priority.
    """
    request = job.request
    per_node = dict(request.per_node) or {
        kind: -(-count // max(1, job.node_count))
        for kind, count in (request.per_job or request.per_task).items()
    }
    if not per_node and not job.exclusive:
        return None
    taken: dict[str, dict[str, int]] = {}
    for name, gpus in _in_its_order(job, observation, free):
        # The cheapest test first: on a busy cluster few nodes have a GPU left.
        got = _take(per_node, gpus)
        if got is None or not _open(job, observation.nodes[name]):
            continue
        if job.exclusive:
            if observation.nodes[name].cpus_used:
                continue
            got = dict(gpus)
        taken[name] = got
        if len(taken) >= max(1, job.node_count):
            break
    if len(taken) < max(1, job.node_count) and not (partly and taken):
        return None
    for name, got in taken.items():
        for kind, count in got.items():
            free[name][kind] -= count
    return PendingDemand(job.id, job.priority, taken)


def possible_nodes(job: Job, observation: Observation, free: Free) -> list[str]:
    """The nodes of which Slurm might give a pending job a part, whichever it chooses of ``free``;
    empty where the job does not fit. GPUs of the whole job may be spread over any nodes."""
    request, nodes = job.request, max(1, job.node_count)
    whole = dict(request.per_job) or {
        kind: count * max(1, job.tasks) for kind, count in request.per_task.items()
    }
    if not request.per_node and not whole and not job.exclusive:
        return []
    least = request.per_node or dict.fromkeys(whole, 1)
    parts = nodes if request.per_node else max(nodes, sum(whole.values()))
    found = [
        name
        for name, gpus in free.items()
        if _take(least, gpus) is not None
        and _open(job, observation.nodes[name], parts)
        and not (job.exclusive and observation.nodes[name].cpus_used)
    ]
    total: dict[str, int] = {}
    for name in found:
        for kind, count in free[name].items():
            total[kind] = total.get(kind, 0) + count
    return found if len(found) >= nodes and _take(whole, total) is not None else []


def _in_its_order(
    job: Job, observation: Observation, free: Free
) -> Iterator[tuple[str, dict[str, int]]]:
    """The nodes as Slurm tries them: those of the first partition of the job's list come first."""
    if len(job.partitions) < 2:
        yield from free.items()
        return
    for number, partition in enumerate(job.partitions):
        before = frozenset(job.partitions[:number])
        for name, gpus in free.items():
            inside = observation.nodes[name].partitions
            if partition in inside and before.isdisjoint(inside):
                yield name, gpus


def accepted_by_others(observation: Observation) -> frozenset[str]:
    """GPU types that unmanaged jobs accept which accept several: where managed jobs leave out the
    slowest of them, these others are left with it."""
    classes = {
        (node.partitions, frozenset(node.features), frozenset(node.gpus))
        for node in observation.nodes.values()
    }
    known: dict[tuple[tuple[str, ...], str], set[str]] = {}
    found: set[str] = set()
    for job in observation.jobs.values():
        if job.managed or job.state not in (JobState.PENDING, JobState.RUNNING):
            continue
        if UNTYPED not in job.request.gpus:
            continue
        key = job.partitions, job.features
        if key not in known:
            known[key] = {
                kind
                for partitions, features, kinds in classes
                if not set(partitions).isdisjoint(job.partitions) and _met(job, features)
                for kind in kinds
                if kind != UNTYPED
            }
        if len(known[key]) > 1:
            found |= known[key]
    return frozenset(found)


def give(place: Mapping[str, Mapping[str, int]], free: Free) -> None:
    """Add GPUs (node -> type -> count) to ``free``, on the nodes that it has."""
    for name, gpus in place.items():
        for kind, count in gpus.items():
            if name in free:
                free[name][kind] = free[name].get(kind, 0) + count


def set_aside(gpus: Mapping[str, int], names: Iterable[str], free: Free) -> None:
    """Take GPUs (type -> count) out of ``free`` on these nodes, as far as they are there."""
    names = list(names)
    for kind, count in gpus.items():
        left = count
        for name in names:
            part = min(left, free.get(name, {}).get(kind, 0))
            if part > 0:
                free[name][kind] -= part
                left -= part


def cpus(job: Job) -> int:
    """CPUs of the whole job."""
    return min(job.cpus, MOST)


def memory_mb(job: Job) -> int:
    """Memory of the whole job in MB; 0 where it asks for none."""
    return min(job.mem_per_node_mb * job.node_count or job.mem_per_cpu_mb * job.cpus, MOST)


def _open(job: Job, node: Node, parts: int = 0) -> bool:
    """Whether Slurm could start a part of the job on the node, as far as we can tell: one of so
    many equal ``parts``, 0: as many as its nodes."""
    if not any(name in node.partitions for name in job.partitions):
        return False
    if node.name in job.excluded_nodes:
        return False
    if job.required_nodes and node.name not in job.required_nodes:
        return False
    parts = parts or max(1, job.node_count)
    if node.cpus - node.cpus_used < -(-job.cpus // parts):
        return False
    if node.memory_mb - node.memory_used_mb < memory_mb(job) // parts:
        return False
    return _met(job, frozenset(node.features))


def _met(job: Job, features: frozenset[str]) -> bool:
    try:
        return not job.features or met(job.features, features)
    except OpaqueConstraint:
        return True


def _take(per_node: Mapping[str, int], free: Mapping[str, int]) -> dict[str, int] | None:
    if sum(per_node.values()) > sum(free.values()):
        return None
    got: dict[str, int] = {}
    for kind, count in per_node.items():
        left = count
        for name in [kind] if kind != UNTYPED else list(free):
            part = min(left, free.get(name, 0) - got.get(name, 0))
            if part > 0:
                got[name] = got.get(name, 0) + part
                left -= part
        if left:
            return None
    return got
