"""Which mails Slurm sends of a job: its MailType, which the list of jobs does not show."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_hadar.controller.actuation.actions import Action
from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.cluster import Cluster, Update

FIELD = "MailType"
_MAILS_OF_A_MOVE = ("BEGIN", "REQUEUE")


def switch_off(context: ActionContext, jobs: Sequence[Job]) -> None:
    """Keep Slurm from mailing the requeue and the start of a move to those who asked for mails of
    these (``--mail-type``). When the job runs again its owner's wish is restored."""
    try:
        asked = context.cluster.read_mail_types([job.raw_id for job in jobs])
    except SlurmError:
        # A mail more is no reason not to move.
        return
    updates = []
    for job in jobs:
        types, ours = asked.get(job.raw_id, ()), context.steering_of(job)
        left = ",".join(name for name in types if name not in _MAILS_OF_A_MOVE) or "NONE"
        if "MailType" not in ours.was and left != ",".join(types or ("NONE",)):
            was = {**ours.was, "MailType": ",".join(types)}
            wrote = {**ours.wrote, "MailType": left}
            ours = replace(ours, was=was, wrote=wrote)
            updates.append(context.update(job, {"MailType": left}, ours))
    if updates:
        # Refused, or not answered: there are more mails, and what is restored is what is there.
        context.cluster.apply(updates)


def restore(context: ActionContext, jobs: Sequence[Job]) -> None:
    """Restore the mails of jobs that are held in their move: a release, not the move, starts them.
    Where Slurm refuses it, their mails are restored when they run."""
    known = {job.id: context.steering_of(job) for job in jobs}
    ours = [job for job in jobs if FIELD in known[job.id].was]
    try:
        theirs = of_others(context.cluster, ours, known)
    except SlurmError:
        return
    quiet = [job for job in ours if job.id not in theirs]
    updates = []
    for job in quiet:
        before = known[job.id]
        was, wrote = ({k: v for k, v in one.items() if k != FIELD}
                      for one in (before.was, before.wrote))  # fmt: skip
        without = replace(before, was=was, wrote=wrote)
        updates.append(context.update(job, {FIELD: before.was[FIELD] or "NONE"}, without))
    errors = context.cluster.apply(updates) if updates else []
    for job, error in zip(quiet, errors, strict=True):
        if error is not None:
            context.keep(job, known[job.id])


def of_others(
    cluster: Cluster, jobs: Sequence[Job], steering: Mapping[str, Steering]
) -> frozenset[str]:
    """Ids of those jobs whose MailType is other than what was written there last: another user has
    changed it since, and it stays. One query. Raises SlurmError."""
    if not jobs:
        return frozenset()
    shown = cluster.read_mail_types([job.raw_id for job in jobs])
    return frozenset(
        job.id
        for job in jobs
        # Of one without any Slurm shows no MailType.
        if {*shown.get(job.raw_id, ())} - {"NONE"}
        != _types(steering.get(job.id, Steering()).wrote.get(FIELD, ""))
    )


def without_others(
    cluster: Cluster,
    jobs: Sequence[Job],
    updates: Sequence[Update],
    steering: Mapping[str, Steering],
) -> list[Update]:
    """``updates`` of these jobs without a MailType that is not ours; see :func:`of_others`."""
    restored = [job for job, u in zip(jobs, updates, strict=True) if FIELD in u.fields]
    theirs = of_others(cluster, restored, steering)
    return [
        replace(update, fields={key: v for key, v in update.fields.items() if key != FIELD})
        if job.id in theirs
        else update
        for job, update in zip(jobs, updates, strict=True)
    ]


def still_ours(
    context: ActionContext, actions: Sequence[Action], steering: Mapping[str, Steering]
) -> tuple[list[Action], frozenset[str]]:
    """``actions`` without a MailType that is not ours, and the ids of those that wait for the next
    tick, since Slurm does not say. What has nothing left to send is remembered only. See
    :func:`of_others`."""
    restored = [action.job for action in actions if FIELD in action.fields]
    try:
        theirs = of_others(context.cluster, restored, steering)
    except SlurmError:
        later = frozenset(job.id for job in restored)
        return [action for action in actions if action.job.id not in later], later
    found = []
    for action in actions:
        if action.job.id not in theirs:
            found.append(action)
            continue
        fields = {key: value for key, value in action.fields.items() if key != FIELD}
        if fields or context.in_the_job:
            found.append(replace(action, fields=fields))
        else:
            context.keep(action.job, action.steering)
    return found, frozenset(action.job.id for action in actions) - {one.job.id for one in found}


def _types(text: str) -> set[str]:
    return {name for name in text.split(",") if name and name != "NONE"}
