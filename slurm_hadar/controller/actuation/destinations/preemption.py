"""Whether a job that is stopped makes way for those that the plan stops it for.

What it leaves goes to the next job in Slurm's order that fits. No place in the queue is borrowed:
where that is another job, the job would have stopped for nothing, so it runs on.
"""

from collections.abc import Collection, Sequence

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import placed
from slurm_hadar.domain.job import Job, JobState


def needless_preemptions(
    stopped: Sequence[Job], newcomers: Collection[str], observation: Observation
) -> dict[str, str]:
    """Jobs that would be stopped for nothing, with the reason. ``newcomers``: waiting jobs that the
    plan would start now."""
    if not stopped:
        return {}
    takers = _takers(observation, _left_by(stopped, observation))
    found = {}
    for job in stopped:
        there = [taker for name in job.gpus for taker in takers.get(name, ())]
        if not there:
            found[job.id] = "no job that waits fits where it runs"
        elif not set(there) & set(newcomers):
            found[job.id] = f"job {there[0]}, which waits, gets these GPUs first"
    return found


def sufficient_preemptions(jobs: Sequence[Job], most: int, observation: Observation) -> list[Job]:
    """Of running jobs that may be stopped, ``most`` at most: those without which fewer waiting jobs
    could start. The first of them go first."""

    def starting(stopped: Sequence[Job]) -> set[str]:
        return {
            taker
            for some in _takers(observation, _left_by(stopped, observation)).values()
            for taker in some
        }

    waiting = [id_ for id_, job in observation.jobs.items() if job.state is JobState.PENDING]
    vain = needless_preemptions(jobs, waiting, observation)
    found = [job for job in jobs if job.id not in vain][: max(0, most)]
    if not found:
        return []
    all_of_them = starting(found)
    for job in found[::-1]:
        rest = [one for one in found if one is not job]
        if starting(rest) >= all_of_them:
            found = rest
    return found


def _left_by(stopped: Sequence[Job], observation: Observation) -> pending_demand.Free:
    """What is free when these jobs have left."""
    free = pending_demand.free_now(observation)
    for job in stopped:
        pending_demand.give(placed(job, observation.nodes), free)
    return free


def _takers(observation: Observation, free: pending_demand.Free) -> dict[str, list[str]]:
    """Node -> the jobs that Slurm would start there with what is ``free``, in its order."""
    some = {name: gpus for name, gpus in free.items() if any(gpus.values())}
    found: dict[str, list[str]] = {}
    for job in sorted(
        observation.jobs.values(), key=lambda job: pending_demand.queue_key(job, observation)
    ):
        if not some:
            break
        if not _may_start(job, observation):
            continue
        claimed = pending_demand.pending_demand(job, observation, some)
        for name in claimed.gpus if claimed is not None else ():
            found.setdefault(name, []).append(job.id)
            if not any(some[name].values()):
                del some[name]
    return found


def _may_start(job: Job, observation: Observation) -> bool:
    """Whether it waits for its turn only; backfill may expect it to start later."""
    return job.may_start_at(observation.now) and pending_demand.competes_for_gpus(job, observation)
