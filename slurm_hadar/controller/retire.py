"""Giving all jobs back to Slurm: what an uninstall, or an admin who has seen enough, asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.job_updates import UNTIL_IT_RUNS, asked_for
from slurm_hadar.controller.actuation.pending import lent_places, owners_nices
from slurm_hadar.controller.actuation.restored_request import within_types
from slurm_hadar.controller.actuation.running import mail_type
from slurm_hadar.controller.actuation.running.requeued_job import begin_time_returned
from slurm_hadar.controller.lock import rival
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.eligibility import obsolete_begin_time
from slurm_hadar.domain import declaration
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.heartbeat import NAME
from slurm_hadar.exchange.prices import withdraw_prices
from slurm_hadar.slurm import pending
from slurm_hadar.slurm.cluster import Update
from slurm_hadar.slurm.times import at_once
from slurm_hadar.slurm.updates import command_line

if TYPE_CHECKING:  # hadar optout, which asks for a few of these functions, does without
    from slurm_hadar.controller.tick import Controller

_KIND = "retire"
_MORE_LOOKS = 2
_ENDED = ("already finished", "already completing or completed")
"""Slurm's messages about a job that has ended, and will not wait again."""


@dataclass(frozen=True)
class Retired:
    """Jobs that are Slurm's own now, and those that Slurm would not change, with its message.

    ``looked_at``: all jobs, by id. ``meant``: where nothing was changed, the fields that each of
    ``jobs`` would get. ``after_requeue``: of those that run with a changed request, the sentences
    of :func:`requeue_text`, by id. ``sent``: the updates that Slurm took.
    """

    jobs: tuple[str, ...]
    refused: dict[str, str]
    looked_at: Mapping[str, Job]
    meant: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    after_requeue: Mapping[str, str] = field(default_factory=dict)
    sent: tuple[Update, ...] = ()


def ordinary(
    job: Job,
    steered: Steering,
    now: float,
    config: Config,
    says_off: bool = True,
) -> Update:
    """What makes an ordinary job of a managed one: its Comment says ``off`` and no more of its
    declaration, or with ``says_off`` False nothing of ours at all, and while it waits, or is about
    to wait after a requeue, its request is the owner's again."""
    waits = job.state in (JobState.PENDING, JobState.COMPLETING)
    owners = asked_for(job, steered, config)
    fields = {key: value for key, value in owners.items() if waits or key in UNTIL_IT_RUNS}
    left = (job.declaration or Declaration()).left_alone()
    if waits:
        within = within_types(job, steered, fields, config, keeps_list=False)
        if within.get("Features") != fields.get("Features"):
            left = replace(left, added=within["Features"])
        fields = within
    if "Partition" in fields:
        left = replace(left, listed=())
    no_more = declaration.removed(job.comment)
    fields["Comment"] = declaration.merge(job.comment, left) if says_off else no_more
    if waits and obsolete_begin_time(job, steered, now):
        fields["StartTime"] = at_once(job, now)
    return Update(job.id, fields)


def without_nice(update: Update) -> Update:
    """For a job that has to stay held."""
    return replace(update, fields={k: v for k, v in update.fields.items() if k != "Nice"})


def requeue_text(
    job: Job,
    steered: Steering,
    config: Config,
    version: tuple[int, int, int],
) -> str:
    """Of a job that runs, where a requeue would show what was written for it: a sentence with the
    command that restores its request; else empty."""
    owners = asked_for(job, steered, config)
    owners = within_types(job, steered, owners, config, keeps_list=False)
    left = {key: value for key, value in owners.items() if key not in UNTIL_IT_RUNS}
    if job.state is not JobState.RUNNING or not left:
        return ""
    first = f"job {job.id} runs, and Slurm changes its request only while it waits"
    try:
        command = command_line(Update(job.id, left), version)
    except SlurmError as error:
        return f"{first}; no command restores it: {error}"
    return f"{first}: if it is ever requeued, give it its own with: {command}"


