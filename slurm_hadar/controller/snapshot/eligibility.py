"""Which jobs take part in a round, where each is, and why the others do not."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.assumed_work import EarlierJobs, Likeness
from slurm_hadar.controller.snapshot.chaining import ChainRecord
from slurm_hadar.controller.snapshot.resource_request import (
    ResourceRequest,
    as_submitted,
    resource_request,
)
from slurm_hadar.controller.snapshot.restart_costs import RestartCosts
from slurm_hadar.controller.snapshot.whole_nodes import WholeNodes
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, Job, JobState
from slurm_hadar.domain.node import Node
from slurm_hadar.domain.placement import by_type
from slurm_hadar.domain.steering import Steering

_LONGEST_LEASE_S = 3600.0 + 60.0
"""The longest that earlier versions knew, and a minute, as clocks differ: a begin time further
ahead is its owner's."""
_OWN_HOLD = frozenset(
    ("JobHeldUser", "JobHeldAdmin", "Priority", "Resources", "Dependency", "BeginTime", "None", "")
)
"""Reasons of a job that a person holds; most of them are those that it waited for before."""
KEPT_WAITING = "Slurm keeps it waiting"
OWN_BEGIN_TIME = "its owner set a begin time"
NEVER_MET = "its dependency can never be met: the job that it depends on has ended otherwise"

Place = Mapping[str, Mapping[str, int]]
"""node -> GPU type -> GPUs."""


@dataclass(frozen=True)
class ControllerHistory:
    """What the controller remembers. ``attained``: job -> GPU-seconds received; ``moving``: jobs in
    the middle of a move -> where they are going; ``last_moves``: job -> time of its last move, s;
    ``failed_moves``: job -> failed moves in a row: save requests without an answer, and
    places where Slurm did not start it; ``refused_moves``: those of them whose place Slurm refused;
    ``understated``: uid -> how many times what they
    declared the user's jobs took, where that is more than once; ``chains``: job -> its requeues
    at its time limit; ``earlier``: what ended jobs were, by user, name and model; ``outgrown``: as
    ``understated``, of the work that was assumed from these; ``restarts``: what restarts cost so
    far; ``arrivals``: job that the controller requeued -> its submission, s.
    """

    attained: Mapping[str, float] = field(default_factory=dict)
    moving: Mapping[str, Place] = field(default_factory=dict)
    last_moves: Mapping[str, float] = field(default_factory=dict)
    failed_moves: Mapping[str, int] = field(default_factory=dict)
    refused_moves: Mapping[str, int] = field(default_factory=dict)
    understated: Mapping[int, float] = field(default_factory=dict)
    chains: Mapping[str, ChainRecord] = field(default_factory=dict)
    earlier: Mapping[Likeness, EarlierJobs] = field(default_factory=dict)
    outgrown: Mapping[int, float] = field(default_factory=dict)
    restarts: RestartCosts = field(default_factory=RestartCosts)
    arrivals: Mapping[str, float] = field(default_factory=dict)

    def arrival_s(self, job: Job) -> float:
        """When a job was submitted: Slurm counts a requeue as a submission."""
        if job.restarts == 0:
            return job.submit_s
        return min(job.submit_s, self.arrivals.get(job.id, job.submit_s))


@dataclass(frozen=True)
class SchedulableJob:
    """A managed job that takes part in this round."""

    job: Job
    request: ResourceRequest
    held: Place = field(default_factory=dict)
    """Where it runs or is moved to; empty where it waits."""
    starting: bool = False
    """It is on its way: requeued, and not running yet."""


def profile_key(job: Job) -> str:
    """Name under which a job's speed is kept: its declared model, else its own name."""
    declaration = job.declaration or Declaration()
    return declaration.model or "~" + "".join(c if c.isalnum() else "_" for c in job.name[:60])


def batch_of(job: Job) -> int | None:
    """The declared global batch, the least of a range; None where it was not declared."""
    return job.declaration.batch[0] if job.declaration and job.declaration.batch else None


def tasks_of(job: Job) -> int:
    """Equal parts of a global batch that may run one after another, 1 where none are declared."""
    return job.declaration.tasks if job.declaration else 1


def placed(job: Job, nodes: Mapping[str, Node]) -> dict[str, dict[str, int]]:
    """GPUs that a running job holds, with untyped ones named by their node's type."""
    held: dict[str, dict[str, int]] = {}
    for name, gpus in job.gpus.items():
        node = nodes.get(name)
        if node is None:
            continue
        only = next((kind for kind in node.gpus if kind != UNTYPED), "")
        row = held.setdefault(name, {})
        for kind, count in gpus.items():
            row[kind or only] = row.get(kind or only, 0) + count
    return held


def gpus_of(job: Job, nodes: Mapping[str, Node]) -> dict[str, int]:
    """GPUs by type that a running job holds; :func:`by_type` of :func:`placed` for most jobs, in
    half the time."""
    if len(job.gpus) == 1:
        ((name, held),) = job.gpus.items()
        if name in nodes and UNTYPED not in held:
            return dict(held)
    return by_type(placed(job, nodes))


