"""Putting right what Slurm does to a job that is ours: nothing of ours may stay held."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.apply import UNDO, UNDONE, ActionContext
from slurm_hadar.controller.actuation.move_steps import GONE, MOVED, ended_with, reported_saved
from slurm_hadar.controller.actuation.restored_request import restored_where_it_fits
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.observation.returned_nodes import REQUEUED
from slurm_hadar.domain import steering
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm import pending
from slurm_hadar.slurm.times import at_once

MOST_RELEASES = 3
_RELEASE, _RELEASED = "release", "released after a failed launch"
_REFUSED = "refused"
_HELD, _ADMINS = "held_for", "JobHeldAdmin"
"""Of a move, in the journal: why its job was held when it was last seen to run."""
_RESUME, RESUMED = "resume", "requeued, as it ended with the exit code of a checkpoint"
_FRESH_LOOK_S = 15.0
_TERM_EXIT = 143
_SPARE = 10
"""Fewer than the least ``guards.max_queries_per_minute``."""
_PAUSE_S = 600.0
"""A cure that Slurm refused is not tried again sooner: what stands in its way stays for a while."""


def release_failed_launches(context: ActionContext, observation: Observation) -> list[str]:
    """Release managed jobs that Slurm holds because a launch failed on a node.

    A bounded number of times: a job that fails again and again has a fault of its own, and then an
    admin should look.
    """

    def release(job: Job) -> str:
        context.cluster.release(job.id)
        return _RELEASED

    said = []
    for job in observation.jobs.values():
        if not held_after_failed_launch(job):
            continue
        if context.store.count_ended(job.id, _RELEASE, _RELEASED) < MOST_RELEASES:
            said += _try(context, job, _RELEASE, release, observation.now)
    return said


def held_after_failed_launch(job: Job) -> bool:
    """Whether Slurm holds a managed job because a launch failed on a node."""
    return _held(job) and "launch failed" in job.reason.lower().replace("_", " ")


def resume_saved(context: ActionContext, observation: Observation) -> list[str]:
    """Requeue jobs that ended with the exit code by which they say that they saved, and those whose
    requeue in a move slurmctld forgot: it ends the job at once and saves its state within seconds,
    so one that crashes in between shows the job as failed.

    Only a job that a move asked to save in its last attempt, whether in time or not: any other end
    is its own affair. One that its owner has opted out since is requeued too where it ended in
    time: it left on our signal. Slurm would start a job anew that is done by now, so it is looked
    at once more: after that look a start by another user takes cred_expire, and its end longer.

    One that was held since it was asked stays held. At its end Slurm forgets who held it, and takes
    any hold for an admin's then, which its owner could not release. It remains an admin's if Slurm
    showed that while the job ran. No user can release an ended job: a job that is not held gets no
    hold.
    """

    def resume(job: Job) -> str:
        asked_s = context.clock()
        shown = context.cluster.read_jobs([job.id])
        same = [one for one in shown if _end_of(one) == _end_of(job)]
        if not same or abs(context.clock() - asked_s) > _FRESH_LOOK_S:
            raise SlurmError("Slurm does not show in time that it ended so", retry=True)
        move = context.store.last(job.id, "move")
        admins = move is not None and move.details.get(_HELD) == _ADMINS
        context.cluster.requeue_ended(job.id, same[0].priority == 0 and not admins)
        return RESUMED

    said = []
    for job in observation.jobs.values():
        off = job.declaration is not None and job.declaration.off and ended_with(job, job.exit_code)
        saved = off or (job.managed and reported_saved(job))
        if not (job.requeue and (saved or (job.managed and _ended_by_term(job)))):
            continue
        last = context.store.last(job.id, "move")
        if last is None:
            continue
        saved = saved and last.details.get("habit") == "signal"
        if not (saved or (job.managed and _forgotten(last, job))):
            continue
        if off and not _left_in_time(context, last, job):
            continue
        # Once for each time that it was asked.
        before = context.store.last(job.id, _RESUME)
        if before is not None and before.outcome == RESUMED and before.id > last.id:
            continue
        if last.details.get("restarts") == job.restarts and job.end_s >= last.opened_s - 1:
            said += _try(context, job, _RESUME, resume, observation.now)
    return said


def _ended_by_term(job: Job) -> bool:
    """Whether a job has ended as one that TERM ended and no user cancelled: with the exit code of
    our runtime or of a shell, or by the signal itself."""
    failed = job.state is JobState.FINISHED and job.slurm_state.upper().startswith("FAILED")
    return failed and job.exit_code in (0, _TERM_EXIT)


def _forgotten(move: Entry, job: Job) -> bool:
    """Whether Slurm shows the end of an attempt of which it had taken a move's requeue."""
    ended_it = move.reached_s(REQUEUED) is not None and _ended_by_term(job)
    return ended_it and (move.outcome is None or move.outcome.startswith((GONE, MOVED)))


