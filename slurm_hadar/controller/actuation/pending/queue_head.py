"""Which waiting jobs are near enough to the head of Slurm's queue for a list of partitions."""

from collections.abc import Sequence

from slurm_hadar.config import Config, group_types
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.resource_request import declares
from slurm_hadar.domain.job import Job

_LARGEST = 200
"""Partitions that all lists together name at most, however many jobs Slurm looks at: a tick may
have to send each of these lists."""
MOST_TAKEN_BACK = 50
"""Lists that one tick takes back: with rl_enable Slurm takes two updates in a second."""


def most_records(queue_depth: int) -> int:
    """Partitions that all lists together may name: half of the jobs that Slurm looks at in a pass,
    since it looks at a job once for each; 50 at Slurm's defaults."""
    return min(queue_depth // 2, _LARGEST)


def records_with_lists(queue_depth: int) -> int:
    """As many stay as they are. What is beyond, as after many submissions between two ticks, is
    taken back: jobs behind, of whatever partition, would be beyond Slurm's look."""
    return most_records(queue_depth) * 3 // 2


def has_capacity(observation: Observation) -> bool:
    """Whether new jobs may come with a list of partitions; see :func:`most_records`. Slurm does
    not look at jobs that are held or may not begin yet."""
    waiting = [
        job
        for job in observation.jobs.values()
        if job.managed
        and job.may_start_at(observation.now)
        and not job.reason.startswith("Dependency")
    ]
    listed = sum(len(job.partitions) for job in waiting if len(job.partitions) > 1)
    return listed < most_records(observation.queue_depth)


def too_deep(
    deep: Sequence[Sequence[SchedulableJob]], used: int, observation: Observation, config: Config
) -> dict[str, tuple[str, ...]]:
    """Jobs far from the head of the queue with a list that is not their owner's -> what their owner
    typed. ``deep``: records behind those that get a list, in Slurm's order; ``used``: partitions
    that the lists at the head name."""
    found: dict[str, tuple[str, ...]] = {}
    kept, taken_back = records_with_lists(observation.queue_depth) - used, 0
    for targets in deep:
        job = targets[0].job
        typed = typed_partitions(job, observation, config)
        if len(job.partitions) <= len(typed):
            continue
        if kept >= len(job.partitions):
            kept -= len(job.partitions)
        elif taken_back < MOST_TAKEN_BACK:
            taken_back += 1
            found |= {target.job.id: typed for target in targets}
    return found


def typed_partitions(job: Job, observation: Observation, config: Config) -> tuple[str, ...]:
    """What the owner typed, where hbatch or a tick made a list of it; else what Slurm shows."""
    found = job_updates.asked_for(job, observation.steered(job.id), config)
    return tuple(found["Partition"].split(",")) if "Partition" in found else job.partitions


def is_whole(job: Job, typed: Sequence[str], config: Config) -> bool:
    """Whether its list has all partitions with a GPU type that the job accepts of those that
    ``typed`` stands for."""
    members = group_types(config).get(",".join(typed), {})
    return job.declaration is not None and all(
        name in job.partitions or not declares(job.declaration, kind, config)
        for name, kind in members.items()
    )
