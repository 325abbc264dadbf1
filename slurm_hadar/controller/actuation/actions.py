"""What can be done to a job, and the action that stops or moves a running one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.restored_request import restored
from slurm_hadar.controller.observation import racks
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import batch_choice, cpus
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.placement import Placement, by_type
from slurm_hadar.domain.steering import Steering

WOULD_STOP = "runs on; the policy would stop it for other jobs"
NOT_STOPPED = f"{WOULD_STOP}, which this site does not do (guards.preempt)"


class Kind(Enum):
    """What can be done to a job."""

    HINT = "hint"
    MOVE = "move"
    STOP = "stop"
    CHAIN = "chain"
    """A requeue before the time limit ends."""
    STOP_IDLE = "stop idle"
    """A stop of a job that leaves its GPUs idle."""


@dataclass(frozen=True)
class Action:
    """One thing to do. ``fields`` are Slurm's; ``steering`` is what the job will carry."""

    kind: Kind
    job: Job
    fields: Mapping[str, str]
    steering: Steering
    reason: str
    placement: Placement | None = None


def stop(
    target: SchedulableJob, why: str, observation: Observation, config: Config
) -> Action | None:
    """Make way for jobs that gain more: save, and wait in the queue like any other."""
    if not config.guards.preempt:
        return None
    job, steered = target.job, observation.steered(target.job.id)
    steering = Steering(time=observation.now, moves=steered.moves + 1, foreign=steered.foreign)
    steering = replace(steering, listed=steered.listed)
    return Action(Kind.STOP, job, restored(job, steered, config), steering, why)


def move(
    target: SchedulableJob,
    placement: Placement,
    observation: Observation,
    config: Config,
    pin: bool = False,
) -> Action | None:
    """Move a running job; ``pin``: to these very nodes. None where it is there already, or its
    owner changed it so that it may not go there."""
    held = by_type(target.held)
    steered = observation.steered(target.job.id)
    named = pin or placement.copies > 1 or racks.pinned(placement, observation.racks)
    elsewhere = named and set(target.held) != set(placement.nodes)
    other = elsewhere or cpus.differs(target.job, target.request, placement)
    said = observation.progress.get(target.job.id)
    other |= batch_choice.differs(target.job, placement, said, steered.batch)
    if held == dict(placement.gpus) and not other:
        return None
    if job_updates.owner_forbids(target, placement, observation, config):
        return None
    fields = job_updates.fields(target, placement, observation, config, pin)
    was = job_updates.originals(target.job, fields, steered.was, target.request.partitions)
    if pin or target.request.copies[1] > 1:
        fields = job_updates.in_full(placement, fields, was)
    steering = Steering(
        gpus=placement.gpus,
        nodes=placement.nodes,
        time=observation.now,
        moves=steered.moves + 1,
        was=was,
        batch=placement.batch or 0,
        wrote={key: fields.get(key, job_updates.current(target.job, key)) for key in was},
        foreign=steered.foreign,
        listed=steered.listed,
    )
    return Action(Kind.MOVE, target.job, fields, steering, placement.reason, placement)
