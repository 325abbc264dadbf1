"""Carrying moves through: asked to save -> acknowledged -> requeued -> released.

Each step is taken from what Slurm and the job show now, so that it does not matter which controller
began it, nor whether it died in between. No job is ever held: after a requeue Slurm itself starts
it when its begin time has passed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_hadar.controller.actuation import repair
from slurm_hadar.controller.actuation.apply import ActionContext, write_unmoved_plan
from slurm_hadar.controller.actuation.entry_details import (
    STOOD_FIELDS,
    steering_of,
)
from slurm_hadar.controller.actuation.move_steps import (
    DROPPED,
    MOVED,
    REFUSED,
    MoveStep,
    decide_move,
)
from slurm_hadar.controller.actuation.running import mails, move_priority, poll_schedule
from slurm_hadar.controller.actuation.running.releases import (
    begin_time_returned,
    done_text,
    excluded_by_owner,
    release_of,
    steering_until_taken,
)
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation.returned_nodes import REQUEUED
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange.progress import Progress, read_all_progress
from slurm_hadar.slurm import pending
from slurm_hadar.slurm.cluster import Update

_DECIDED_NOW_S = 5.0
"""A move that was decided so short a time ago needs no second look at the cluster."""

Obstacles = Callable[[Sequence[tuple[Entry, Job]], Sequence[Entry]], Mapping[str, str] | None]
"""Moves that are about to be requeued, and the others under way -> why some would harm their jobs
now (:mod:`slurm_hadar.controller.actuation.running.still_open`); None: not known now."""


def _no_obstacle(ripe: Sequence[tuple[Entry, Job]], others: Sequence[Entry]) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class MoveResult:
    """What a step did: sentences for the operator, and the jobs that were released with the
    places where they go (job -> node -> type -> GPUs)."""

    said: tuple[str, ...]
    sent: Mapping[str, Mapping[str, Mapping[str, int]]]


def advance(
    context: ActionContext,
    jobs: Mapping[str, Job],
    progress: Mapping[str, Progress],
    now: float,
    obstacles: Obstacles = _no_obstacle,
    may_requeue: bool = True,
) -> MoveResult:
    """Take every open move one step further, from what is seen now. ``may_requeue``: whether there
    is time to see a job through that is requeued; else it runs on until the next tick."""
    entries = _open_moves(context)
    requeue: list[tuple[Entry, Job, float]] = []
    send_on: list[tuple[Entry, Job]] = []
    freed: list[Update] = []
    said: list[str] = []
    moving = context.config.moving
    repair.keep_holds(context, jobs.values())
    for entry in entries:
        job = jobs.get(entry.job)
        held = context.held(job) if job is not None else {}
        decided = decide_move(
            entry,
            job,
            progress.get(entry.job),
            held,
            now,
            ack_wait_s=moving.ack_wait_s,
            after_return_s=moving.after_return_s,
            excluded=excluded_by_owner(context, entry, job),
        )
        if decided.step is MoveStep.REQUEUE and job is not None:
            requeue.append((entry, job, decided.until))
        elif decided.step is MoveStep.SEND_ON and decided.job is not None:
            send_on.append((entry, decided.job))
        elif decided.step in (MoveStep.STAY, MoveStep.END):
            if job is not None and _began_by_itself(entry, job):
                _keep_as_either(context, entry, job)
            if job is not None and (decided.step is MoveStep.STAY or not job.managed):
                said += _correct_plan(context, job)
            context.store.end(entry.id, decided.outcome, now)
            said.append(f"job {entry.job}: {decided.outcome}")
            if job is not None and not job.managed:
                fields = begin_time_returned(entry, job, now, context.requeue_delay_s)
                freed += [Update(job.id, fields)] if fields else []
    if freed:
        context.cluster.apply(freed)
    if not may_requeue:
        requeue = []
    requeue, dropped = _still_right(requeue, entries, now, obstacles)
    for entry, job, why in dropped:
        said += _correct_plan(context, job)
        context.store.end(entry.id, f"{DROPPED}{why}", now)
        said.append(f"job {entry.job}: {DROPPED}{why}")
    said += _send_on(context, send_on, now)
    if requeue and poll_schedule.sees_it_through(context.cluster.traffic):
        said += _requeue(context, requeue, now)
    return MoveResult(tuple(said), destinations(entry for entry, _ in send_on))


def _still_right(
    requeue: Sequence[tuple[Entry, Job, float]],
    entries: Sequence[Entry],
    now: float,
    obstacles: Obstacles,
) -> tuple[list[tuple[Entry, Job, float]], list[tuple[Entry, Job, str]]]:
    """The moves to be requeued now, and those that are dropped, with the reason; what is in neither
    waits."""
    asked = [one for one in requeue if abs(now - one[0].opened_s) > _DECIDED_NOW_S]
    if not asked:
        return list(requeue), []
    ripe = {entry.id for entry, _, _ in requeue}
    others = [entry for entry in entries if entry.id not in ripe]
    found = obstacles([(entry, job) for entry, job, _ in asked], others)
    if found is None:
        return [one for one in requeue if one not in asked], []
    dropped = [(entry, job, found[job.id]) for entry, job, _ in asked if job.id in found]
    gone = {entry.id for entry, _, _ in dropped}
    return [one for one in requeue if one[0].id not in gone], dropped


def _correct_plan(context: ActionContext, job: Job) -> list[str]:
    """No later plan follows that would take the place of the move's. Returns complaints."""
    if job.state is JobState.RUNNING:
        return list(write_unmoved_plan(context, job))
    context.remove_plan(job)
    return []


