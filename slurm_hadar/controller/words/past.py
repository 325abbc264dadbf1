"""What happened to one job, for ``hadar doctor``: from the journal, Slurm and its files."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from slurm_hadar.controller.acts import trail
from slurm_hadar.controller.acts.acting import steering_of
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.journal.store import MOST_TOLD, Store
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.controller.words import telling
from slurm_hadar.controller.words.troubles import Known
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.reports import formats
from slurm_hadar.reports.story import Event

_RENEWED = "lease renewed"
_MINOR = ("start", "wait", "let go")
_KINDS = {
    "start": "told to start",
    "move": "move",
    "let go": "given back to Slurm",
    "wait": "start taken back",
    "release": "release",
    "undo": "placement undone",
}


def events(known: Known) -> list[Event]:
    """All that is known to have happened, by its time; renewals of its lease that nothing came
    between are one."""
    return list(_in_order(_events(known)))


def renewals(store: Store, id_: str) -> Iterator[float]:
    """When the job's lease was renewed. One entry tells of many jobs, and names some of them."""
    clause = "WHERE kind='lease' AND instr(details, ?) ORDER BY id"
    for entry in store.entries(clause, (json.dumps(id_),)):
        jobs = entry.details.get("jobs")
        # Which of them were refused is not kept.
        if entry.outcome == "done" and isinstance(jobs, list) and id_ in jobs:
            yield entry.opened_s


def _in_order(happened: Iterable[Event]) -> Iterator[Event]:
    ordered = sorted(happened, key=lambda event: event.time_s)
    for renewed, run in groupby(ordered, key=lambda event: event.what == _RENEWED):
        if renewed:
            same = list(run)
            times = f"{len(same)} times" if len(same) > 1 else "once"
            yield replace(same[0], detail=times, until_s=same[-1].time_s, number=len(same))
        else:
            yield from run


def not_kept(known: Known) -> Iterator[str]:
    """What of its past is not known any more, or never was."""
    if len(known.decisions) >= MOST_TOLD:
        since = formats.moment(known.decisions[0].time_s)
        yield (
            f"Decisions from before {since} are not kept: the state file holds the last "
            f"{MOST_TOLD} of a job that differ."
        )
    if known.renewals:
        yield "Renewals of leases are kept for a day, and each names 50 jobs at most."


def _events(known: Known) -> Iterator[Event]:
    job = known.job
    if job is not None:
        yield from _of_slurm(job, known.seen)
    ends = [one.time_s for one in known.decisions[1:]]
    ends.append(known.last.time_s if known.last else 0.0)
    for one, until in zip(known.decisions, ends, strict=False):
        yield Event(one.time_s, f"decided: {one.placement}", one.reason, until, minor=True)
    for time_s in known.renewals:
        yield Event(time_s, _RENEWED, minor=True)
    for entry in known.entries:
        yield _action(entry)


def _of_slurm(job: Job, seen: Observed) -> Iterator[Event]:
    if job.submit_s:
        yield Event(job.submit_s, "requeued" if job.restarts else "submitted")
    if job.start_s and job.state is not JobState.PENDING:
        yield Event(job.start_s, "started", trail.where(job, seen))
    if job.state is JobState.FINISHED and job.end_s:
        yield Event(job.end_s, "ended", job.slurm_state)
    progress = seen.progress.get(job.id)
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
    meant = steering_of(entry.details, 0.0)
    what = _KINDS.get(entry.kind, entry.kind)
    if entry.kind == "move" and not meant.gpus:
        what = "stop for other jobs"
    elif meant.gpus:
        what += f": {telling.words(meant)}"
    parts = [f"{phase} after {time - entry.opened_s:.0f} s" for phase, time in entry.steps]
    if entry.outcome is None:
        parts.append(f"under way ({entry.phase})")
    else:
        parts.append(f"{entry.outcome} after {max(0.0, entry.changed_s - entry.opened_s):.0f} s")
    parts += [part for part in (entry.shown, trail.effect_words(entry)) if part]
    minor = entry.kind in _MINOR and (entry.outcome or "").startswith("done")
    return Event(entry.opened_s, what, "; ".join(parts), minor=minor)
