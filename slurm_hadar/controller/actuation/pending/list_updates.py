"""What an update of its partitions does to the place of a waiting job in Slurm's queue, beside what
the new list does: Slurm computes its priority anew (:mod:`slurm_hadar.slurm.waiting_age`)."""

from collections.abc import Collection, Mapping

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.waiting_age import PASS_S

_LEAST_POINTS = 1.0
"""Slurm's priorities are whole numbers."""


def would_change_places(job: Job, steered: Steering, observation: Observation) -> bool:
    """Whether another job could start first, or this one before another, by an update of its
    partitions alone. A list of ours that makes it wait is widened all the same."""
    if steered.until:
        return False
    if observation.age.is_forgotten:
        if not takes_age(job, observation):
            return False
        if observation.keeps_ages and _waited_s(job, observation) <= observation.age.period_s:
            # Slurm may not have counted it yet: age_after_list_update decides, which asks.
            return False
        if not can_keep_age(job, observation):
            return True
    return would_pass(job, observation)


def would_pass(job: Job, observation: Observation) -> bool:
    """Whether a job that Slurm counts anew could start before another: in the end its age of that
    moment counts, while others have theirs of the last time."""
    gained = observation.age.in_a_period(_waited_s(job, observation))
    return gained >= _LEAST_POINTS and observation.others_ahead(job, gained)


def can_keep_age(job: Job, observation: Observation) -> bool:
    """Whether the job keeps its place while an update takes its age: its Nice may be another one
    for some seconds (:mod:`.age_after_list_update`). An array's is that of all its tasks, and after
    a requeue it may stand for the age that was lost by that."""
    ours = observation.steered(job.id)
    requeued = "Nice" in ours.was and job.restarts > 0
    others = requeued or "Nice" in ours.foreign
    return observation.keeps_ages and not others and not job.array_tasks


def comes_later(fields: Mapping[str, str], job: Job, observation: Observation) -> bool:
    """Whether the list in these ``fields`` of one update has to wait for a later one: it takes the
    job's age, and a Nice in them gives the job another place, or its own again, as if it had its
    age. Only one of the two can be kept."""
    return (
        "Nice" in fields
        and fields.get("Partition", ",".join(job.partitions)) != ",".join(job.partitions)
        and takes_age(job, observation)
    )


def without_list(fields: Mapping[str, str]) -> dict[str, str]:
    """``fields`` without the list, and without the features that go with it."""
    return {key: value for key, value in fields.items() if key not in ("Partition", "Features")}


def notes(staying: Collection[str]) -> dict[str, str]:
    """What is said of each job whose list stays as it is for :func:`would_change_places`, or for
    :func:`comes_later`."""
    said = (
        "; its list of partitions stays as it is for now: Slurm would compute its priority anew, "
        "and another job could change places with it"
    )
    return dict.fromkeys(staying, said)


def gives_back(job: Job, names: Collection[str], steered: Steering) -> bool:
    """Whether the job's list is ours and lacks one of these partitions, in which its owner lets it
    start: they were left out while they started no jobs."""
    ours = steered.wrote.get("Partition") == ",".join(job.partitions)
    return ours and "Partition" in steered.was and not {*names} <= {*job.partitions}


def opens_a_free_gpu(job: Job, names: Collection[str], observation: Observation) -> bool:
    """Whether a list of these partitions adds one with a free GPU, on which the job may start at
    once: none behind it that could have that one has taken it."""
    added = [observation.partitions[name] for name in names if name not in job.partitions]
    return any(
        sum(observation.free_gpus.get(node, {}).values()) >= sum(job.request.gpus.values())
        for partition in added
        for node in partition.nodes
    )


def takes_age(job: Job, observation: Observation) -> bool:
    """Whether the update takes an age from the job that Slurm has to count again."""
    return observation.age.lost(_waited_s(job, observation)) >= _LEAST_POINTS


def counts_again(steered: Steering, observation: Observation) -> bool:
    """Whether an update makes Slurm count the age that our last one took from the job."""
    settled = observation.now - steered.time >= PASS_S
    return steered.age_lost and settled and "Partition" not in steered.foreign


def names_removed(job: Job, observation: Observation, config: Config) -> bool:
    """Whether the list of a job that asked for a group names a partition in which no job starts
    and that is in no group of the site any more, so that it is about to be removed from
    slurm.conf."""
    groups = config.partitions.groups
    if job.declaration is None or groups.keys().isdisjoint(job.declaration.partitions):
        # The list is its owner's.
        return False
    kept = {*groups, *(name for names in groups.values() for name in names)}
    return len(job.partitions) > 1 and any(
        name not in kept
        and not (name in observation.partitions and observation.partitions[name].up)
        for name in job.partitions
    )


def _waited_s(job: Job, observation: Observation) -> float:
    return observation.now - max(job.eligible_s, job.submit_s)
