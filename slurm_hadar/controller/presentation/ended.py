"""What went wrong with a job that has ended."""

import signal
from collections.abc import Iterator

from slurm_hadar.controller.actuation.move_steps import reported_saved
from slurm_hadar.controller.presentation.job_context import JobContext
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job
from slurm_hadar.reports.job_report import Problem

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
