"""The tasks of a waiting job array, which Slurm shows as one record."""

import re
from collections.abc import Collection
from dataclasses import replace

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job


def tasks_of(
    job: Job, task_list: str, ids: Collection[str] | None, most: int
) -> tuple[list[Job], list[str]]:
    """The job itself, or one Job per task of a waiting array such as ``0-3,7%2``.

    At most ``most`` tasks, lowest first, and all that ``ids`` names.
    """
    if not (task_list and job.array_job_id and "_" not in job.id):
        return ([job] if _asked_for(job, ids) else []), []
    array = str(job.array_job_id)
    ranges, cut = task_ranges(task_list)
    chosen: dict[int, None] = {}
    notes: list[str] = []
    if ids is None or array in ids:
        total = sum(len(span) for span in ranges)
        chosen.update(dict.fromkeys(_first(ranges, most)))
        if cut or total > most:
            more = "more than " if cut else ""
            notes.append(
                f"array {array}: {len(chosen)} of {more}{total} waiting tasks are looked at"
            )
    for wanted in ids or ():
        head, _, tail = wanted.partition("_")
        if head == array and tail and any(int(tail) in span for span in ranges):
            chosen[int(tail)] = None
    record = replace(job, array_tasks="" if cut else task_list.partition("%")[0])
    return [replace(record, id=f"{array}_{task}") for task in sorted(chosen)], notes


def task_ranges(text: str) -> tuple[list[range], bool]:
    """Ranges of a task list such as ``0-3,7,10-20:2%4``, and whether Slurm cut it short."""
    body = text.partition("%")[0]
    parts = [part for part in body.split(",") if part]
    cut = body.endswith("...")
    if cut:
        parts.pop()
    ranges = []
    for part in parts:
        match = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?", part, re.ASCII)
        if match is None or match[3] == "0":
            raise SlurmError(f"Slurm shows tasks as {text[:80]!r}, which is not understood")
        low = int(match[1])
        ranges.append(range(low, int(match[2] or low) + 1, int(match[3] or 1)))
    return ranges, cut


def _first(ranges: list[range], most: int) -> list[int]:
    found: list[int] = []
    for span in ranges:
        found += span[: max(0, most - len(found))]
    return found


def _asked_for(job: Job, ids: Collection[str] | None) -> bool:
    if ids is None or job.id in ids or str(job.raw_id) in ids:
        return True
    array, het = str(job.array_job_id), job.id.partition("+")[0]
    return (job.array_job_id > 0 and array in ids) or (job.het and het in ids)