def _began_by_itself(entry: Entry, job: Job) -> bool:
    """Whether a requeued job runs although the move's last update was not sent, or not answered."""
    return job.state is JobState.RUNNING and job.restarts != entry.details.get("restarts")


def _keep_as_either(context: ActionContext, entry: Entry, job: Job) -> None:
    """Its request may be as it stood before the move, or as the move wrote it: neither is a change
    by its owner. What it was before and is not known any more is compared no more."""
    stood, known = entry.details.get("stood"), context.steering_of(job)
    if not isinstance(stood, dict):
        return
    wrote = {
        key: value for key, value in known.wrote.items() if key in stood or key not in STOOD_FIELDS
    }
    context.keep(job, replace(known, wrote=wrote, unsure={**known.unsure, **stood}))


def settle(
    context: ActionContext,
    known: Mapping[str, Job],
    sleep: Callable[[float], None],
    why_not: Callable[[], str] = str,
    obstacles: Obstacles = _no_obstacle,
) -> list[str]:
    """Follow the open moves for a bounded time, as :mod:`.poll_schedule` says. Slurm is asked about
    these jobs only, and about all before one is requeued that was asked to save some time ago.

    ``known``: the jobs as this tick has seen them; ``why_not``: why nothing may be changed any
    more, empty where it may.
    """
    said: list[str] = []
    config = context.config
    schedule = poll_schedule.PollSchedule(context.cluster.traffic, config.moving.after_return_s)
    settle_s, longest_s = config.moving.settle_s, poll_schedule.longest_s(config)
    began, slept = context.clock(), 0.0
    ended: set[str] = set()
    while True:
        entries = _open_moves(context)
        if not entries:
            return said
        # One that ended when it was asked is requeued by the next tick; nothing else becomes of it.
        followed = [entry for entry in entries if entry.job not in ended]
        names = [entry.job for entry in followed]
        owners = {name: known[name].uid for name in names if name in known}
        progress = read_all_progress(config.site.exchange_dir, owners)
        stopped = why_not()
        if stopped:
            return [*said, f"moves in progress wait: {stopped}"]
        # The clock may be set back meanwhile, so the pauses are counted too.
        passed_s = max(slept, context.clock() - began)
        if schedule.due(followed, progress, passed_s, context.clock()):
            try:
                jobs = {job.id: _later(job, known) for job in context.cluster.read_jobs(names)}
            except SlurmError as error:
                return [*said, f"moves in progress continue at the next tick: {error}"]
            # Slurm may have taken longer to answer than a heartbeat lasts.
            stopped = why_not()
            if stopped:
                return [*said, f"moves in progress wait: {stopped}"]
            schedule.looked(followed, progress, jobs, passed_s)
            ended |= {id_ for id_, job in jobs.items() if job.state is JobState.FINISHED}
            in_time = passed_s <= settle_s
            said += advance(context, jobs, progress, context.clock(), obstacles, in_time).said
        passed_s = max(slept, context.clock() - began)
        if passed_s >= settle_s and (passed_s >= longest_s or not _requeued_ones(context)):
            return said
        sleep(poll_schedule.POLL_S)
        slept += poll_schedule.POLL_S


def _open_moves(context: ActionContext) -> list[Entry]:
    return [entry for entry in context.store.open_entries() if entry.kind == "move"]


def _requeued_ones(context: ActionContext) -> bool:
    """Whether a job that was requeued here is not released yet."""
    return any(entry.phase == REQUEUED for entry in _open_moves(context))


