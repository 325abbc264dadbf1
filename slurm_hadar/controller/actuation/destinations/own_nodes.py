"""Moves to a part of what a job holds: its nodes are kept for it while it is requeued.

Otherwise Slurm would give all that the job leaves to those that wait, the part that it keeps too.
:mod:`slurm_hadar.controller.actuation.running.node_reservations` keeps them, by a reservation.
"""

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.eligibility import Place
from slurm_hadar.domain.job import Job, JobState


def can_reserve(job: Job, place: Place, observation: Observation, config: Config) -> bool:
    """Whether a running job that is requeued to ``place`` can start there first, whatever waits.

    No reservation is made without an operator's rights, and no priority passes a job that waits in
    a partition of a higher tier.
    """
    if config.site.rights == "user" or not is_part(place, job.gpus):
        return False
    partitions = observation.partitions.values()
    tier = min((one.priority_tier for one in partitions if one.name in job.partitions), default=1)
    higher = {
        one.name
        for one in partitions
        if one.priority_tier > tier and not place.keys().isdisjoint(one.nodes)
    }
    return not any(
        other.state is JobState.PENDING and not higher.isdisjoint(other.partitions)
        for other in (observation.jobs.values() if higher else ())
    )


def is_part(place: Place, held: Place) -> bool:
    """Whether a job that holds ``held`` has as many GPUs on each node of ``place``."""
    return bool(place) and all(
        sum(gpus.values()) <= sum(held.get(name, {}).values()) for name, gpus in place.items()
    )
