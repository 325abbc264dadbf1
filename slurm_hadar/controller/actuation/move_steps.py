"""What the next step of a move is: a pure function of what the journal, Slurm and the job show.

:mod:`.moves` carries the steps out. The model of the protocol in ``tests/unit/protocol`` calls the
same function.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import inf

from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation.returned_nodes import ended_by
from slurm_hadar.controller.snapshot.at_risk import UNASKED, may_stop_for_s, work_at_risk_s
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.slurm.times import set_back, startable_s

LOST_SIGHT_S = 3600.0
MOVED = "moved"
NOT_SAVED = "the job did not save"
"""How the outcome begins where a job did not answer the wish to save."""
SAVED = "the job saved"
"""How it begins where it did, and its requeue came too late, as while slurmctld did not answer."""
DROPPED = "it stays where it is: "
"""How it begins where the move was no longer right just before its requeue."""
REFUSED = "the placement was refused"
"""How it begins where Slurm did not take what the requeued job was to get."""
GONE = "the job has ended"
"""How it begins where the job ended in the middle of the move."""
FAILED = (NOT_SAVED, DROPPED, REFUSED)
"""After these the next move of the job waits longer."""


class MoveStep(Enum):
    """What is done next to a move that is under way."""

    WAIT = "wait"
    REQUEUE = "requeue"
    RELEASE = "release"
    STAY = "leave the job where it runs, and end the move"
    END = "end the move"


@dataclass(frozen=True)
class MoveDecision:
    """The next step of a move. ``outcome``: how it ends, of STAY and END only. ``job``: as it is
    to be released, of RELEASE only. ``until``: REQUEUE is right until then, s since the epoch."""

    step: MoveStep
    outcome: str = ""
    job: Job | None = None
    until: float = inf


@dataclass(frozen=True)
class OpenMove:
    """What is known of a move that is under way.

    ``entry``: the journal's. ``job``: as Slurm shows it, None where it does not. ``held``: GPUs
    that it has, by type. ``excluded``: why the owner does not accept any more where it goes.
    """

    entry: Entry
    job: Job | None
    progress: Progress | None
    held: Mapping[str, int]
    excluded: str = ""


@dataclass(frozen=True)
class MoveTimes:
    """``ack_wait_s``: how long a job may take to save. ``after_return_s``: how long a job waits
    that something else requeued."""

    ack_wait_s: float
    after_return_s: float


def decide_move(move: OpenMove, now: float, times: MoveTimes) -> MoveDecision:
    """The next step of a move."""
    entry, job = move.entry, move.job
    if job is None:
        if now - entry.changed_s > LOST_SIGHT_S:
            return _end("Slurm does not show the job any more")
    elif job.state is JobState.FINISHED and not reported_saved(job):
        return _end(f"{GONE} ({job.slurm_state})")
    elif not job.managed:
        if job.state is JobState.COMPLETING and job.restarts != entry.details.get("restarts"):
            # Slurm gives it the begin time of its requeue, which we take away, when it has left.
            return MoveDecision(MoveStep.WAIT)
        return _end("it is no longer managed")
    elif job.restarts == entry.details.get("restarts"):
        return _before_requeue(move, job, now, times.ack_wait_s)
    elif job.state is JobState.PENDING:
        job = _requeued(entry, job, times.after_return_s)
        if _releasable(job, now):
            return MoveDecision(MoveStep.RELEASE, job=job)
    elif job.state is JobState.RUNNING:
        if dict(move.held) == dict(steering_of(entry.details, 0.0).gpus):
            return _end(MOVED)
        # Its plan may speak of GPUs already that it did not get.
        return MoveDecision(MoveStep.STAY, "it started by itself before it was placed")
    return MoveDecision(MoveStep.WAIT)


def only_waits(entry: Entry, job: Job, now: float, after_return_s: float) -> bool:
    """Whether a job that was requeued waits for nothing but the time of its release."""
    if job.state is not JobState.PENDING or job.restarts == entry.details.get("restarts"):
        return False
    return not _releasable(_requeued(entry, job, after_return_s), now)


def reported_saved(job: Job) -> bool:
    """Whether a job has ended and said by its exit code that it saved and has work left."""
    code = job.declaration.checkpoint_exit_code if job.declaration is not None else 0
    return ended_with(job, code)


def ended_with(job: Job, code: object) -> bool:
    """Whether a job has ended by itself with this exit code, one above 0."""
    by_itself = job.state is JobState.FINISHED and job.slurm_state.upper().startswith("FAILED")
    return by_itself and job.exit_code > 0 and job.exit_code == code


def acknowledged(entry: Entry, progress: Progress | None) -> bool:
    """Whether the job, in the attempt that was asked, has saved for this move."""
    if progress is None or progress.ack is None:
        return False
    if progress.restarts != entry.details.get("restarts"):
        return False
    nonce = entry.details.get("save")
    return progress.ack.save == nonce or (
        not progress.ack.save and progress.ack.time >= entry.opened_s
    )


def _before_requeue(move: OpenMove, job: Job, now: float, ack_wait_s: float) -> MoveDecision:
    entry, progress = move.entry, move.progress
    if job.state is not JobState.RUNNING:
        return MoveDecision(MoveStep.WAIT)
    habit = entry.details.get("habit", "yes")
    declares = job.declaration.habit if job.declaration is not None else ""
    if {habit, declares} & {"signal", *UNASKED} and habit != declares:
        return MoveDecision(MoveStep.STAY, "its owner declared otherwise meanwhile; it stays")
    # One that was signalled leaves anyway, unless it pauses after its save.
    why = move.excluded or _not_movable(job.declaration)
    if why and (habit != "signal" or acknowledged(entry, progress)):
        return MoveDecision(MoveStep.STAY, f"{why}; it stays")
    if habit in UNASKED:
        left_s = may_stop_for_s(job, progress, now)
        if left_s >= 0:
            return MoveDecision(MoveStep.REQUEUE, until=now + left_s)
        lost_s = work_at_risk_s(job, progress, now)
        known = f"{lost_s:.0f} s" if lost_s < inf else "an unknown amount"
        return MoveDecision(
            MoveStep.STAY, f"a restart would cost {known} of work by now, and so it stays"
        )
    grace_s = entry.details.get("grace_s")
    if isinstance(grace_s, int | float):
        ack_wait_s = float(grace_s)
    # A clock that was set back by an hour must not make it wait for one.
    waited = abs(now - entry.opened_s)
    if waited > ack_wait_s:
        # The job has gone on training since; an old answer is no reason to stop it now.
        late = _too_late(entry, progress, waited, ack_wait_s)
        if habit == "signal" and late.startswith(NOT_SAVED):
            late = f"{NOT_SAVED} and leave within {waited:.0f} s of its signal"
        outcome = f"{late} and stays where it is"
        return MoveDecision(MoveStep.STAY, outcome)
    if acknowledged(entry, progress):
        return MoveDecision(MoveStep.REQUEUE)
    return MoveDecision(MoveStep.WAIT)


def _not_movable(declared: Declaration | None) -> str:
    if declared is None or declared.may_move:
        return ""
    return f"its owner declared {'pin=yes' if declared.pin else 'checkpoint=no'} meanwhile"


def _too_late(entry: Entry, progress: Progress | None, waited_s: float, ack_wait_s: float) -> str:
    """What is known of a move that was not requeued in time."""
    if progress is not None and progress.ack is not None and acknowledged(entry, progress):
        after_s = max(0.0, progress.ack.time - entry.opened_s)
        if after_s <= ack_wait_s:
            return f"{SAVED} after {after_s:.0f} s, but was not requeued within {waited_s:.0f} s"
        return f"{NOT_SAVED} within {ack_wait_s:.0f} s, but after {after_s:.0f} s"
    reported = (
        progress is not None
        and progress.restarts == entry.details.get("restarts")
        and progress.time >= entry.opened_s
    )
    known = "" if reported else ", as far as its files show,"
    return f"{NOT_SAVED} within {waited_s:.0f} s{known}"


def _requeued(entry: Entry, job: Job, after_return_s: float) -> Job:
    """The job with its earliest start: later than usual where Slurm or its owner requeued it before
    the controller did, as after a node failure."""
    if ended_by(entry, job):
        return job
    until = job.submit_s + after_return_s
    return replace(job, not_before_s=max(job.not_before_s, until))


def _releasable(job: Job, now: float) -> bool:
    return now >= startable_s(job) or set_back(job, now)


def _end(outcome: str) -> MoveDecision:
    return MoveDecision(MoveStep.END, outcome)
