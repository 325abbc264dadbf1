"""Problems of jobs that save by themselves: on a signal, or now and then."""

import re
from collections.abc import Iterator

from slurm_hadar.controller.actuation import action_outcomes
from slurm_hadar.controller.actuation.move_steps import NOT_SAVED, reported_saved
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.presentation import move_text
from slurm_hadar.controller.presentation.job_context import JobContext
from slurm_hadar.controller.snapshot.at_risk import FRESH_S
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.reports import formats
from slurm_hadar.reports.job_report import Problem

_LONG_WITHOUT_SAVING_S = 3600.0
_SAVING_S = 300.0
"""A checkpoint that is being written is whole by then."""
_LEAVING_S = 30.0
"""A job that a signal ends may still need KillWait for that."""
GAVE_UP = (NOT_SAVED, "the job has ended")
"""How the outcomes of moves begin whose signal was sent and whose job was not moved."""
_ENDED = re.compile(r"the job has ended \((FAILED|COMPLETED)\b")
_TO = {"steps": "", "batch": "B:", "full": "F:"}
_BY_ITSELF = ("FAILED", "COMPLETED")


def after_signal(known: JobContext, job: Job | None) -> Iterator[Problem]:
    """A job that left late after the signal of a move, or that the signal may have ended."""
    moves = [e for e in known.entries if e.kind == "move" and e.details.get("habit") == "signal"]
    if not moves or not (moves[-1].outcome or GAVE_UP[0]).startswith(GAVE_UP):
        return
    last = moves[-1]
    said = last.shown or (action_outcomes.after_its_signal(last, job) if job is not None else "")
    allowed_s = move_text.allowed_s(last, known.config)
    declared = (job.declaration if job is not None else None) or Declaration()
    # Of a job that Slurm has forgotten, or that declares otherwise now, the name is not known.
    signal = declared.asks.name if declared.habit == "signal" else ""
    named = f" ({signal})" if signal else ""
    anew = _TO[declared.asks.target] + (signal or "NAME")
    # A move under way, and one that its job's end closed, may have been in time.
    late = (last.outcome or "").startswith(NOT_SAVED)
    late |= job is not None and job.submit_s - last.opened_s > allowed_s
    if late and said and said.startswith(action_outcomes.LATE):
        yield Problem(
            f"it {said}{named}, which allows {allowed_s:.0f} s: its work is done again if it "
            "had finished",
            (
                "start the training with & and wait for it: a shell runs its trap only when the "
                "command in front has ended",
                f"or allow it more time: hadar set {known.id} signal={anew}@SECONDS",
                f"or let it stay: hadar pin {known.id}",
                "nothing where its node failed or another user requeued it, which Slurm does not "
                "tell apart",
            ),
        )
    elif job is None and (ended := _ENDED.match(last.outcome or "")) is not None:
        # Slurm has forgotten it.
        after_s = max(0.0, last.changed_s - last.opened_s)
        yield _ended_by_it(f"ended ({ended[1]}), seen {after_s:.0f} s after its signal", "")
    elif said and job is not None and _may_be_ended_by_it(last, job, allowed_s):
        yield _ended_by_it(said, signal)


def _ended_by_it(said: str, signal: str) -> Problem:
    named = f" ({signal})" if signal else ""
    return Problem(
        f"the controller's signal may have ended it: it {said}{named}, and is not started again",
        (
            f"handle {signal or 'the signal'} in what it reaches: a trap in the script, or a "
            "handler in the training, that saves and then runs scontrol requeue $SLURM_JOB_ID",
            "or end with an exit code of its own: checkpoint_exit_code=85",
            "or submit it without checkpoint=signal: then it is not moved",
        ),
    )


def _may_be_ended_by_it(move: Entry, job: Job, allowed_s: float) -> bool:
    return (
        job.state is JobState.FINISHED
        and job.restarts == move.details.get("restarts")
        and job.slurm_state.upper().startswith(_BY_ITSELF)
        and not reported_saved(job)
        and job.end_s - move.opened_s <= allowed_s + _LEAVING_S
    )


def watched(known: JobContext, job: Job, declared: Declaration) -> Iterator[Problem]:
    """No watcher, or one that sees no checkpoint: such a job is not moved."""
    now, progress = known.observation.now, known.observation.progress.get(job.id)
    ran = now - job.start_s
    path = _path_of(job, declared)
    if ran <= FRESH_S:
        return
    if progress is None or progress.restarts != job.restarts:
        yield Problem(
            f"no report of a watcher since it started {formats.duration(ran)} ago: when it "
            "saves is not known, so it is not moved",
            ("start it in the script: python -m slurm_hadar.runtime.watch &",),
        )
    elif now - progress.time > FRESH_S:
        yield Problem(
            f"its watcher has not reported for {formats.duration(now - progress.time)}, so it is "
            "not moved",
            ("start it in the script: python -m slurm_hadar.runtime.watch &",),
        )
    elif progress.checkpoint is None:
        if now - max(job.start_s, progress.whole_s or 0.0) <= _SAVING_S:
            # One is being written.
            return
        yield Problem(
            f"its watcher sees no whole checkpoint at {path}: no file matches, all are empty, or "
            "they change all the time; it is not moved before",
            (
                "without a leading / the path counts from the folder in which the watcher was "
                f"started: ls -l {path}",
                "a checkpoint is whole when nothing that matches has changed for 3 s: save less "
                "often than that, or name a path that changes at each save only",
                f"hadar set {job.id} checkpoint=watch:PATH counts from its next start",
            ),
        )
    elif (since := now - progress.checkpoint.time) > _LONG_WITHOUT_SAVING_S:
        yield Problem(
            f"its last checkpoint at {path} is {formats.duration(since)} old: a kill loses that "
            "work",
            (f"ls -l {path}",),
        )


def never_watched(known: JobContext, job: Job, declared: Declaration) -> Iterator[Problem]:
    """A job that has ended, of whose checkpoints nothing was ever known."""
    progress = known.observation.progress.get(job.id)
    if declared.habit != "watch" or job.end_s - job.start_s <= FRESH_S:
        return
    again = "the next time"
    if progress is None:
        yield Problem(
            "no report of a watcher was found: when it saved and how far it was is not known, so "
            "it was not moved",
            (f"{again}, start it in the script: python -m slurm_hadar.runtime.watch &",),
        )
    elif progress.checkpoint is None and progress.restarts == job.restarts:
        path = _path_of(job, declared)
        yield Problem(
            f"its watcher saw no whole checkpoint at {path}: no file matched, all were empty, or "
            "they changed all the time; so it was not moved",
            (
                "without a leading / the path counts from the folder in which the watcher was "
                f"started: ls -l {path}",
                f"{again}, name the path of its checkpoints: #HADAR checkpoint=watch:PATH",
            ),
        )


def _path_of(job: Job, declared: Declaration) -> str:
    """The path that its watcher watches, with the numbers of the job as sbatch has them."""
    numbers = {
        "%j": str(job.raw_id),
        "%A": str(job.array_job_id or job.raw_id),
        "%a": job.id.partition("_")[2],
    }
    path = declared.checkpoint.partition(":")[2]
    return re.sub("%[jAa]", lambda match: numbers[match[0]], path, flags=re.ASCII)
