"""Whether an exchange of places may be sent, and whether Slurm carried it out; where it did not,
all of it is taken back."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from slurm_hadar.controller.actuation.actions import Action
from slurm_hadar.controller.actuation.apply import ActionContext, Sent
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.cluster import Update


def unchanged_since_observed(
    context: ActionContext, actions: Sequence[Action]
) -> tuple[list[Action], Sent]:
    """The actions that may be sent: without any exchange where a job that takes part has another
    Nice by now than this tick saw, or is held, and without an owner's Nice that is not what it was,
    as an update would overwrite what its author has just set. One query, where a Nice is sent. The
    next tick decides anew."""
    ours = [a for a in actions if _exchanges(a)]
    given_back = [a for a in actions if "Nice" in a.fields and not _exchanges(a)]
    if not ours + given_back:
        return list(actions), Sent()
    named = frozenset(a.job.id for a in ours + given_back)
    try:
        shown = {job.id: job for job in context.cluster.read_jobs(sorted(named))}
    except SlurmError as error:
        why = f"no places are exchanged: what {len(ours)} jobs have by now is not known: {error}"
        left = [a for a in actions if a.job.id not in named]
        return left, Sent((why,) if ours else (), named)
    later = frozenset(a.job.id for a in given_back if shown.get(a.job.id, a.job).nice != a.job.nice)
    changed = [a.job.id for a in ours if not _as_seen(a.job, shown.get(a.job.id))]
    why = ""
    if changed:
        why = f"no places are exchanged: the Nice of job {changed[0]} has just been changed"
        later |= {a.job.id for a in ours}
    left = [a for a in actions if a.job.id not in later]
    return left, Sent((why,) if why else (), later)


def _as_seen(before: Job, now: Job | None) -> bool:
    if now is None or now.state is not JobState.PENDING:
        # It has begun or ended: an update of it changes no place in the queue.
        return True
    return now.nice == before.nice and now.held == before.held


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
    undone = [a for a in ours if not _carried_out(a, shown.get(a.job.id))]
    if not (undone or lost):
        return Sent()
    said = []
    lost |= {action.job.id for action in undone}
    for action in undone:
        if shown[action.job.id].state is JobState.PENDING:
            context.keep(action.job, _left_alone(action))
            said.append(f"job {action.job.id}: its Nice does not change; it is left alone")
    back = [a for a in ours if a.job.id not in lost and a.job.id in shown]
    back = [a for a in back if shown[a.job.id].state is JobState.PENDING]
    # Those that move down first, as when they were exchanged.
    back = sorted(back, key=lambda a: int(a.fields["Nice"]) >= a.job.nice)
    for action in back:
        # Its owner's Nice is known whatever becomes of the update.
        context.keep(action.job, _not_ours(action.steering))
    errors = context.cluster.apply([Update(a.job.id, {"Nice": str(a.job.nice)}) for a in back])
    for action, answer in zip(back, errors, strict=True):
        if answer is not None:
            said.append(f"job {action.job.id}: Nice {action.job.nice} is not set again: {answer}")
    return Sent(tuple(said))


def _exchanges(action: Action) -> bool:
    job = action.job
    return "Nice" in action.fields and job.state is JobState.PENDING and job.restarts == 0


def _carried_out(action: Action, job: Job | None) -> bool:
    old, new = action.job.nice, int(action.fields["Nice"])
    if job is None:
        return True
    if job.state is not JobState.PENDING:
        # It has begun. One that should have let another go first has not done so.
        return new < old
    return job.nice == new


def _not_ours(steering: Steering) -> Steering:
    return replace(steering, wrote={k: v for k, v in steering.wrote.items() if k != "Nice"})


def _left_alone(action: Action) -> Steering:
    ours = _not_ours(action.steering)
    was = {key: value for key, value in ours.was.items() if key != "Nice"}
    return replace(ours, was=was, foreign=(*ours.foreign, "Nice"))
