"""Problems with how a job saves by itself, on a signal or now and then, and with how it ended."""

import re
import signal
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
_MEANING = {
    74: "the end of the training is not in its checkpoint",
    77: "a later attempt of the same training, or another job with the same checkpoint file, had "
    "taken over",
    143: "it saved on TERM, work is left",
}
"""Exit codes of the runtime: docs/checkpoints.md. slurm_hadar.runtime is not imported here."""
_WARNINGS = ("USR1", "USR2")
"""Signals by which jobs are asked to save, which end a program that has no handler."""
_AGAIN = "submit it again: it resumes from its checkpoint"


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


def ended_badly(known: JobContext, job: Job) -> Iterator[Problem]:
    """At most one problem of a job that Slurm shows as ended: its end, where that was no good one.

    Nothing for COMPLETED, for a cancelled job, and for one that a signal ended: why is not known.
    """
    declared = job.declaration or Declaration()
    words = job.slurm_state.split()
    state = words[0] if words else ""
    look = f"its output: scontrol show job {job.id} | grep StdOut"
    match state:
        case "TIMEOUT":
            yield Problem(f"it reached its time limit{_left(known, job)}", _longer(declared))
        case "NODE_FAIL" if gone := _gone(known, job):
            yield Problem(
                f"Slurm ended it: there is no partition {gone} any more, which its list may name",
                (
                    f"put {gone} back into slurm.conf with State=INACTIVE; scontrol reconfigure: a "
                    "job that may be requeued waits again",
                ),
            )
        case "OUT_OF_MEMORY":
            yield Problem("it used more memory than it was given", ("ask for more: --mem", look))
        case "FAILED" if reported_saved(job) and _was_asked(known, job):
            yield Problem(
                f"it saved when it was asked to move, and ended with exit code {job.exit_code}, "
                "its checkpoint_exit_code",
                ("no action needed: the controller requeues it at its next tick",),
            )
        case "FAILED" if job.exit_code:
            meaning = _MEANING.get(job.exit_code, "")
            progress = known.observation.progress.get(job.id)
            if job.exit_code == 1 and progress is not None and progress.nonfinite:
                meaning = "its loss or a parameter was not finite"
            name = "" if meaning else _signal(job.exit_code)
            meaning = meaning or (f"{name} ended a program in it" if name else "")
            said = f": {meaning}" if meaning else ""
            again = (_AGAIN,) if job.exit_code in (74, 143) else ()
            handle = _handle(name, declared) if name in _WARNINGS else ()
            yield Problem(f"it ended with exit code {job.exit_code}{said}", (*handle, look, *again))


def _gone(known: JobContext, job: Job) -> str:
    """Partitions that its list may have named, since it has others of their group, and that Slurm
    does not have any more."""
    names = {*job.partitions}
    for group, members in known.config.partitions.groups.items():
        if not names.isdisjoint((group, *members)):
            names |= {*members}
    return ", ".join(sorted(names - known.observation.partitions.keys()))


def _signal(code: int) -> str:
    """The signal that an exit code stands for as shells and srun pass it on, 128 and its number."""
    try:
        return signal.Signals(code - 128).name.removeprefix("SIG")
    except ValueError:
        return ""


def _handle(name: str, declared: Declaration) -> tuple[str, ...]:
    """What to do where a signal that asks for a save ended what should have saved."""
    saves = declared.habit in ("yes", "signal", "watch")
    return (
        f"--signal of the job, or the controller, asked it to save by {name}, and the program that "
        f"got it has no handler for {name}: add one that saves (slurm_hadar.runtime has one once "
        "the training is set up)",
        f"where the training starts later than {name} may come: write trap '' {name} above exec in "
        "the script",
        f"or ask for no such signal: submit it without --signal{' and signal=' if saves else ''}",
        *((f"then {_AGAIN}",) if saves else ()),
    )


def _was_asked(known: JobContext, job: Job) -> bool:
    """Whether a move asked it to save in the attempt that has ended."""
    moves = [entry for entry in known.entries if entry.kind == "move"]
    return bool(moves) and moves[-1].details.get("restarts") == job.restarts


def _left(known: JobContext, job: Job) -> str:
    """What of its work was left, where it is known."""
    declared, progress = job.declaration, known.observation.progress.get(job.id)
    total = declared.total_samples if declared is not None else 0
    if not total or progress is None or progress.finished or progress.samples >= total:
        return ""
    return f" at {progress.samples:,} of {total:,} samples"


def _longer(declared: Declaration) -> tuple[str, ...]:
    saves = declared.habit in ("yes", "signal", "watch")
    again = _AGAIN if saves else "submit it again with a longer --time"
    if declared.max_requeues or not saves:
        return (again,)
    return (again, "or let it be requeued before its limit, where the site allows: max_requeues=N")
