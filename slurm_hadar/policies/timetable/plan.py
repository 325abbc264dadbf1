"""The timetable: the solution of the linear programme, kept between rounds and read at any time.

The programme has all jobs if they are few, else classes of similar jobs; then each job finds its
own best times and options at the prices.
"""

from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.policies.timetable.round_input import RoundInput
from slurm_hadar.policies.timetable.settings import TimetableOptions
from slurm_hadar.policies.timetable.speeds import ObservedRates
from slurm_hadar.policies.timetable.work import Options
from slurm_hadar.solvers.time_indexed import TimeIndexedWork, shortest, timetable

_FAR = 1.25
"""A deadline this many times too far is replaced by a nearer one."""
_WINDOW = 1.25
"""Buckets are kept for this many times the interval between two timetables."""


_WIDTHS = 40
"""Most widths of a class of jobs that are tried, each 1.3 times the one before."""
_SAMPLE = 8
"""Jobs that are looked at first, per class."""


@dataclass(frozen=True)
class Timetable:
    """Times in s after ``start_s``. J jobs in the order of ``ids``, P pools, O options, B
    buckets."""

    ids: tuple[str, ...]
    start_s: float
    """On the clock of ``View.now``."""
    deadline_s: float
    """On the clock of ``View.now``."""
    least_s: float
    """Least time for all work."""
    edges: FloatArray
    """(B + 1,) ends of the buckets."""
    price: FloatArray
    """(P, B) weighted s of waiting per GPU-second."""
    worth: FloatArray
    """(J,) weighted s: the price of the whole job, the cost of its waiting included."""
    run_s: FloatArray
    """(J,) planned run time until the job ends."""
    limit: FloatArray
    """(J,) tightness from which a job goes first."""
    best_s: FloatArray
    """(J,) the shortest run time."""
    mix: FloatArray
    """(J, O) fraction of the planned run time on each option."""
    share: FloatArray
    """(J, O, W) planned fraction of each bucket on each option; W buckets are kept."""


def solve(inputs: RoundInput, observed: ObservedRates, deadline: float) -> Timetable:
    """A new timetable. The deadline stays while it can be met.

    A job with estimated speeds gets more slack. The less reliable the declared work of ended jobs
    was, the less a single long job determines how late the others may be.
    """
    weight, settings = inputs.weight, inputs.settings
    ids, now = inputs.view.jobs.ids, inputs.view.now
    options = replace(inputs.options, seconds=undominated_run_times(inputs.options))
    group = job_classes(options.seconds, _most_job_classes(options, settings))
    work = _work(options, weight, group)
    thrifty = replace(work, seconds=frugal_run_times(work, settings.waste))
    least = shortest(thrifty)[0]
    if not observed.declarations_reliable:
        least = (1.0 - observed.wrong) * least + observed.wrong * shortest(thrifty, alone=False)[0]
    least = max(least, 1.0)
    # A horizon from estimated work and speeds cannot be met exactly.
    further = max(settings.doubt_stretch - settings.stretch, 0.0)
    stretch = settings.stretch + further * inputs.doubt.share
    if not now + settings.keep * least <= deadline <= now + _FAR * stretch * least:
        deadline = now + stretch * least
    horizon = deadline - now
    edges = _edges(horizon, settings)
    best = work.seconds.min(axis=1)
    own = settings.duty * (1.0 - settings.caution * observed.guessed)
    least_own = np.ones(len(work.number))
    np.minimum.at(least_own, group, own)
    needed = np.where(np.isfinite(best), best, 0.0) / horizon * 1.0001
    duty = np.clip(needed, least_own, 1.0)
    window = int(np.searchsorted(edges, _WINDOW * settings.solve_every * horizon)) + 1
    window = min(window, len(edges) - 1)
    fluid = timetable(work, edges, duty)
    worth = fluid.worth
    if len(work.number) < len(ids):
        duty = np.clip(options.best_s / horizon, own, 1.0)
        answer = best_response(options, weight, fluid.price, edges, duty)
        worth, on_option, busy = answer.worth, *answer.busy_s(len(options.gpus), window)
        run_s = on_option.sum(axis=1)
    else:
        seconds = np.where(np.isfinite(options.seconds), options.seconds, 0.0)
        busy = fluid.share * seconds[:, :, None]
        run_s, on_option, busy = busy.sum(axis=(1, 2)), busy.sum(axis=2), busy[:, :, :window]
    return Timetable(
        ids=ids,
        start_s=now,
        deadline_s=deadline,
        least_s=least,
        edges=edges,
        price=fluid.price,
        worth=worth,
        run_s=run_s,
        limit=1.0 - (1.0 - settings.critical) * (1.0 - own) / max(1.0 - settings.duty, 1e-6),
        mix=on_option / np.maximum(run_s, 1e-9)[:, None],
        best_s=np.where(np.isfinite(options.best_s), options.best_s, 0.0),
        share=busy / np.diff(edges)[:window],
    )


