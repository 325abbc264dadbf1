"""The work that is assumed of a job that declares none: as much as earlier jobs of the same user,
name and model were, given what it has done already (past jobs as in A-SRPT).

An assumption is no declaration: the job stays one of unknown work for all rules that protect
others, and for the reasons that name an end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.job import Job
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.reports import formats

Likeness = tuple[int, str, str]
"""uid, name and declared model of jobs that are expected to be alike; no model: empty."""
_NAME_LENGTH = 200
LEAST_JOBS = 3
"""Of fewer earlier jobs nothing is assumed: one may have been a trial."""
_WORTH_SAYING = 1.1
"""Below this factor no message says that an assumption counts for more."""


@dataclass(frozen=True, slots=True)
class EarlierJobs:
    """Jobs that ended well: ``samples`` of each that reported some, ``gpu_s`` of each that was seen
    running, GPU-seconds."""

    samples: tuple[float, ...] = ()
    gpu_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkSoFar:
    """Of one job: ``trained``, samples; ``attained``, GPU-seconds; ``per_gpu``: samples/s of one
    GPU of a usual type; ``timed``: whether that is a speed at all, and no ratio only."""

    trained: float
    attained: float
    per_gpu: float
    timed: bool


@dataclass(frozen=True, slots=True)
class AssumedWork:
    """All (J,), 0 where nothing is assumed.

    ``jobs``: earlier ones that were more work than this one has done, or all where it has done more
    than any of them (``outlasted``); ``amount``: their median, or then the largest, and
    ``had``: what it has done, both in samples where ``in_samples``, else in GPU-seconds; ``left``:
    samples still to train.
    """

    jobs: IntArray
    outlasted: BoolArray
    amount: FloatArray
    had: FloatArray
    in_samples: BoolArray
    left: FloatArray


def likeness(job: Job) -> Likeness:
    """Which jobs tell something of this one."""
    # What its owner typed there may be no text at all.
    name = job.name[:_NAME_LENGTH].encode("utf-8", "replace").decode()
    return job.uid, name, job.declaration.model if job.declaration else ""


def conditional_median(amounts: Sequence[float], done: float) -> float:
    """The median of the amounts above ``done``, in the same unit; 0.0 where none is."""
    above = [amount for amount in amounts if amount > done]
    return float(np.median(above)) if above else 0.0


def assumed_work(
    earlier: Sequence[EarlierJobs | None], so_far: Callable[[int], WorkSoFar]
) -> AssumedWork:
    """What is assumed of jobs. ``earlier`` (J,): the jobs alike, None of a job that declares its
    work; ``so_far``: of a row that has some.

    One that outlasted all earlier jobs is assumed to last as long again as it did.
    """
    count = len(earlier)
    found = AssumedWork(
        jobs=np.zeros(count, np.int64),
        outlasted=np.zeros(count, bool),
        amount=np.zeros(count),
        had=np.zeros(count),
        in_samples=np.zeros(count, bool),
        left=np.zeros(count),
    )
    for row, known in enumerate(earlier):
        if known is None or max(len(known.samples), len(known.gpu_s)) < LEAST_JOBS:
            continue
        done = so_far(row)
        in_samples = done.timed and len(known.samples) >= LEAST_JOBS
        amounts = known.samples if in_samples else known.gpu_s
        if len(amounts) < LEAST_JOBS:
            continue
        had, per_unit = (done.trained, 1.0) if in_samples else (done.attained, done.per_gpu)
        median = conditional_median(amounts, had)
        found.jobs[row] = sum(one > had for one in amounts) or len(amounts)
        found.outlasted[row] = not median
        found.amount[row], found.had[row] = median or max(amounts), had
        found.in_samples[row] = in_samples
        found.left[row] = (median - had if median else had) * per_unit
    return found


def sentence(assumed: AssumedWork, row: int, factor: float) -> str:
    """For the owner of a job; ``factor``: what its amount was multiplied by."""
    jobs = formats.counted(int(assumed.jobs[row]), "earlier job")
    alike = f"{jobs} of the same user, name and model"
    if assumed.outlasted[row]:
        return f"; it declares no work, and has done more than all of {alike}: its work is unknown"
    amount = float(assumed.amount[row]) * factor
    what = f"{amount:,.0f} samples" if assumed.in_samples[row] else f"{amount / 3600:.3g} GPU-hours"
    more = (
        f", {factor:.1f} times that, as this user's jobs took longer"
        if factor >= _WORTH_SAYING
        else ""
    )
    return f"; it declares no work: {what} in all are assumed, as the median of {alike}{more}"
