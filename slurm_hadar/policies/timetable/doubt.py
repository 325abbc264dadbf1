"""Jobs of which too little is known to plan them to the end, and what follows for their places.

A job is in doubt while a count of GPUs that may be its fastest has not been tried, or while its
work is an assumption. A plan of all its work is then a guess. So

- it grows step by step, and an untried speed counts for what it may well be;
- a gang gets one node though smaller jobs must change theirs, as speeds apart are not known;
- the horizon is farther.

Where the work is an assumption, besides, the next restart is judged by those before and not by the
time over which it would pay, more speed counts for less the faster the job is and the more GPU time
it has had, the job is not stopped for others to have more while there is a GPU for each, and it
goes before no other by the need that is assumed, nor by the time that the plan has for it.
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
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Doubt:
    """``job`` (J,): in doubt. ``work`` (J,): as its work is an assumption. ``reach`` (J,): most
    GPUs that it may have now."""

    job: BoolArray
    work: BoolArray
    reach: IntArray

    @property
    def share(self) -> float:
        """Part of the jobs that are in doubt."""
        return float(self.job.mean()) if len(self.job) else 0.0


def doubt_of(view: View, floor: ResourcePools, options: Options) -> Doubt:
    """What was not tried, by ``JobArrays.known``: a count tried on one type counts for all types,
    and what a job has trained on for a while counts as tried. O(J x O)."""
    jobs, number = view.jobs, len(view.jobs.ids)
    unknown = np.zeros(number, dtype=bool)
    if jobs.prospects is not None:
        unknown = jobs.prospects.work_unknown.astype(bool)
    if not options.seconds.size:
        return Doubt(unknown, unknown, np.full(number, _FAR))
    kinds = np.asarray(floor.pool_type, dtype=np.int64)
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
    return Doubt(untried | unknown, unknown, reach)


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
    """Change ``gain`` (J, O): jobs of unknown work are worth the same, but for their weights, where
    they are slowest, as nothing says which of them is the longest."""
    unknown = np.flatnonzero(doubt.work & (gain > 0).any(axis=1))
    if not len(unknown):
        return
    here = gain[unknown]
    slowest = np.where(here > 0, here, np.inf).min(axis=1) / weight[unknown]
    gain[unknown] *= (slowest.mean() / slowest)[:, None]


def attained_factor(view: View, doubt: Doubt) -> FloatArray:
    """(J,) what a job of unknown work counts for: sqrt(m / (m + a)) after a GPU-seconds, m being
    the mean of such jobs; 1 for the others.

    Who has had much is likely to need much more, as work is heavy-tailed: least attained service
    first (Tiresias, NSDI 2019), by degrees. The root is ours: without it the few longest jobs wait
    for too long.
    """
    had = view.jobs.attained
    mean = (float(had[doubt.work].mean()) if doubt.work.any() else 0.0) + 1.0
    found: FloatArray = np.where(doubt.work, np.sqrt(mean / (mean + had)), 1.0)
    return found


def move_factor(view: View, options: Options, doubt: Doubt) -> FloatArray:
    """(J, O) part of its speed that a running job of unknown work keeps on an option; 1 where it
    is."""
    part = np.ones(options.seconds.shape)
    there = np.flatnonzero((options.now >= 0) & doubt.work)
    part[there] = restart_factor(view)[there, None]
    part[there, options.now[there]] = 1.0
    return part