@dataclass(frozen=True)
class BestResponse:
    """``option`` (J, B): the cheapest option of a job in the bucket. ``run_s`` (J, B): how long it
    runs there. ``worth`` (J,): weighted s that the whole job costs."""

    option: IntArray
    run_s: FloatArray
    worth: FloatArray

    def busy_s(self, options: int, window: int) -> tuple[FloatArray, FloatArray]:
        """(J, O) run time on each of so many options, and (J, O, W) in the first buckets."""
        jobs = len(self.option)
        row = np.arange(jobs)[:, None]
        flat = (row * options + self.option).ravel()
        total = np.zeros(jobs * options)
        np.add.at(total, flat, self.run_s.ravel())
        found = np.zeros((jobs, options, window))
        kept = np.arange(window)
        found[row, self.option[:, :window], kept] = self.run_s[:, :window]
        return total.reshape(jobs, options), found


def best_response(
    options: Options, weight: FloatArray, price: FloatArray, edges: FloatArray, duty: FloatArray
) -> BestResponse:
    """The best response of each job to the prices: the cheapest buckets, at most ``duty`` of each.

    ``price`` (P, B). A job pays for its GPUs and for its waiting. Vectorised over the jobs, O(J x O
    x B).
    """
    jobs, buckets = len(weight), len(edges) - 1
    middle = (edges[1:] + edges[:-1]) / 2
    seconds = options.seconds
    possible = np.isfinite(seconds)
    able = np.asarray(possible.any(axis=1))
    runs = np.where(possible, seconds, 0.0)
    cost = np.empty((jobs, buckets))
    option: IntArray = np.empty((jobs, buckets), dtype=np.int64)
    every = np.arange(jobs)
    for b in range(buckets):
        paid = runs * (options.gpus * price[options.pool, b])
        paid[~possible] = np.inf
        option[:, b] = paid.argmin(axis=1)
        cost[:, b] = weight * middle[b] + np.where(able, paid[every, option[:, b]], 0.0)
    time = np.where(able[:, None], seconds[every[:, None], option], 1.0)
    most = duty[:, None] * np.diff(edges) / np.maximum(time, 1e-9)
    order = np.argsort(cost, axis=1, kind="stable")
    most_sorted = np.take_along_axis(most, order, axis=1)
    upto = np.cumsum(most_sorted, axis=1)
    part = np.clip(1.0 - (upto - most_sorted), 0.0, None)
    part = np.minimum(part, most_sorted) * able[:, None]
    last = np.minimum((upto < 1.0).sum(axis=1), buckets - 1)
    worth = np.take_along_axis(cost, order, axis=1)[every, last]
    run_s = np.empty((jobs, buckets))
    np.put_along_axis(run_s, order, part, axis=1)
    return BestResponse(option, run_s * time, np.where(able, worth, 0.0))


def undominated_run_times(options: Options) -> FloatArray:
    """(J, O) run times in s, inf for a count that another count of the same pool beats or equals in
    run time and in GPU-seconds: no plan needs it."""
    seconds = options.seconds.copy()
    spent = options.seconds * options.gpus
    for pool in np.unique(options.pool):
        here = np.flatnonzero(options.pool == pool)
        for one in here:
            for other in here:
                if one == other:
                    continue
                beaten = (options.seconds[:, other] <= options.seconds[:, one]) & (
                    spent[:, other] <= spent[:, one]
                )
                equal = beaten & (spent[:, other] == spent[:, one])
                beaten &= ~equal | (options.gpus[other] < options.gpus[one])
                seconds[beaten, one] = np.inf
    return seconds