def schedulable_jobs(
    observation: Observation, config: Config, moving: Mapping[str, Place]
) -> tuple[dict[str, SchedulableJob], dict[str, str]]:
    """The managed jobs of this round, and those left out of it with the reason.

    ``moving``: jobs in the middle of a move -> where they are going; they keep that place.
    """
    targets: dict[str, SchedulableJob] = {}
    excluded: dict[str, str] = {}
    starting: list[tuple[Job, ResourceRequest]] = []
    limited = pending_demand.at_limit(observation)
    whole_nodes = WholeNodes(observation)
    for job in observation.jobs.values():
        if not job.managed or job.state in (JobState.FINISHED, JobState.COMPLETING):
            continue
        steered = observation.steered(job.id)
        why_not = "" if job.id in moving else _why_not(job, observation)
        want = why_not or resource_request(job, steered, config)
        if isinstance(want, ResourceRequest):
            want = whole_nodes.fitted(job, want)
        released = job.state is JobState.PENDING and _is_released(job, observation, config)
        waits = job.state is JobState.PENDING and job.id not in moving and not released
        first = limited.get(pending_demand.payer(job)) if waits else None
        if isinstance(want, str):
            excluded[job.id] = want
        elif first is not None:
            excluded[job.id] = f"its owner is at a limit: job {first.id}, {first.reason}"
        elif job.id in moving:
            targets[job.id] = SchedulableJob(job, want, moving[job.id], starting=True)
        elif job.state is JobState.RUNNING:
            targets[job.id] = SchedulableJob(job, want, placed(job, observation.nodes))
        elif released:
            starting.append((job, want))
        else:
            targets[job.id] = SchedulableJob(job, as_submitted(job, steered, want))
    free = pending_demand.free_now(observation)
    for job, want in starting:
        place = _expected(observation, job.id, free)
        targets[job.id] = SchedulableJob(job, want, place, starting=bool(place))
    return targets, excluded


def obsolete_begin_time(job: Job, steered: Steering, now: float) -> bool:
    """Whether a waiting job has a begin time ahead that an earlier version of ours gave it, rather
    than its owner. Files of those versions, in use still, give them to new jobs too."""
    declared = bool(job.declaration and job.declaration.lease) and not steered.time
    given = max(job.submit_s, steered.time)
    return (
        (steered.leased or declared)
        and job.restarts == 0
        and now + 1 < job.eligible_s <= given + _LONGEST_LEASE_S
    )


def _why_not(job: Job, observation: Observation) -> str:
    if job.state is JobState.UNKNOWN or job.state is JobState.SUSPENDED:
        return f"its state is {job.slurm_state}"
    if any(
        observation.partitions[p].exclusive for p in job.partitions if p in observation.partitions
    ):
        return "its partition gives whole nodes"
    if job.state is JobState.PENDING:
        if job.held:
            return _held(job)
        if job.never_met:
            return (
                f"{NEVER_MET}; cancel it, or change the dependency: "
                f"scontrol update JobId={job.id} Dependency=afterany:OTHER"
            )
        if job.dependency:
            return "it waits for another job"
        if not pending_demand.competes_for_gpus(job, observation):
            return f"{KEPT_WAITING}: {job.reason}"
        # A requeue sets a begin time as well; that one its owner did not ask for.
        ahead = job.eligible_s > observation.now and job.restarts == 0
        if ahead and not obsolete_begin_time(job, observation.steered(job.id), observation.now):
            return OWN_BEGIN_TIME
    return ""


def _held(job: Job) -> str:
    if job.reason in _OWN_HOLD:
        return "it is held by its owner or an admin"
    return (
        f"it is held, and Slurm's reason is {job.reason}; once that is mended: "
        f"scontrol release {job.id}"
    )


def _is_released(job: Job, observation: Observation, config: Config) -> bool:
    steered = observation.steered(job.id)
    return (
        bool(steered.gpus)
        and max(job.eligible_s, job.not_before_s) <= observation.now + 1
        and observation.now - steered.time <= config.moving.commit_s
    )


def _expected(
    observation: Observation, job: str, free: pending_demand.Free
) -> dict[str, dict[str, int]]:
    """Where a released job will start: the planned nodes, else any with free GPUs."""
    steered = observation.steered(job)
    if "ReqNodeList" in steered.was and observation.jobs[job].required_nodes:
        return _required(observation.jobs[job], steered, free)
    names = [*(n for n in steered.nodes if n in free), *(n for n in free if n not in steered.nodes)]
    place: dict[str, dict[str, int]] = {}
    for kind, count in steered.gpus.items():
        left = count
        for name in names:
            part = min(left, free[name].get(kind, 0) - place.get(name, {}).get(kind, 0))
            if part > 0:
                place.setdefault(name, {})[kind] = part
                left -= part
        if left:
            return {}
    for name, gpus in place.items():
        for kind, count in gpus.items():
            free[name][kind] -= count
    return place


def _required(job: Job, steered: Steering, free: pending_demand.Free) -> dict[str, dict[str, int]]:
    """The nodes that we named to Slurm, when all of them have enough free GPUs; else nowhere."""
    names = job.required_nodes
    place = {name: dict(steered.nodes[name]) for name in names if name in steered.nodes}
    if len(place) < len(names):
        # A long list of nodes is not kept: copies have the same number everywhere.
        each = sum(steered.gpus.values()) // len(names)
        place = {name: dict.fromkeys(list(free.get(name, {}))[:1], each) for name in names}
    for name, gpus in place.items():
        if not gpus or any(free.get(name, {}).get(kind, 0) < n for kind, n in gpus.items()):
            return {}
    for name, gpus in place.items():
        for kind, count in gpus.items():
            free[name][kind] -= count
    return place
