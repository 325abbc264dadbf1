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
    MoveTimes,
    OpenMove,
    decide_move,
)
from slurm_hadar.controller.actuation.running import (
    mail_type,
    node_reservations,
    poll_schedule,
    priority_after_requeue,
)
from slurm_hadar.controller.actuation.running.requeued_job import (
    begin_time_returned,
    done_text,
    excluded_by_owner,
    requeued_update,
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
now (:mod:`.recheck_before_requeue`); None: not known now."""


def _no_obstacle(ripe: Sequence[tuple[Entry, Job]], others: Sequence[Entry]) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class MoveResult:
    """The result of a step: messages for the operator, and the released jobs with their new places
    (job -> node -> type -> GPUs)."""

    messages: tuple[str, ...]
    sent: Mapping[str, Mapping[str, Mapping[str, int]]]


def advance(
    context: ActionContext,
    jobs: Mapping[str, Job],
    progress: Mapping[str, Progress],
    now: float,
    obstacles: Obstacles | None = _no_obstacle,
) -> MoveResult:
    """Take every open move one step further, from what is seen now. ``obstacles``: None where there
    is no time to see a job through that is requeued; it runs on until the next tick."""
    entries = _open_moves(context)
    requeue: list[tuple[Entry, Job, float]] = []
    released: list[tuple[Entry, Job]] = []
    freed: list[Update] = []
    messages: list[str] = []
    moving = context.config.moving
    times = MoveTimes(moving.ack_wait_s, moving.after_return_s)
    repair.record_hold_reasons(context, jobs.values())
    for entry in entries:
        job = jobs.get(entry.job)
        held = context.held(job) if job is not None else {}
        excluded = excluded_by_owner(context, entry, job)
        move = OpenMove(entry, job, progress.get(entry.job), held, excluded)
        decided = decide_move(move, now, times)
        if decided.step is MoveStep.REQUEUE and job is not None:
            requeue.append((entry, job, decided.until))
        elif decided.step is MoveStep.RELEASE and decided.job is not None:
            released.append((entry, decided.job))
        elif decided.step in (MoveStep.STAY, MoveStep.END):
            if job is not None and _began_by_itself(entry, job):
                _keep_as_either(context, entry, job)
            if job is not None and (decided.step is MoveStep.STAY or not job.managed):
                messages += _correct_plan(context, job)
            if job is not None:
                node_reservations.end(context, entry, job)
            context.store.end(entry.id, decided.outcome, now)
            messages.append(f"job {entry.job}: {decided.outcome}")
            if job is not None and not job.managed:
                fields = begin_time_returned(entry, job, now, context.requeue_delay_s)
                freed += [Update(job.id, fields)] if fields else []
    if freed:
        context.cluster.apply(freed)
    dropped: list[tuple[Entry, Job, str]] = []
    if obstacles is None:
        requeue = []
    else:
        requeue, dropped = _without_obstacles(requeue, entries, now, obstacles)
    for entry, job, why in dropped:
        messages += _correct_plan(context, job)
        context.store.end(entry.id, f"{DROPPED}{why}", now)
        messages.append(f"job {entry.job}: {DROPPED}{why}")
    messages += _release(context, released, now)
    if requeue and poll_schedule.sees_it_through(context.cluster.traffic):
        messages += _requeue(context, requeue, now)
    return MoveResult(tuple(messages), destinations(entry for entry, _ in released))


def _without_obstacles(
    requeue: Sequence[tuple[Entry, Job, float]],
    entries: Sequence[Entry],
    now: float,
    obstacles: Obstacles,
) -> tuple[list[tuple[Entry, Job, float]], list[tuple[Entry, Job, str]]]:
    """The moves to be requeued now, and those that are dropped, with the reason; what is in neither
    waits."""
    to_check = [move for move in requeue if abs(now - move[0].opened_s) > _DECIDED_NOW_S]
    if not to_check:
        return list(requeue), []
    ripe = {entry.id for entry, _, _ in requeue}
    others = [entry for entry in entries if entry.id not in ripe]
    reasons = obstacles([(entry, job) for entry, job, _ in to_check], others)
    if reasons is None:
        return [move for move in requeue if move not in to_check], []
    dropped = [(entry, job, reasons[job.id]) for entry, job, _ in to_check if job.id in reasons]
    dropped_ids = {entry.id for entry, _, _ in dropped}
    return [move for move in requeue if move[0].id not in dropped_ids], dropped


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
    stood, recorded = entry.details.get("stood"), context.steering_of(job)
    if not isinstance(stood, dict):
        return
    wrote = {
        key: value
        for key, value in recorded.wrote.items()
        if key in stood or key not in STOOD_FIELDS
    }
    context.keep(job, replace(recorded, wrote=wrote, unsure={**recorded.unsure, **stood}))


def follow_open_moves(
    context: ActionContext,
    observed: Mapping[str, Job],
    sleep: Callable[[float], None],
    why_not: Callable[[], str] = str,
    obstacles: Obstacles = _no_obstacle,
) -> list[str]:
    """Follow the open moves for a bounded time, as :mod:`.poll_schedule` says. Slurm is asked about
    these jobs only, and about all before one is requeued that was asked to save some time ago.

    ``observed``: the jobs as this tick has seen them; ``why_not``: why nothing may be changed any
    more, empty where it may.
    """
    messages: list[str] = []
    config = context.config
    schedule = poll_schedule.PollSchedule(context.cluster.traffic, config.moving.after_return_s)
    settle_s, longest_s = config.moving.settle_s, poll_schedule.longest_s(config)
    began, slept = context.clock(), 0.0
    ended: set[str] = set()
    while True:
        entries = _open_moves(context)
        if not entries:
            return messages
        # One that ended when it was asked is requeued by the next tick; nothing else becomes of it.
        followed = [entry for entry in entries if entry.job not in ended]
        names = [entry.job for entry in followed]
        owners = {name: observed[name].uid for name in names if name in observed}
        progress = read_all_progress(config.site.exchange_dir, owners)
        stopped = why_not()
        if stopped:
            return [*messages, f"moves in progress wait: {stopped}"]
        # The clock may be set back meanwhile, so the pauses are counted too.
        passed_s = max(slept, context.clock() - began)
        if schedule.due(followed, progress, passed_s, context.clock()):
            try:
                jobs = {job.id: _later(job, observed) for job in context.cluster.read_jobs(names)}
            except SlurmError as error:
                return [*messages, f"moves in progress continue at the next tick: {error}"]
            # Slurm may have taken longer to answer than a heartbeat lasts.
            stopped = why_not()
            if stopped:
                return [*messages, f"moves in progress wait: {stopped}"]
            schedule.looked(followed, progress, jobs, passed_s)
            ended |= {id_ for id_, job in jobs.items() if job.state is JobState.FINISHED}
            look = obstacles if passed_s <= settle_s else None
            moved = advance(context, jobs, progress, context.clock(), look)
            messages += moved.messages
        passed_s = max(slept, context.clock() - began)
        if passed_s >= settle_s and (passed_s >= longest_s or not _has_unreleased(context)):
            return messages
        sleep(poll_schedule.POLL_S)
        slept += poll_schedule.POLL_S


def _open_moves(context: ActionContext) -> list[Entry]:
    return [entry for entry in context.store.open_entries() if entry.kind == "move"]


def _has_unreleased(context: ActionContext) -> bool:
    """Whether a job that was requeued here is not released yet."""
    return any(entry.phase == REQUEUED for entry in _open_moves(context))


def _later(job: Job, observed: Mapping[str, Job]) -> Job:
    """The job as it is shown now, with what only the tick's whole snapshot tells of it."""
    if job.id not in observed or observed[job.id].restarts != job.restarts:
        return job
    return replace(job, not_before_s=observed[job.id].not_before_s)


def destinations(entries: Iterable[Entry]) -> dict[str, Mapping[str, Mapping[str, int]]]:
    """Where jobs in the middle of a move are going: job -> node -> type -> GPUs."""
    nodes_of = {}
    for entry in entries:
        if entry.kind == "move":
            nodes_of[entry.job] = steering_of(entry.details, entry.changed_s).nodes
    return nodes_of


def _requeue(
    context: ActionContext, moved: Sequence[tuple[Entry, Job, float]], now: float
) -> list[str]:
    """``moved``: with the time until which each may be requeued."""
    messages: list[str] = []
    if not moved:
        return messages
    mail_type.switch_off(context, [job for _, job, _ in moved])
    # ``now`` is when the jobs were read, which may be some time ago.
    sent_s = context.clock()
    in_time = [(entry, job) for entry, job, until in moved if sent_s <= until]
    answers = node_reservations.reserve(context, in_time)
    entries = []
    for (entry, error), (_, job) in zip(answers, in_time, strict=True):
        if error is None:
            entries.append(entry)
        elif not error.retry:
            outcome = f"{DROPPED}Slurm does not keep its nodes for it: {error}"
            messages += write_unmoved_plan(context, job)
            context.store.end(entry.id, outcome, now)
            messages.append(f"job {entry.job}: {outcome}")
    if not entries:
        return messages
    errors = context.cluster.requeue([entry.job for entry in entries])
    jobs = {entry.id: job for entry, job, _ in moved}
    for entry, error in zip(entries, errors, strict=True):
        if error is not None:
            node_reservations.end(context, entry, jobs[entry.id])
        if error is None:
            context.store.advance(entry.id, REQUEUED, sent_s)
        elif not error.retry:
            outcome = f"the requeue was refused: {error}"
            messages += write_unmoved_plan(context, jobs[entry.id])
            context.store.end(entry.id, outcome, now)
            messages.append(f"job {entry.job}: {outcome}")
    return messages


def _release(context: ActionContext, moved: Sequence[tuple[Entry, Job]], now: float) -> list[str]:
    """The requeued jobs are pending: say where they go, and that they may start at once."""
    messages: list[str] = []
    mail_type.restore(context, [job for _, job in moved if job.held])
    startable = [(entry, job) for entry, job in moved if not job.held]
    least = node_reservations.least_priorities(context, startable)
    nices = priority_after_requeue.restoring_nices(context, startable, now, least)
    requeued, updates = [], []
    for entry, job in moved:
        update = requeued_update(context, entry, job, now)
        if update.plan is None:
            context.remove_plan(job)
        else:
            complaint = context.write_plan(job, update.plan)
            messages += [complaint] if complaint else []
        if job.id in nices:
            nice = nices[job.id]
            update = replace(
                update,
                changes={**update.changes, "Nice": nice.value},
                sure=priority_after_requeue.with_nice(update.sure, nice),
            )
        requeued.append(update)
        updates.append(context.update(job, update.changes, steering_until_taken(context, update)))
    answers = _update_errors(context, [job for _, job in moved], updates, now)
    used = []
    for (entry, job), update, error in zip(moved, requeued, answers, strict=True):
        if job.id in least and error is None and not update.left:
            used.append((entry, job))
        else:
            node_reservations.end(context, entry, job)
    node_reservations.give(context, used, least)
    taken: list[Entry] = []
    begin_times: list[Update] = []
    for (entry, job), update, error in zip(moved, requeued, answers, strict=True):
        if error is None:
            steering = steering_of(entry.details, now)
            if not steering.gpus:
                context.keep(job, update.sure)
            outcome, where = (update.left, update.starts) if update.left else done_text(steering)
            context.store.end(entry.id, outcome, now)
            messages.append(f"job {job.id}: {'released' if outcome == MOVED else outcome}, {where}")
            is_exact = job.id in least or (job.id in nices and nices[job.id].exact)
            if not update.left and steering.gpus and not is_exact:
                taken.append(entry)
        # Where it began meanwhile, the next look tells as what.
        elif not error.retry and pending.BEGUN not in str(error):
            context.remove_plan(job)
            context.keep(job, replace(update.before, moves=update.sure.moves))
            outcome = f"{REFUSED}, Slurm starts it as it was: {error}"
            context.store.end(entry.id, outcome, now)
            messages.append(f"job {job.id}: {outcome}")
            if "StartTime" in update.changes:
                # It waits for nothing any more but the begin time of its requeue.
                begin_times.append(Update(job.id, {"StartTime": update.changes["StartTime"]}))
    if begin_times:
        context.cluster.apply(begin_times)
    priority_after_requeue.correct_nices(context, taken if context.ages else [], {})
    return messages


def _update_errors(
    context: ActionContext, jobs: Sequence[Job], updates: Sequence[Update], now: float
) -> list[SlurmError | None]:
    """Slurm's answers; None of an update that changes nothing, which is not sent."""
    answers: list[SlurmError | None] = [None] * len(updates)
    not_empty = [index for index, update in enumerate(updates) if update.fields]
    errors = pending.apply(
        context.cluster,
        [jobs[index] for index in not_empty],
        [updates[index] for index in not_empty],
        now,
    )
    for index, error in zip(not_empty, errors, strict=True):
        answers[index] = error
    return answers