def frugal_run_times(work: TimeIndexedWork | Options, waste: float) -> FloatArray:
    """(J, O) run times in s, inf for counts that spend more than ``waste`` times the GPU-seconds of
    the job's most frugal count in the pool.

    The horizon is computed from these. Otherwise one long job, as fast as many GPUs can make it,
    would shorten the horizon so much that all others would need counts that waste GPUs.
    """
    spent = work.seconds * work.gpus
    least = np.full_like(spent, np.inf)
    for pool in np.unique(work.pool):
        here = work.pool == pool
        least[:, here] = spent[:, here].min(axis=1, initial=np.inf)[:, None]
    with np.errstate(invalid="ignore"):
        found: FloatArray = np.where(spent <= waste * least, work.seconds, np.inf)
    return found


def job_classes(seconds: FloatArray, limit: int) -> IntArray:
    """(J,) class of each job: each its own if there are at most ``limit`` jobs. Otherwise jobs with
    about the same run times on all options share a class; the longest ones are merged last."""
    jobs = len(seconds)
    if jobs <= limit:
        return np.arange(jobs)
    best = seconds.min(axis=1)
    alone = np.zeros(jobs, dtype=bool)
    finite = np.where(np.isfinite(best), best, 0.0)
    alone[np.argsort(-finite, kind="stable")[: limit // 3]] = True
    rest = np.flatnonzero(~alone)
    logs = np.where(np.isfinite(seconds[rest]), np.log(np.maximum(seconds[rest], 1e-9)), -99.0)
    width = 0.1
    mix: IntArray = np.random.default_rng(0).integers(1, 2**40, (logs.shape[1],))
    most = limit - limit // 3
    few = logs[: _SAMPLE * most]
    for _ in range(_WIDTHS - 1):
        # Some of the jobs show cheaply that there are too many classes.
        if len(np.unique(_keys(few, width, mix))) <= most and (
            len(np.unique(_keys(logs, width, mix))) <= most
        ):
            break
        width *= 1.3
    group = np.unique(_keys(logs, width, mix), return_inverse=True)[1].reshape(-1)
    result: IntArray = np.empty(jobs, dtype=np.int64)
    result[rest] = group.reshape(-1)
    first = int(group.max(initial=-1)) + 1
    result[alone] = first + np.arange(int(alone.sum()))
    return result


def _keys(logs: FloatArray, width: float, mix: IntArray) -> IntArray:
    """(J,) a hash of each row of integers: equal rows get equal numbers."""
    found: IntArray = np.matmul(np.round(logs / width).astype(np.int64), mix)
    return found


def _most_job_classes(options: Options, settings: TimetableOptions) -> int:
    triples = int(np.isfinite(options.seconds).sum()) * settings.buckets
    jobs = len(options.seconds)
    if triples <= settings.exact:
        return jobs
    return max(3, int(jobs * settings.coarse / triples))


def _work(options: Options, weight: FloatArray, group: IntArray) -> TimeIndexedWork:
    number = np.bincount(group).astype(np.float64)
    if len(number) == len(group):
        seconds = options.seconds
        weights = weight
    else:
        finite = np.isfinite(options.seconds)
        total = np.zeros((len(number), len(options.gpus)))
        np.add.at(total, group, np.where(finite, options.seconds, 0.0))
        able = np.ones_like(total, dtype=bool)
        np.logical_and.at(able, group, finite)
        seconds = np.where(able, total / number[:, None], np.inf)
        weights = np.bincount(group, weights=weight) / number
    return TimeIndexedWork(seconds, options.gpus, options.pool, options.capacity, number, weights)


def _edges(horizon: float, settings: TimetableOptions) -> FloatArray:
    steps = settings.ratio ** np.arange(settings.buckets)
    return np.concatenate([[0.0], horizon * steps / steps[-1]])
