"""Jobs about which too little is known to plan them to the end, and how they are placed.

A job is *in doubt* while a GPU count that may be its fastest is untried, or while its work is an
assumption. A plan of all its work is then a guess. Therefore

- it grows step by step, and an untried speed counts with an optimistic estimate;
- a gang gets one node even if smaller jobs must change nodes for it, as its speed on several nodes
  is unknown;
- the horizon is longer.

In addition the plan does not decide for jobs whose work is an assumption nor, while all jobs
together need at most half of the GPUs, for those with an untried count or type. For these jobs
*without a plan*

- the next restart is judged by past restarts, not by the time over which it would pay;
- additional speed has diminishing value, and a job counts for less the more GPU time it still needs
  or, if its work is an assumption, has had; a job that determines the makespan counts in full;
- no job is stopped for others to have more while there is a GPU for each;
- none goes first because of the need or the time that the plan has for it.

If all counts and all work are known, none of this applies.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, View
from slurm_hadar.policies.allocation import ResourcePools
from slurm_hadar.policies.timetable.work import Options

_GROWS = 2
"""A job may get this many times the most GPUs on which it has been tried (as in Sia, SOSP 2023)."""
_TRIED_S = 300.0
"""A count of a job that reports nothing counts as tried after this training time, s."""
_MOST_ERROR = 1.0
"""Largest error of an untried rate that is used (of its logarithm)."""
_MOST_NEEDED = 0.5
"""Counts may be tried while the fewest GPUs that all jobs need are at most this fraction of the
GPUs; above it the plan knows better which job should wait."""
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Doubt:
    """``job`` (J,): in doubt. ``work`` (J,): in doubt because its work is an assumption.
    ``unplanned`` (J,): the plan does not decide for it. ``reach`` (J,): most GPUs that it may have
    now."""

    job: BoolArray
    work: BoolArray
    unplanned: BoolArray
    reach: IntArray

    @property
    def share(self) -> float:
        """Fraction of the jobs that are in doubt."""
        return float(self.job.mean()) if len(self.job) else 0.0


def doubt_of(view: View, pools: ResourcePools, options: Options) -> Doubt:
    """The doubt by ``JobArrays.known``. A count tried on one type counts for all types, and a count
    on which a job has trained for a while counts as tried. O(J x O)."""
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


def optimistic_rates(view: View, rate: FloatArray, curiosity: float) -> FloatArray:
    """(J, R, C) rates in samples/s with the value of trying: an untried rate counts for
    ``curiosity`` standard deviations more than expected, and for less of that the less work is
    left."""
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
    """(J,) fraction of its speed that another placement would keep: max(age - n S, 0) / (age + S),
    with n restarts of S s so far (Sia, SOSP 2023).

    It is the fraction of time for training that a job would have had with all these restarts and
    one more. A job that has moved often must gain much by the next move.
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

    A speed of x times the slowest counts as 1 + (x^a - 1) / a, for x >= 1 and a <= 1; a = 1 is
    proportional, a = 0 the logarithm. So each further GPU, and a faster one, adds less than the one
    before. ``part`` (J, O): fraction of its speed that an option keeps, as by
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
    """Change ``gain`` (J, O): on their slowest options all jobs without a plan have the same gain,
    up to their weights. Their work counts in :func:`need_factor`."""
    alike = np.flatnonzero(doubt.unplanned & (gain > 0).any(axis=1))
    if not len(alike):
        return
    here = gain[alike]
    slowest = np.where(here > 0, here, np.inf).min(axis=1) / weight[alike]
    gain[alike] *= (slowest.mean() / slowest)[:, None]


def need_factor(view: View, options: Options, doubt: Doubt) -> FloatArray:
    """(J,) the factor of a job without a plan: sqrt(m / (m + n)), with its need of n GPU-seconds
    and the mean need m of such jobs; 1 for other jobs.

    The need is the least GPU time for the remaining declared work: a soft form of shortest
    remaining time first. If the work is an assumption, the need is the GPU time so far, since work
    is heavy-tailed: a job that has had much is likely to need much more (least attained service
    first; Tiresias, NSDI 2019). The root is ours; without it the few longest jobs wait too long.
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
    """(J, O) fraction of its speed that a running job without a plan keeps on an option; 1 on its
    present option."""
    part = np.ones(options.seconds.shape)
    there = np.flatnonzero((options.now >= 0) & doubt.unplanned)
    part[there] = restart_factor(view)[there, None]
    part[there, options.now[there]] = 1.0
    return part
