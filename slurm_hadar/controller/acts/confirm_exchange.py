"""Whether Slurm carried an exchange of places out; where it did not, all of it is taken back."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from slurm_hadar.controller.acts.acting import ActionContext, Sent
from slurm_hadar.controller.acts.actions import Action
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.cluster import Update

_ROUNDED = 2
"""Differences of priority up to this one may be Slurm's rounding."""


def confirm(context: ActionContext, actions: Sequence[Action], refused: Collection[str]) -> Sent:
    """Look whether Slurm has carried the exchanges out, and take all of them back where one was
    not: its partner would be ahead of jobs that take no part.

    Slurm ignores the Nice of a job whose priority was set directly. ``refused``: jobs of which it
    refused the update. The answer names those whose Nice is left alone from now on.
    """
    ours = [a for a in actions if _exchanges(a) and a.job.id not in refused]
    lost = {a.job.id for a in actions if _exchanges(a) and a.job.id in refused}
    if not ours:
        return Sent()
    try:
        shown = {job.id: job for job in context.cluster.read_jobs([a.job.id for a in ours])}
    except SlurmError as error:
        return Sent((f"whether Slurm set the Nice of {len(ours)} jobs is not known: {error}",))
    lost |= {a.job.id for a in ours if not _carried_out(a, shown.get(a.job.id))}
    if not lost:
        return Sent()
    waiting = [a for a in ours if a.job.id in shown and shown[a.job.id].state is JobState.PENDING]
    errors = context.cluster.apply([Update(a.job.id, {"Nice": str(a.job.nice)}) for a in waiting])
    said = [f"job {id_}: its Nice does not change its priority; it is left alone" for id_ in lost]
    for action, answer in zip(waiting, errors, strict=True):
        if answer is None:
            context.keep(action.job, _as_before(action, action.job.id in lost))
        else:
            said.append(f"job {action.job.id}: Nice {action.job.nice} is not set again: {answer}")
    return Sent(tuple(said))


def _exchanges(action: Action) -> bool:
    job = action.job
    return "Nice" in action.fields and job.state is JobState.PENDING and job.restarts == 0


def _carried_out(action: Action, job: Job | None) -> bool:
    old, new = action.job.nice, int(action.fields["Nice"])
    if job is None or job.state is not JobState.PENDING:
        # It has begun. One that should have let another go first has not done so.
        return new < old
    meant, got = old - new, job.priority - action.job.priority
    return job.nice == new and (abs(meant) <= _ROUNDED or meant * got > meant * meant / 2)


def _as_before(action: Action, lost: bool) -> Steering:
    ours, nice = action.steering, str(action.job.nice)
    was, wrote = dict(ours.was), {**ours.wrote, "Nice": nice}
    if lost or was.get("Nice") == nice:
        del wrote["Nice"]
        was.pop("Nice", None)
    foreign = (*ours.foreign, "Nice") if lost else ours.foreign
    return replace(ours, was=was, wrote=wrote, foreign=foreign)