def _later(job: Job, known: Mapping[str, Job]) -> Job:
    """The job as it is shown now, with what only the tick's whole snapshot tells of it."""
    if job.id not in known or known[job.id].restarts != job.restarts:
        return job
    return replace(job, not_before_s=known[job.id].not_before_s)


def destinations(entries: Iterable[Entry]) -> dict[str, Mapping[str, Mapping[str, int]]]:
    """Where jobs in the middle of a move are going: job -> node -> type -> GPUs."""
    found = {}
    for entry in entries:
        if entry.kind == "move":
            found[entry.job] = steering_of(entry.details, entry.changed_s).nodes
    return found


def _requeue(
    context: ActionContext, moved: Sequence[tuple[Entry, Job, float]], now: float
) -> list[str]:
    """``moved``: with the time until which each may be requeued."""
    said: list[str] = []
    if not moved:
        return said
    mails.switch_off(context, [job for _, job, _ in moved])
    # ``now`` is when the jobs were read, which may be some time ago.
    sent_s = context.clock()
    entries = [entry for entry, _, until in moved if sent_s <= until]
    if not entries:
        return said
    errors = context.cluster.requeue([entry.job for entry in entries])
    jobs = {entry.id: job for entry, job, _ in moved}
    for entry, error in zip(entries, errors, strict=True):
        if error is None:
            context.store.advance(entry.id, REQUEUED, sent_s)
        elif not error.retry:
            outcome = f"the requeue was refused: {error}"
            said += write_unmoved_plan(context, jobs[entry.id])
            context.store.end(entry.id, outcome, now)
            said.append(f"job {entry.job}: {outcome}")
    return said


def _send_on(context: ActionContext, moved: Sequence[tuple[Entry, Job]], now: float) -> list[str]:
    """The requeued jobs are pending: say where they go, and that they may start at once."""
    said: list[str] = []
    waiting = [(entry, job) for entry, job in moved if not job.held]
    mails.restore(context, [job for _, job in moved if job.held])
    for entry, job in moved:
        if job.held:
            outcome = "it was held while it moved; its owner or an admin decides"
            context.remove_plan(job)
            context.store.end(entry.id, outcome, now)
            said.append(f"job {job.id}: {outcome}")
    if not waiting:
        return said
    nices = move_priority.restoring_nices(context, waiting, now)
    releases, updates = [], []
    for entry, job in waiting:
        one = release_of(context, entry, job, now)
        if one.plan is None:
            context.remove_plan(job)
        else:
            complaint = context.write_plan(job, one.plan)
            said += [complaint] if complaint else []
        if job.id in nices:
            nice = nices[job.id]
            one = replace(
                one,
                changes={**one.changes, "Nice": nice.value},
                sure=move_priority.with_nice(one.sure, nice),
            )
        releases.append(one)
        updates.append(context.update(job, one.changes, steering_until_taken(context, one)))
    answers = _sent(context, [job for _, job in waiting], updates, now)
    taken: list[Entry] = []
    again: list[Update] = []
    for (entry, job), one, error in zip(waiting, releases, answers, strict=True):
        if error is None:
            ours = steering_of(entry.details, now)
            if not ours.gpus:
                context.keep(job, one.sure)
            outcome, where = (one.left, one.starts) if one.left else done_text(ours)
            context.store.end(entry.id, outcome, now)
            said.append(f"job {job.id}: {'released' if outcome == MOVED else outcome}, {where}")
            if not one.left and ours.gpus and not (job.id in nices and nices[job.id].exact):
                taken.append(entry)
        # Where it began meanwhile, the next look tells as what.
        elif not error.retry and pending.BEGUN not in str(error):
            context.remove_plan(job)
            context.keep(job, replace(one.before, moves=one.sure.moves))
            outcome = f"{REFUSED}, Slurm starts it as it was: {error}"
            context.store.end(entry.id, outcome, now)
            said.append(f"job {job.id}: {outcome}")
            if "StartTime" in one.changes:
                # It waits for nothing any more but the begin time of its requeue.
                again.append(Update(job.id, {"StartTime": one.changes["StartTime"]}))
    if again:
        context.cluster.apply(again)
    move_priority.correct_nices(context, taken)
    return said


def _sent(
    context: ActionContext, jobs: Sequence[Job], updates: Sequence[Update], now: float
) -> list[SlurmError | None]:
    """Slurm's answers; None of an update that changes nothing, which is not sent."""
    answers: list[SlurmError | None] = [None] * len(updates)
    full = [index for index, update in enumerate(updates) if update.fields]
    found = pending.apply(
        context.cluster, [jobs[index] for index in full], [updates[index] for index in full], now
    )
    for index, error in zip(full, found, strict=True):
        answers[index] = error
    return answers
