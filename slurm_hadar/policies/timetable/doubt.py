"""Jobs of which too little is known to plan them to the end, and what follows for their places.

A job is in doubt while a count of GPUs that may be its fastest has not been tried, or while its
work is an assumption. A plan of all its work is then a guess. So

- it grows step by step, and an untried speed counts for what it may well be;
- a gang gets one node though smaller jobs must change theirs, as speeds apart are not known;
- the horizon is farther.

Besides, the plan does not decide over jobs whose work is an assumption, nor, while all jobs
together need no more than half of the GPUs, over those with a count or type that was not tried:

- the next restart is judged by those before and not by the time over which it would pay;
- more speed counts for less the faster the job is, and the more GPU time it still needs or, where
  the work is an assumption, has had; a need that decides when all the work ends counts in full;
- no job is stopped for others to have more while there is a GPU for each;
- none goes before another by the need or the time that the plan has for it.

Where all is known nothing of this applies.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, View
from slurm_hadar.policies.allocation import ResourcePools
from slurm_hadar.policies.timetable.work import Options

_GROWS = 2
"""A job may get this many times the most GPUs that it was tried on (as in Sia, SOSP 2023)."""
_TRIED_S = 300.0
"""A job that reports nothing counts as tried where it has trained for so long."""
_MOST_ERROR = 1.0
"""Of an untried rate, logarithm: beyond that it says nothing."""
_MOST_NEEDED = 0.5
"""Part of the GPUs that all jobs need at the fewest, up to which counts may be tried; above it the
plan knows better which job should wait."""
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Doubt:
    """``job`` (J,): in doubt. ``work`` (J,): as its work is an assumption. ``unplanned`` (J,): the
    plan does not decide over it. ``reach`` (J,): most GPUs that it may have now."""

    job: BoolArray
    work: BoolArray
    unplanned: BoolArray
    reach: IntArray

    @property
    def share(self) -> float:
        """Part of the jobs that are in doubt."""
        return float(self.job.mean()) if len(self.job) else 0.0


def doubt_of(view: View, pools: ResourcePools, options: Options) -> Doubt:
    """What was not tried, by ``JobArrays.known``: a count tried on one type counts for all types,
    and what a job has trained on for a while counts as tried. O(J x O)."""
    jobs, number = view.jobs, len(view.jobs.ids)
    unknown = np.zeros(number, dtype=bool)
    if jobs.prospects is not None:
        unknown = jobs.prospects.work_unknown.astype(bool)
    if not options.seconds.size:
        return Doubt(unknown, unknown, unknown, np.full(number, _FAR))
    kinds = np.asarray(pools.pool_type, dtype=np.int64)
    known = jobs.known[:, kinds, :].reshape(number, -1)
    possible = np.isfinite(options.seconds)
    most = np.where(known & possible, options.gpus, 0).max(axis=1)
    here = np.where(options.now >= 0, options.gpus[np.maximum(options.now, 0)], 0)
    settled = view.now - jobs.since_s >= jobs.restart_s + _TRIED_S
    most = np.maximum(most, np.where(settled, here, 0))
    least = np.where(possible, options.gpus, _FAR).min(axis=1)
    largest = np.where(possible, options.gpus, 0).max(axis=1)
    fastest = options.gpus[options.seconds.argmin(axis=1)]
    untried = (largest > least) & (fastest > most)
    reach = np.where(most > 0, _GROWS * most, least)
    reach = np.where(untried, np.maximum(reach, here), _FAR)
    partly = (possible & ~known).any(axis=1)
    uncrowded = least[largest > 0].sum() <= _MOST_NEEDED * options.capacity.sum()
    unplanned = unknown | (partly & uncrowded)
    return Doubt(untried | unplanned, unknown, unplanned, reach)


def hopeful(view: View, rate: FloatArray, curiosity: float) -> FloatArray:
    """(J, R, C) rates with what a trial may teach: one that was not tried counts for ``curiosity``
    standard deviations more than is expected, and for less of that the less work is left."""
    jobs = view.jobs
    if jobs.prospects is None or not curiosity:
        return rate
    error = jobs.prospects.rate_error
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = jobs.left / jobs.total
    young = np.where(np.isfinite(rest), np.clip(rest, 0.0, 1.0), 1.0)
    unsure = np.where(jobs.known | ~np.isfinite(error), 0.0, np.clip(error, 0.0, _MOST_ERROR))
    found: FloatArray = rate * np.exp(curiosity * young[:, None, None] * unsure)
    return found


def restart_factor(view: View) -> FloatArray:
    """(J,) part of its speed that any other place keeps: max(age - n S, 0) / (age + S), with n
    restarts of S s so far (Sia, SOSP 2023).

    It is the part of its time that a job would have had for training, had it begun with all these
    restarts and one more: who was moved often must gain much by the next move.
    """
    jobs = view.jobs
    restarts = jobs.prospects.restarts if jobs.prospects is not None else np.zeros(len(jobs.ids))
    age = np.maximum(view.now - jobs.arrival_s, 0.0)
    whole = np.maximum(age + jobs.restart_s, 1e-9)
    rest = np.maximum(age - restarts * jobs.restart_s, 0.0)
    found: FloatArray = np.where(age + jobs.restart_s > 0, rest / whole, 1.0)
    return found


def concave(options: Options, power: float, part: FloatArray | None = None) -> FloatArray:
    """(J, O) factors on a value in proportion to speed; 1 on the slowest option of each job.

    A speed x times that of the slowest is worth 1 + (x^a - 1) / a times as much, x >= 1 and
    a <= 1: 1 is in proportion, 0 the logarithm. So each further GPU, and a faster one, is worth
    less than the one before. ``part`` (J, O): of its speed that an option keeps, as by
    :func:`restart_factor`.
    """
    rest = np.ones(options.seconds.shape) if part is None else part
    if power >= 1.0:
        return rest
    able = np.isfinite(options.seconds)
    slowest = np.where(able, options.seconds, 0.0).max(axis=1, initial=0.0)[:, None]
    speed = np.where(able, slowest, 1.0) / np.where(able, options.seconds, 1.0)
    kept = speed * rest
    faster = np.maximum(kept, 1.0)
    worth = 1.0 + (np.log(faster) if abs(power) < 1e-6 else (faster**power - 1.0) / power)
    factor: FloatArray = np.where(kept > 1.0, worth, kept) / speed
    return factor


def alike_where_slowest(gain: FloatArray, weight: FloatArray, doubt: Doubt) -> None:
    """Change ``gain`` (J, O): jobs without a plan are worth the same, but for their weights, where
    they are slowest. What the work says of them :func:`need_factor` has."""
    alike = np.flatnonzero(doubt.unplanned & (gain > 0).any(axis=1))
    if not len(alike):
        return
    here = gain[alike]
    slowest = np.where(here > 0, here, np.inf).min(axis=1) / weight[alike]
    gain[alike] *= (slowest.mean() / slowest)[:, None]


def need_factor(view: View, options: Options, doubt: Doubt) -> FloatArray:
    """(J,) what a job without a plan counts for: sqrt(m / (m + n)) with a need of n GPU-seconds, m
    being the mean need of such jobs; 1 for the others.

    The need is the least GPU time that the declared work still takes: shortest remaining time
    first, by degrees. Where the work is an assumption it is the GPU time so far: who has had much
    is likely to need much more, as work is heavy-tailed (least attained service first; Tiresias,
    NSDI 2019). The root is ours: without it the few longest jobs wait for too long.
    """
    rest = np.where(np.isfinite(options.seconds), options.seconds * options.gpus, np.inf)
    least = rest.min(axis=1, initial=np.inf)
    had = view.jobs.attained
    need = np.where(doubt.work, had, np.where(np.isfinite(least), least, 0.0))
    factor = np.ones(len(had))
    for alike in (doubt.work, doubt.unplanned & ~doubt.work):
        if alike.any():
            mean = float(need[alike].mean()) + 1.0
            factor[alike] = np.sqrt(mean / (mean + need[alike]))
    return factor


def move_factor(view: View, options: Options, doubt: Doubt) -> FloatArray:
    """(J, O) part of its speed that a running job without a plan keeps on an option; 1 where it
    is."""
    part = np.ones(options.seconds.shape)
    there = np.flatnonzero((options.now >= 0) & doubt.unplanned)
    part[there] = restart_factor(view)[there, None]
    part[there, options.now[there]] = 1.0
    return part
