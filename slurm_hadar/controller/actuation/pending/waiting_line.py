"""The jobs that wait, in Slurm's order without any exchange, and which of them may exchange."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.pending.lent_places import owners_nice
from slurm_hadar.controller.observation.access import allowed_partitions
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand, waits
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.job import Job
from slurm_hadar.scheduling.exchange_rule import ExchangeLevel


@dataclass(frozen=True)
class WaitingJob:
    """A job in the queue, with its priority ``plain``, without any exchange, and that of its own
    ``place``: another's, if it started from this one's."""

    job: Job
    plain: int
    place: int
    target: SchedulableJob | None = None
    """Of a job that may take part."""


def plain_priority(job: Job, observation: Observation) -> int:
    """The priority that a waiting job would have without any exchange."""
    # One that was requeued has a Nice for its lost age: that one is its own.
    return job.priority + (job.nice - owners_nice(job, observation) if job.restarts == 0 else 0)


def may_exchange(
    snapshot: Snapshot, observation: Observation, refused: Collection[str]
) -> dict[str, SchedulableJob]:
    """Job -> what is known of it, of those that may take part. ``refused``: those that may not."""
    return {
        id_: target
        for id_, target in snapshot.schedulable.items()
        if id_ not in refused and _takes_part(target, observation)
    }


def waiting_line(
    here: Mapping[str, SchedulableJob], observation: Observation, lost: Mapping[str, int]
) -> list[WaitingJob]:
    """All jobs that Slurm may start, in the order in which it would without any exchange."""
    found = []
    for job in observation.jobs.values():
        if job.may_start_at(observation.now):
            plain = plain_priority(job, observation)
            place = plain - lost.get(job.id, 0)
            found.append(WaitingJob(job, plain, place, here.get(job.id)))
    return sorted(found, key=lambda one: pending_demand.queue_key(one.job, observation, one.place))


def _takes_part(target: SchedulableJob, observation: Observation) -> bool:
    """Whether the job's priority is one number that its Nice changes, and the controller's to
    change. One that was requeued has a Nice for its lost age, and an array is many jobs."""
    job = target.job
    partitions = [
        observation.partitions[name] for name in job.partitions if name in observation.partitions
    ]
    return (
        job.may_start_at(observation.now)
        and not target.starting
        and job.restarts == 0
        and not job.array_job_id
        and not (job.external or job.other_gres)
        and not (job.per_gpu or job.exclusive)
        and job.priority > 1
        and pending_demand.competes_for_gpus(job, observation)
        and "Nice" not in observation.steered(job.id).foreign
        and len({(one.priority_tier, one.priority_factor) for one in partitions}) == 1
    )


def exchange_group(
    one: WaitingJob, observation: Observation, config: Config
) -> tuple[object, ...] | None:
    """Jobs of one group ask for the same places, and may exchange theirs; None: with no job."""
    if one.target is None:
        return None
    job, want = one.job, one.target.request
    groups = config.partitions.groups if want.of_one_type else {}
    open_to_it = allowed_partitions(job, want.partitions, observation.partitions, groups)
    if len({(part.priority_tier, part.priority_factor) for part in open_to_it}) != 1:
        return None
    same = (
        pending_demand.rank(job, observation)[0],
        frozenset(part.name for part in open_to_it),
        want.constraint,
        want.types,
        want.form,
        job.features,
        job.required_nodes,
        job.excluded_nodes,
    )
    return (*ExchangeLevel(config.queue.exchange).group(job.uid, job.account, job.qos), *same)


def requested(job: Job) -> list[float]:
    """What a job asks for: nodes, GPUs, CPUs, MB, s. Without an amount it has all of the memory."""
    memory = job.mem_per_node_mb * job.node_count or job.mem_per_cpu_mb * job.cpus or np.inf
    gpus = waits.gpus_asked(job)
    return [job.node_count, gpus, job.cpus, memory, job.tasks, job.exclusive, job.time_limit_s]