def retire(controller: "Controller", now: float, *, only_show: bool = False) -> Retired:
    """Make ordinary jobs of all that are ours and have not ended, and take the heartbeat away.
    Those that were requeued a moment ago, and still leave their nodes, are among them, and so are
    those that are not managed any more and have a Nice of ours. Users whose
    jobs exchange no places for a day may do so again.

    ``only_show``: name them, change nothing. Raises HadarError where another controller acts.
    """
    controller.rules.begin_tick(now)
    other = None if only_show else rival(controller.config, now)
    if other is not None:
        raise HadarError(
            f"a controller on {other} is active and would manage them again; stop it first"
        )
    observation = controller.observe()
    ours = [
        job
        for job in observation.jobs.values()
        if _is_ours(job) or (not job.managed and owners_nices.is_left(job, observation))
    ]
    if only_show:
        meant = {one.job_id: one.fields for one in _updates(ours, controller, observation, now)}
        texts = _requeue_texts(ours, controller.config, observation)
        return Retired(tuple(meant), {}, observation.jobs, meant, texts)
    _still(controller.config)
    answered = _made_ordinary(ours, controller, observation, now)
    texts = _requeue_texts(ours, controller.config, observation)
    for _ in range(_MORE_LOOKS):
        begun = [id_ for id_, (_, error) in answered.items()
                 if error and pending.BEGUN in str(error)]  # fmt: skip
        if not begun:
            break
        # They began after we looked; what is not there any more has ended.
        there = [job for job in controller.cluster.read_jobs(begun) if _is_ours(job)]
        texts |= _requeue_texts(there, controller.config, observation)
        answered = {id_: one for id_, one in answered.items() if id_ not in begun}
        answered |= _made_ordinary(there, controller, observation, now)
    done = {id_: update for id_, (update, error) in answered.items() if error is None}
    lent = lent_places.remembered(controller.store.policy_state(lent_places.NAME))
    free = lent_places.as_state(replace(lent, barred={}))
    controller.store.keep_policy_state(lent_places.NAME, free)
    return Retired(
        tuple(done),
        {
            id_: str(error)
            for id_, (_, error) in answered.items()
            if error is not None and not _has_ended(error)
        },
        observation.jobs,
        after_requeue={id_: text for id_, text in texts.items() if id_ in done},
        sent=tuple(done.values()),
    )


def _requeue_texts(ours: Sequence[Job], config: Config, observation: Observation) -> dict[str, str]:
    texts = {
        job.id: requeue_text(job, observation.steered(job.id), config, observation.slurm_version)
        for job in ours
        if job.managed
    }
    return {id_: text for id_, text in texts.items() if text}


def _updates(
    ours: Sequence[Job], controller: "Controller", observation: Observation, now: float
) -> list[Update]:
    # Being in an opt-in partition declares a job, unless it says otherwise.
    opts_in = bool(controller.config.partitions.opt_in)
    delay_s = controller.rules.requeue_delay_s
    moves = {e.job: e for e in controller.store.open_entries() if e.kind == Kind.MOVE.value}
    updates = []
    for job in ours:
        steered = observation.steered(job.id)
        if not job.managed:
            # Its Comment is its owner's.
            updates.append(Update(job.id, {"Nice": steered.was["Nice"]}))
            continue
        update = ordinary(job, steered, now, controller.config, opts_in)
        if not owners_nices.keeps_hold(job, observation.priority_returns):
            update = without_nice(update)
        if job.id in moves:
            freed = begin_time_returned(moves[job.id], job, now, delay_s)
            update = replace(update, fields={**update.fields, **freed})
        updates.append(update)
    return mail_type.without_others(controller.cluster, ours, updates, observation.steering)


def _made_ordinary(
    ours: Sequence[Job], controller: "Controller", observation: Observation, now: float
) -> dict[str, tuple[Update, SlurmError | None]]:
    """The updates with what Slurm says to them, by job; all of it stands in the journal."""
    updates = _updates(ours, controller, observation, now)
    store = controller.store
    with store.transaction():
        written = [store.begin(u.job_id, _KIND, "sent", now, {"fields": u.fields}) for u in updates]
    errors = pending.apply(controller.cluster, ours, updates, now)
    with store.transaction():
        for entry, error in zip(written, errors, strict=True):
            outcome = "an ordinary job again" if error is None else f"refused: {error}"
            ended = error is not None and _has_ended(error)
            store.end(entry, "it had ended" if ended else outcome, now)
    return {one.job_id: (one, error) for one, error in zip(updates, errors, strict=True)}


def _is_ours(job: Job) -> bool:
    # The comment, since a job of an opt-in partition may carry no declaration of its own.
    return job.managed and job.state not in (JobState.FINISHED, JobState.UNKNOWN)


def _has_ended(error: SlurmError) -> bool:
    return any(words in str(error) for words in _ENDED)


def _still(config: Config) -> None:
    file = config.site.exchange_dir / NAME
    try:
        file.unlink(missing_ok=True)
        withdraw_prices(config.site.exchange_dir)
    except OSError as error:
        raise HadarError(f"{file} cannot be removed ({error.strerror}); remove it first") from None