def _end_of(job: Job) -> tuple[JobState, str, int, int]:
    return job.state, job.slurm_state, job.exit_code, job.restarts


def record_hold_reasons(context: ActionContext, jobs: Iterable[Job]) -> None:
    """Record with the move of each running job that leaves by its exit code for which reason Slurm
    shows it as held; see :func:`resume_saved`."""
    for job in jobs:
        leaves = job.declaration is not None and job.declaration.checkpoint_exit_code > 0
        if not (leaves and job.state is JobState.RUNNING and job.priority == 0):
            continue
        last = context.store.last(job.id, "move")
        if last is None or last.details.get("restarts") != job.restarts:
            continue
        if last.details.get(_HELD) != job.reason:
            context.store.keep_details(last.id, {**last.details, _HELD: job.reason})


def _left_in_time(context: ActionContext, move: Entry, job: Job) -> bool:
    """Whether an ended job saved and left as ``move`` asked it to, while the move waited for it."""
    grace_s = move.details.get("grace_s")
    if not isinstance(grace_s, int | float):
        grace_s = context.config.moving.ack_wait_s
    return ended_with(job, move.details.get("exit_code")) and job.end_s <= move.opened_s + grace_s


def undo_impossible_placements(context: ActionContext, observation: Observation) -> list[str]:
    """Take back a placement that Slurm cannot carry out at all.

    It sets such a job's priority to 0 (BadConstraints), which is a hold in all but name. That is
    our own doing, or hbatch's, so it is undone as often as it happens. It takes two requests, and
    the second may not have been sent.
    """

    def owners(job: Job) -> dict[str, str]:
        steered = observation.steered(job.id)
        was = job_updates.asked_for(job, steered, context.config)
        fields = job_updates.undo_fields(job, replace(steered, was=was))
        return restored_where_it_fits(job, steered, fields, context.config)

    def undo(job: Job) -> str:
        steered = observation.steered(job.id)
        # Slurm may refuse it, or not answer: what we wrote before may be there still.
        fields = owners(job)
        ours = replace(
            steered,
            gpus={},
            nodes={},
            wrote={**steered.wrote, **fields},
            unsure={**steered.unsure, **steered.wrote},
            time=observation.now,
            until=0.0,
            ends=0.0,
        )
        owners_names = job_updates.asked_for(job, steered, context.config).get("Partition", "")
        if fields.get("Partition", owners_names) != owners_names:
            ours = replace(ours, was={**steered.was, "Partition": owners_names})
        elif "Partition" in fields and "Partition" not in steered.was:
            # hbatch's list, which is not written a second time.
            ours = replace(ours, foreign=(*steered.foreign, "Partition"))
        if job.eligible_s > observation.now or not fields:
            fields["StartTime"] = at_once(job, observation.now)
        update = context.update(job, fields, ours)
        (error,) = pending.apply(context.cluster, [job], [update], observation.now)
        if error is not None:
            raise error
        context.remove_plan(job)
        # As a rule the update has let it go, and an operator's release of a job that is not held
        # sets its Nice to 0.
        if any(one.held for one in context.cluster.read_jobs([job.id]) if one.id == job.id):
            context.cluster.release(job.id)
        return UNDONE

    said = []
    for job in observation.jobs.values():
        if not _held(job) or job.reason != "BadConstraints":
            continue
        last = context.store.last(job.id, UNDO)
        half_done = last is not None and last.outcome != UNDONE
        if half_done or owners(job):
            said += _try(context, job, UNDO, undo, observation.now)
    return said


