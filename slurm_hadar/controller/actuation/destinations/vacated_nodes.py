"""What jobs that wait could use together with what the moves of a tick leave.

A job on several nodes, or with its nodes alone, may not fit on what is free, but on that and what
moved jobs leave while they are requeued. Slurm chooses among all of it, so the place that a move
goes to may be gone then.
"""

from collections.abc import Sequence
from dataclasses import replace

from slurm_hadar.controller.actuation.destinations import host_capacity
from slurm_hadar.controller.actuation.destinations.crossing_moves import MovingJob
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import placed
from slurm_hadar.domain.job import Job, JobState


def possible_takers(
    moved: Sequence[Job],
    under_way: Sequence[MovingJob],
    waiting: Sequence[Job],
    observation: Observation,
    left: pending_demand.Free,
) -> dict[str, str]:
    """Node -> a job of ``waiting`` that could start there when all of ``moved`` and ``under_way``,
    the moves of earlier ticks, have left.

    ``left``: what is free now, is not set aside for moves under way, and no other job takes; none
    of ``waiting`` fits on it alone. What backfill keeps, which may be missing in it, is free too.
    """
    if not waiting:
        return {}
    leaving = [*moved, *(target.job for target in under_way)]
    # Slurm knows nothing of what is set aside for a job that is on its way.
    more = [placed(job, observation.nodes) for job in leaving] + [
        target.held for target in under_way
    ]
    free = {name: dict(left.get(name, gpus)) for name, gpus in observation.free_gpus.items()}
    for place in more:
        for name in place.keys() & free.keys():
            for kind, count in place[name].items():
                most = observation.nodes[name].gpus.get(kind, 0)
                free[name][kind] = min(most, free[name].get(kind, 0) + count)
    free = {name: gpus for name, gpus in free.items() if any(gpus.values())}
    after = without(leaving, observation)
    found: dict[str, str] = {}
    for job in waiting:
        for name in pending_demand.possible_nodes(job, after, free):
            found.setdefault(name, job.id)
    return found


def without(moved: Sequence[Job], observation: Observation) -> Observation:
    """The cluster with the CPUs and the memory free that these running jobs have."""
    ids = {job.id for job in moved}
    stay = {
        name
        for job in observation.jobs.values()
        if job.state not in (JobState.PENDING, JobState.FINISHED) and job.id not in ids
        for name in job.nodes
    }
    nodes = dict(observation.nodes)
    for job in moved:
        cpus, memory = host_capacity.has(job)
        for name in {*job.gpus} & nodes.keys():
            used = (nodes[name].cpus_used - cpus, nodes[name].memory_used_mb - memory)
            # What Slurm rounded up is free as well where all jobs of the node leave it.
            used = (max(0, used[0]), max(0, used[1])) if name in stay else (0, 0)
            nodes[name] = replace(nodes[name], cpus_used=used[0], memory_used_mb=used[1])
    return replace(observation, nodes=nodes)
