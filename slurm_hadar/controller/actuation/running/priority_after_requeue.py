"""A moved job's place in the queue: a requeue takes away the age that gave it its priority, and a
Nice gives that back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.cluster import Update
from slurm_hadar.slurm.times import begin_time, set_back

_MOST_NICE = 2_147_483_645
"""Slurm takes no more."""
_LEAST_PRIORITY = 1
"""Slurm shows no less of a job that is not held."""


@dataclass(frozen=True)
class MoveNice:
    """A Nice for a moved job. ``exact``: it has then the priority that it had, else maybe more.
    ``shown``: the job as it was when this was computed."""

    value: str
    exact: bool
    shown: Job


def restoring_nices(
    context: ActionContext,
    waiting: Sequence[tuple[Entry, Job]],
    now: float,
    least: Mapping[str, int],
) -> dict[str, MoveNice]:
    """The Nice that gives each moved job the priority that it had: a requeue takes its age away.
    ``least``: job -> the priority that it is to have at least.

    Slurm shows that after an update only, so one is sent that changes nothing. Thus a job never has
    less while it may start. Without those that may start already.
    """
    before = {
        job.id: (max(priority, least.get(job.id, 0)), job)
        for entry, job in waiting
        if isinstance(priority := entry.details.get("priority"), int)
        and (context.ages or job.id in least)
        and steering_of(entry.details, now).gpus
        and job.eligible_s > now + 1
        and not set_back(job, now)
    }
    if not before:
        return {}
    same = [
        Update(id_, {"StartTime": begin_time(job.eligible_s)}) for id_, (_, job) in before.items()
    ]
    errors = context.cluster.apply(same)
    names = [update.job_id for update, error in zip(same, errors, strict=True) if error is None]
    try:
        shown = context.cluster.read_jobs(names) if names else []
    except SlurmError:
        return {}
    return {
        job.id: _nice(job, before[job.id][0])
        for job in shown
        if job.state is JobState.PENDING and 0 < job.priority < before[job.id][0]
    }


def _nice(job: Job, priority: int) -> MoveNice:
    exact = job.priority > _LEAST_PRIORITY
    # With a Nice of 0 it has some priority, so with this one it has enough.
    wanted = job.nice - (priority - job.priority) if exact else min(job.nice, 0) - priority
    return MoveNice(str(max(wanted, -_MOST_NICE)), exact, job)


def with_nice(ours: Steering, nice: MoveNice) -> Steering:
    """The steering of a job that gets this Nice, with its owner's to restore: the one that it has,
    unless that is ours."""
    is_ours = steering_store.has_our_nice(nice.shown, ours)
    was = ours.was if is_ours else {**ours.was, "Nice": str(nice.shown.nice)}
    # Slurm may not take it.
    before = {"Nice": ours.wrote["Nice"]} if is_ours and "Nice" in ours.wrote else {}
    wrote, unsure = {**ours.wrote, "Nice": nice.value}, {**ours.unsure, **before}
    return replace(ours, was=was, wrote=wrote, unsure=unsure)


def correct_nices(
    context: ActionContext, entries: Sequence[Entry], least: Mapping[str, int]
) -> None:
    """Correct the Nice of jobs that were released, where the one that they need was unknown.
    ``least``: as of :func:`restoring_nices`."""
    before = {
        entry.job: max(priority, least.get(entry.job, 0))
        for entry in entries
        if isinstance(priority := entry.details.get("priority"), int)
    }
    # Twice: the first time a job may get too much.
    for _ in range(2):
        try:
            shown = context.cluster.read_jobs(list(before)) if before else []
        except SlurmError:
            return
        wrong = []
        for job in shown:
            had, ours = before.get(job.id, 0), context.steering_of(job)
            too_much = steering_store.has_our_nice(job, ours) and job.priority > had
            waits = job.state is JobState.PENDING and job.priority > 0
            if waits and (job.priority < had or too_much):
                wrong.append((job, ours, _nice(job, had)))
        updates = [
            context.update(job, {"Nice": nice.value}, with_nice(ours, nice))
            for job, ours, nice in wrong
        ]
        answers = context.cluster.apply(updates) if updates else []
        unclear = {}
        for (job, ours, nice), error in zip(wrong, answers, strict=True):
            if error is None and not nice.exact:
                unclear[job.id] = before[job.id]
            elif error is not None and not error.retry:
                context.keep(job, ours)
        before = unclear
