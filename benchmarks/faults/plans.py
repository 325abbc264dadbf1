"""Whether the plan that a job reads is the one that was decided for it, and not an old one."""

from collections.abc import Mapping, Sequence

from slurm_hadar.controller.actuation.entry_details import batch_of_entry, copies_of, steering_of
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange.plan_file import JobPlan

_TELLS = "move"
"""Kind of the entries whose action writes a plan file."""
_PLACE = (_TELLS, "hint", "undo")
"""Kinds of entries after which Slurm may place the job otherwise than before."""
_TAKEN = "moved"
_NOT_MOVED, _BY_ITSELF = "stays where it is", "started by itself"

_Sent = tuple[dict[str, int], int | None, int, tuple[float, ...]]
"""GPUs by type, batch, copies and their shares."""


def complaint(plan: JobPlan | None, job: Job, history: Sequence[Entry]) -> str:
    """What is wrong with a job's plan file, "" where nothing is. No controller may be at work.

    ``history``: what the journal tells of the job, newest first. An action that was cut short may
    not have come to its plan file, so then the one before it is looked at as well.
    """
    if plan is None:
        return ""
    decided: list[str] = []
    for entry in history:
        if entry.kind != _TELLS:
            continue
        sent = _sent(entry)
        if _of(plan) == sent and not plan.save:
            return _elsewhere(plan, job, history, entry)
        if _asks(plan, entry) or _stays(plan, job, entry):
            return _old_wish(plan, job, entry)
        decided.append(_words(sent))
        if not (_cut_short(entry) or _came_too_late(entry, job)):
            break
    wish = ", and asks it to save" if plan.save else ""
    was = " or ".join(decided) or "none"
    return f"its plan speaks of {_words(_of(plan))}{wish}; decided was {was}"


def _of(plan: JobPlan) -> _Sent:
    return dict(plan.gpus), plan.batch, plan.copies, plan.shares


def _sent(entry: Entry) -> _Sent:
    gpus = dict(steering_of(entry.details, 0.0).gpus)
    return gpus, batch_of_entry(entry.details), *copies_of(entry.details)


def _asks(plan: JobPlan, entry: Entry) -> bool:
    """Whether it is the wish to save with which a move begins."""
    gpus, *_ = _sent(entry)
    now = {"save": plan.save, "restarts": plan.restarts}
    return _of(plan) == (gpus, None, 1, ()) and now.items() <= entry.details.items()


def _stays(plan: JobPlan, job: Job, entry: Entry) -> bool:
    """Whether it tells a job that was not moved that it keeps what it has."""
    said, gpus = entry.outcome, dict(plan.gpus)
    if plan.save or not (said is None or _NOT_MOVED in said or _BY_ITSELF in said):
        return False
    had = entry.details.get("from")
    before = _by_type(had if isinstance(had, dict) else {})
    if said is not None and _BY_ITSELF in said:
        # Wherever Slurm started it; of one that is over that is not shown.
        runs = job.state is JobState.RUNNING
        return gpus == _by_type(job.gpus) if runs else sum(gpus.values()) == sum(before.values())
    return gpus == before


def _cut_short(entry: Entry) -> bool:
    said = entry.outcome
    return said is None or "interrupted" in said or "plan file cannot" in said


def _came_too_late(entry: Entry, job: Job) -> bool:
    """Whether the job ended in the very attempt that was to save: it may never have been asked."""
    over = "the job has ended" in (entry.outcome or "") and job.state is JobState.FINISHED
    return over and entry.details.get("restarts") == job.restarts


def _old_wish(plan: JobPlan, job: Job, entry: Entry) -> str:
    """A wish to save that is over and that this very attempt would still follow."""
    over = entry.outcome is not None and job.state is JobState.RUNNING
    if plan.save and over and plan.restarts == job.restarts:
        return f"its plan still asks it to save, of a move that is over ({entry.outcome})"
    return ""


def _elsewhere(plan: JobPlan, job: Job, history: Sequence[Entry], entry: Entry) -> str:
    """A placement that Slurm took is what the job runs on, unless it was changed since, or was a
    list of partitions: of these Slurm takes the one where the job can start first."""
    last = next(one for one in history if one.kind in _PLACE)
    held = _by_type(job.gpus)
    fields = entry.details.get("fields")
    by_list = isinstance(fields, dict) and "," in str(fields.get("Partition", ""))
    taken = last is entry and entry.outcome == _TAKEN and not by_list
    sure = taken and job.state is JobState.RUNNING
    if sure and plan.gpus and held != dict(plan.gpus):
        return f"it runs on {held}, its plan speaks of {dict(plan.gpus)}"
    return ""


def _by_type(nodes: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for gpus in nodes.values():
        for kind, count in gpus.items():
            found[kind] = found.get(kind, 0) + count
    return found


def _words(sent: _Sent) -> str:
    gpus, batch, copies, shares = sent
    more = [f"batch {batch}"] if batch is not None else []
    more += [f"{copies} copies"] if copies > 1 else []
    more += [f"shares {list(shares)}"] if shares else []
    return ", ".join([str(gpus), *more])