def keep_owners_changes(context: ActionContext, observation: Observation) -> None:
    """Keep which fields another user changed: of a job that runs Slurm does not show it."""
    found = []
    for id_, ours in observation.steering.items():
        job = observation.jobs.get(id_)
        if job is None or not ours.foreign:
            continue
        kept = context.steering_of(job)
        if (kept.foreign, kept.listed) != (ours.foreign, ours.listed):
            found.append((job, ours))
    if context.in_the_job:
        updates = [context.update(job, {}, ours) for job, ours in found]
        if updates:
            context.cluster.apply(updates)
    else:
        for job, ours in found:
            context.keep(job, ours)


def count_late_moves(context: ActionContext, observation: Observation, jobs: Iterable[str]) -> None:
    """Count as moves the restarts of jobs that requeued themselves late, on our signal."""
    found = []
    for id_ in jobs:
        job = observation.jobs.get(id_)
        if job is not None:
            ours = context.steering_of(job)
            found.append((job, replace(ours, moves=ours.moves + 1)))
    if context.in_the_job and found:
        context.cluster.apply([context.update(job, {}, ours) for job, ours in found])
    for job, ours in found:
        context.keep(job, ours)


def with_unsent(
    ours: Mapping[str, Steering], jobs: Mapping[str, Job], entries: Iterable[Entry]
) -> dict[str, Steering]:
    """What was done to each job, where a controller died between writing a hint down and sending
    it as it was before. ``entries``: the open ones of the journal."""
    found = dict(ours)
    for entry in entries:
        job, sent = jobs.get(entry.job), entry.details.get("fields")
        before = entry.details.get("before")
        if job is None or not isinstance(before, str) or not isinstance(sent, dict):
            continue
        if _not_sent(job, sent):
            found[job.id] = steering.decode(before) or Steering()
    return found


def close_interrupted(context: ActionContext, observation: Observation) -> None:
    """Close what a controller that died left open in the journal; moves go on by themselves."""
    for entry in context.store.open_entries():
        if entry.kind == "move":
            continue
        job, sent = observation.jobs.get(entry.job), entry.details.get("fields")
        shown = job is not None and isinstance(sent, dict) and not _not_sent(job, sent)
        if job is not None and not shown:
            context.keep(job, observation.steered(job.id))
        outcome = "carried out" if shown else "not seen to be carried out"
        context.store.end(entry.id, f"{outcome}; the controller was interrupted", observation.now)


def _not_sent(job: Job, sent: Mapping[str, str]) -> bool:
    compared = {key: value for key, value in sent.items() if key != "StartTime"}
    if "Nice" in compared:
        # Of its partitions a job that has begun meanwhile shows one only.
        compared = {"Nice": compared["Nice"]}
    return not compared or job_updates.differing(job, compared)


def _held(job: Job) -> bool:
    return job.managed and job.state is JobState.PENDING and job.held


def _try(
    context: ActionContext, job: Job, kind: str, cure: Callable[[Job], str], now: float
) -> list[str]:
    """Where too few requests of this minute are left the next tick goes on."""
    traffic = context.cluster.traffic
    # Soon Slurm forgets an ended job; else half of them stay for what else this tick sends.
    left = traffic.requests_left() > _SPARE if kind == _RESUME else traffic.part_left(0.5)
    if not left:
        return []
    last = context.store.last(job.id, kind)
    refused = last is not None and (last.outcome or "").startswith(_REFUSED)
    if last is not None and refused and 0 <= now - last.changed_s < _PAUSE_S:
        return []
    entry = context.store.begin(job.id, kind, "sent", now, {"reason": job.reason})
    try:
        outcome = cure(job)
    except SlurmError as error:
        outcome = f"not carried out: {error}" if error.retry else f"{_REFUSED}: {error}"
    context.store.end(entry, outcome, now)
    return [f"job {job.id}: {outcome}"]
