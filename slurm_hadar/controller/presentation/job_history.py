"""What happened to one job, for ``hadar doctor``: from the journal, Slurm and its files."""

from collections.abc import Iterator

from slurm_hadar.controller.actuation import action_outcomes, job_updates
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.actuation.running import idle_allocations
from slurm_hadar.controller.journal.decision_history import MOST_DECISIONS
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation import move_text
from slurm_hadar.controller.presentation.job_context import JobContext
from slurm_hadar.controller.snapshot import chaining
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.reports import formats
from slurm_hadar.reports.job_report import Event

_MINOR = (Kind.HINT.value,)
_KINDS = {
    Kind.HINT.value: "request changed",
    "move": "move",
    "release": "release",
    "resume": "requeued after its own save",
    "undo": "placement undone",
}


def events(known: JobContext) -> list[Event]:
    """All that is known to have happened, by its time."""
    return sorted(_events(known), key=lambda event: event.time_s)


def missing_history(known: JobContext) -> Iterator[str]:
    """What of its past is not known any more, or never was."""
    if len(known.decisions) >= MOST_DECISIONS:
        since = formats.moment(known.decisions[0].time_s)
        yield (
            f"Decisions from before {since} are not kept: the state file holds the last "
            f"{MOST_DECISIONS} of a job that differ."
        )


def _events(known: JobContext) -> Iterator[Event]:
    job = known.job
    if job is not None:
        yield from _of_slurm(job, known.observation)
    ends = [one.time_s for one in known.decisions[1:]]
    ends.append(known.last.time_s if known.last else 0.0)
    for one, until in zip(known.decisions, ends, strict=False):
        yield Event(one.time_s, f"decided: {one.placement}", one.reason, until, minor=True)
    for entry in known.entries:
        yield _action(entry)


def _of_slurm(job: Job, observation: Observation) -> Iterator[Event]:
    if job.submit_s:
        yield Event(job.submit_s, "requeued" if job.restarts else "submitted")
    if job.start_s and job.state is not JobState.PENDING:
        yield Event(job.start_s, "started", action_outcomes.where(job, observation))
    if job.state is JobState.FINISHED and job.end_s:
        yield Event(job.end_s, "ended", job.slurm_state)
    progress = observation.progress.get(job.id)
    if progress is None:
        return
    if progress.checkpoint is not None:
        saved = progress.checkpoint
        yield Event(saved.time, "checkpoint", f"{saved.samples:,} samples, {saved.seconds:.1f} s")
    speed = f", {formats.rate(progress.rate)} samples/s" if progress.rate else ""
    lost = f", {progress.lost:,} lost by kills" if progress.lost else ""
    bad = ", not finite" if progress.nonfinite else ""
    yield Event(progress.time, "last report", f"{progress.samples:,} samples{speed}{lost}{bad}")


def _action(entry: Entry) -> Event:
    meant, fields = steering_of(entry.details, 0.0), entry.details.get("fields")
    what = _KINDS.get(entry.kind, entry.kind)
    if entry.kind == "move" and not meant.gpus:
        what = "stop for other jobs"
        if chaining.DETAIL in entry.details:
            what = "requeue before its time limit ends"
        elif idle_allocations.DETAIL in entry.details:
            what = "stop for other jobs, as its GPUs were idle"
    elif meant.gpus:
        what += f": {job_updates.steering_text(meant)}"
    elif entry.kind == Kind.HINT.value and isinstance(fields, dict):
        what += f": {job_updates.assignments(fields)}"
    parts = [f"{phase} after {time - entry.opened_s:.0f} s" for phase, time in entry.steps]
    if entry.outcome is None:
        parts.append(f"under way ({entry.phase})")
    else:
        outcome = action_outcomes.outcome_text(entry)
        parts.append(f"{outcome} after {max(0.0, entry.changed_s - entry.opened_s):.0f} s")
    more = (entry.shown, action_outcomes.effect_text(entry), move_text.given_back(entry))
    parts += [part for part in more if part]
    minor = entry.kind in _MINOR and (entry.outcome or "").startswith("done")
    return Event(entry.opened_s, what, "; ".join(parts), minor=minor)
