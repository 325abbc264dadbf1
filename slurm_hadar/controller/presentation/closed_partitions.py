"""That a job waits while a partition of its list, or of its group, is not UP."""

from collections.abc import Iterable

from slurm_hadar.config import Config, group_types
from slurm_hadar.controller.actuation.pending.queue_head import typed_partitions
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.resource_request import declares
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Partition

_STARTS_QUEUED = ("UP", "DRAIN")
_MEANING = {
    "DOWN": "Slurm starts no job there",
    "DRAIN": "it takes no new job",
    "INACTIVE": "it takes no new job, and Slurm starts none there",
}
"""State of a partition -> what it means for jobs, by the manual of scontrol."""


def why_closed(job: Job, observation: Observation, config: Config) -> str:
    """Which partitions of a waiting job are not UP, in which state, and what follows; else empty.

    While a member of the group that its owner typed is not UP the controller leaves the job in the
    partition that its owner typed.
    """
    closed = partitions_not_up(job, observation, config)
    if not closed:
        return ""
    typed = typed_partitions(job, observation, config)
    states = " and ".join(
        f"partition {one.name} is {one.state} ({_MEANING.get(one.state, 'it is not UP')})"
        for one in closed
    )
    if closed[0].name not in (*job.partitions, *typed):
        (name,) = typed
        return (
            f"in its group {name}, {states}; until all are UP the job waits in partition {name}, "
            "as its owner typed it, and may start there on any GPU type that it accepts"
        )
    starts = [
        one.name for one in _known(job.partitions, observation) if one.state in _STARTS_QUEUED
    ]
    if starts and not {one.name for one in closed} <= {*starts}:
        return f"{states}; it may start in {' and '.join(starts)}"
    return states


def partitions_not_up(job: Job, observation: Observation, config: Config) -> list[Partition]:
    """Those in which a job waits, or that its owner typed, or else of the group of that."""
    if job.state is not JobState.PENDING:
        return []
    typed = typed_partitions(job, observation, config)
    own = [
        one for one in _known(dict.fromkeys((*typed, *job.partitions)), observation) if not one.up
    ]
    is_owners = "Partition" in observation.steered(job.id).foreign
    if own or not job.managed or job.declaration is None or is_owners:
        return own
    if typed != job.partitions:
        return []
    declared = job.declaration
    members = group_types(config).get(",".join(typed), {})
    accepted = [name for name, kind in members.items() if declares(declared, kind, config)]
    return [one for one in _known(accepted, observation) if not one.up]


def _known(names: Iterable[str], observation: Observation) -> list[Partition]:
    there = observation.partitions
    return [there[name] for name in names if name in there]
