"""What jobs are worth: utilities, the order of the queue, and what a GPU costs each job.

All of it once per decision and for all jobs at once.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, View
from slurm_hadar.policies.allocation import ResourcePools
from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.solvers.prices import DualPrice, Scarcity, dual_price, scarcity

_INF = np.inf
_MANY = 1 << 40


@dataclass(frozen=True)
class Worth:
    """Arrays over J jobs, R types, C counts; times in s, utility per job without unit."""

    seconds: FloatArray
    """(J, R, C) run time of what is left, inf where the job cannot run so."""
    utility: FloatArray
    """(J, R, C) U_j when started now so; for critical jobs raised above all others."""
    rank: FloatArray
    """(J, R, C) payoff per price before anything is taken: the order of the queue."""
    best_s: FloatArray
    """(J,) run time at its best."""
    critical: BoolArray
    """(J,) whether the horizon leaves no slack to the job, or to all gangs of its size."""
    scarcity: Scarcity
    horizon_s: float
    """Time by which all the present work can be done at the earliest, as far as we can bound it."""


def worth(view: View, pools: ResourcePools, settings: HadarOptions) -> Worth:
    """Value every job on every type and count.

    Utilities (arXiv 2503.10918, recalled: U_j non-increasing in the finish f_j, by default the
    effective throughput; its other forms are ours), times the job's weight, t = time left, t* at
    the job's best, a_j arrival, m = now:

    - ``throughput``: t* / (f - m), the effective throughput of the work that is left, in units of
      the job's best speed. The paper's formula with the decision as the start: the waiting and
      the training behind us are the same whatever is decided now.
    - ``lifetime``: (t* of the whole job) / (f - a), the paper's formula to the letter.
    - ``makespan``: the job's share in the horizon (its work at the types' dual prices), longest
      time left first.
    - ``fairness``: finish-time fairness rho = (f - a) / t_alone, t_alone = t* of the whole job
      times jobs per node (at least 1), has the convex cost rho^2 / 2; its slope rho / t_alone is
      what a second of delay costs (generalised c-mu rule), times the relative speed of the place.
    """
    jobs = view.jobs
    counts = np.asarray(view.counts, dtype=np.float64)
    seconds, whole = _times(view, pools)
    capacity = view.nodes.gpus.sum(axis=0)
    gpu_seconds = seconds * counts
    frugal = gpu_seconds.min(axis=2, initial=_INF)
    found = scarcity(frugal, capacity)
    best_s = seconds.min(axis=(1, 2), initial=_INF)
    possible = np.isfinite(best_s)
    late = _gang_horizons(view, frugal, np.where(np.isfinite(seconds), counts, _MANY))
    horizon = max(
        found.horizon_s, float(best_s[possible].max(initial=0.0)), *(h for _, h in late), 0.0
    )
    price = np.maximum(found.price, 1e-12 / max(1.0, float(capacity.sum())))
    priced = np.where(np.isfinite(gpu_seconds), gpu_seconds * price[None, :, None], _INF)
    cheapest = priced.min(axis=(1, 2), initial=_INF)
    utility = _utility(view, settings, seconds, whole, best_s, cheapest, horizon)
    with np.errstate(invalid="ignore", divide="ignore"):
        fit = np.where(np.isfinite(priced), cheapest[:, None, None] / priced, 0.0)
        rank = np.where(np.isfinite(priced), utility * fit / priced, 0.0)
    least = settings.critical * horizon
    gangs = [
        rows & (jobs.weight > 0.0)
        for rows, together_s in late
        if together_s >= least and not rows[possible].all()
    ]
    critical = possible & (jobs.weight > 0.0) & (best_s >= least)
    for rows in gangs:
        _lift(rank, rows)
    if critical.any():
        top = float(rank.max(initial=0.0)) or 1.0
        urgent, there = best_s[critical, None, None], np.isfinite(seconds[critical])
        pace = np.where(there, urgent / seconds[critical], 0.0)
        rank[critical] = top * (1.0 + urgent / max(horizon, 1e-9)) * pace
    for rows in gangs:
        critical |= rows
    cost = np.where(np.isfinite(priced), priced, 0.0)[critical]
    utility[critical] = np.maximum(utility[critical], rank[critical] * cost)
    return Worth(seconds, utility, rank, best_s, critical, found, horizon)


def _times(view: View, pools: ResourcePools) -> tuple[FloatArray, FloatArray]:
    """(J, R, C) s of the work that is left and of the whole work; inf where a job cannot run."""
    jobs, counts = view.jobs, np.asarray(view.counts, dtype=np.float64)
    open_, total = _open(view, pools)
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.where(jobs.rate > 0, jobs.left[:, None, None] / jobs.rate, _INF)
        whole = np.where(jobs.rate > 0, jobs.total[:, None, None] / jobs.rate, _INF)
    fits = open_[:, :, None] & (counts[None, None, :] <= _within_reach(view, total))
    seconds = np.where(fits, np.maximum(seconds, 1.0), _INF)
    whole = np.where(fits, np.maximum(whole, 1.0), _INF)
    return seconds, whole


def _gang_horizons(
    view: View, frugal: FloatArray, sizes: FloatArray
) -> list[tuple[BoolArray, float]]:
    """For each size of gang above 1, the jobs that need so many GPUs or more, and a bound of the
    time that they need together: 20 GPUs are only 16 for gangs of 8."""
    least = sizes.min(axis=(1, 2), initial=_MANY)
    gpus = view.nodes.gpus
    found = []
    for size in sorted({int(n) for n in np.unique(least) if 1 < n < _MANY}):
        rows = least >= size
        rows &= least < _MANY
        spread = bool((view.jobs.max_nodes[rows] > 1).any())
        seats = (gpus.sum(axis=0) // size if spread else (gpus // size).sum(axis=0)) * size
        found.append((rows, scarcity(frugal[rows], seats).horizon_s))
    return found


def _lift(rank: FloatArray, rows: BoolArray) -> None:
    """Raise these jobs above all others; their own order stays."""
    best = rank.max(axis=(1, 2), initial=0.0)
    able = rows & (best > 0.0)
    if able.any():
        top = float(best[~rows].max(initial=0.0))
        lifted = top * (1.0 + best[able] / best[able].max())
        rank[able] *= np.maximum(1.0, lifted / best[able])[:, None, None]


def _open(view: View, pools: ResourcePools) -> tuple[BoolArray, IntArray]:
    """(J, R) whether the owner may use a pool of the type, and how many GPUs those have."""
    jobs, kinds = len(view.jobs.ids), len(view.types)
    total = np.zeros((jobs, kinds), dtype=np.int64)
    for pool, kind in enumerate(pools.pool_type):
        total[:, kind] += view.jobs.groups[:, pools.pool_group[pool]] * pools.capacity[pool]
    return total > 0, total


def _within_reach(view: View, total: IntArray) -> IntArray:
    """(J, R, C) GPUs that a gang bound by the type could have: those of the type, and where the
    job may mix, those of the types that are at least as fast."""
    jobs = view.jobs
    reach = np.broadcast_to(total[:, :, None], jobs.rate.shape).copy()
    rows = np.flatnonzero(jobs.mixable & (jobs.max_nodes > 1))
    rate = jobs.rate[rows]
    for kind in range(rate.shape[1]):
        as_fast = (rate >= rate[:, kind : kind + 1]) & (rate > 0)
        reach[rows, kind] = (as_fast * total[rows][:, :, None]).sum(axis=1)
    return reach


def _utility(
    view: View,
    settings: HadarOptions,
    seconds: FloatArray,
    whole: FloatArray,
    best_s: FloatArray,
    cheapest: FloatArray,
    horizon: float,
) -> FloatArray:
    jobs = view.jobs
    waited = np.maximum(view.now - jobs.arrival_s, 0.0)[:, None, None]
    best = best_s[:, None, None]
    whole_best = whole.min(axis=(1, 2), initial=_INF)
    with np.errstate(invalid="ignore", divide="ignore"):
        if settings.utility == "throughput":
            utility = best / seconds
        elif settings.utility == "lifetime":
            utility = whole_best[:, None, None] / (waited + seconds)
        elif settings.utility == "makespan":
            share = cheapest * best_s / max(horizon, 1.0) ** 2
            utility = np.broadcast_to(share[:, None, None], seconds.shape)
        else:
            machines = max(1, int((view.nodes.gpus.sum(axis=1) > 0).sum()))
            alone = (whole_best * max(1.0, len(jobs.ids) / machines))[:, None, None]
            rho = (waited + best) / alone
            utility = rho * horizon / alone * (best / seconds)
    utility = np.where(np.isfinite(seconds), utility, 0.0)
    weight = np.maximum(jobs.weight, 0.0)[:, None, None]
    result: FloatArray = np.nan_to_num(utility * weight, nan=0.0, posinf=0.0)
    return result


def demand(worth: Worth, frugal_counts: IntArray, waiting: BoolArray, gpus: int) -> float:
    """Payoff per price of the last job that still gets GPUs when the queue is served in order.

    0 where the capacity suffices for all: then no job has to be outbid. Fractional, types not
    distinguished.
    """
    order = np.flatnonzero(waiting)
    best = worth.rank.max(axis=(1, 2), initial=0.0)
    order = order[np.argsort(-best[order], kind="stable")]
    filled = np.cumsum(frugal_counts[order])
    last = int(np.searchsorted(filled, gpus, side="right"))
    return float(best[order[last]]) if last < len(order) else 0.0


def frugal_counts(counts: IntArray, worth: Worth) -> IntArray:
    """(J,) GPUs of the count that needs the fewest GPU-seconds; ``counts`` (C,)."""
    gpu_seconds = (worth.seconds * counts).reshape(len(worth.seconds), -1)
    if not gpu_seconds.size:
        return np.zeros(len(gpu_seconds), dtype=np.int64)
    chosen: IntArray = counts[gpu_seconds.argmin(axis=1) % len(counts)]
    return chosen


def todays_price(view: View, worth: Worth, waiting: BoolArray, gpus: int) -> DualPrice:
    """Hadar's price for the jobs that wait (J,), where so many GPUs are free.

    Critical jobs do not bid: their utility was raised above all others.
    """
    rows = np.flatnonzero(waiting & ~worth.critical & np.isfinite(worth.best_s))
    seconds, utility = worth.seconds[rows], worth.utility[rows]
    doable = np.isfinite(seconds)
    gpu_seconds = np.where(doable, seconds, 0.0) * np.asarray(view.counts, float)
    density = np.divide(utility, gpu_seconds, out=np.zeros_like(utility), where=doable)
    slowest = np.where(doable, seconds, 0.0).max(axis=(1, 2), initial=0.0)
    # A job that ends at the horizon instead keeps this part of its least utility.
    least = np.where(doable, utility, _INF).min(axis=(1, 2), initial=_INF)
    last = least * np.minimum(1.0, slowest / max(worth.horizon_s, 1.0))
    longest = gpu_seconds.max(axis=(1, 2), initial=0.0)
    best = density.max(axis=2, initial=0.0)
    return dual_price(best, last, longest, float(max(gpus, 1)), view.round_s)


@dataclass(frozen=True, slots=True)
class TypeOption:
    """One (type, count) that a job may run on. ``rank``: payoff per price, ``seconds``: run time,
    ``utility``: U_j there; all before anything is taken."""

    gpu_type: int
    count: int
    seconds: float
    utility: float
    rank: float


class Cells:
    """What each job may run on, best first.

    Counts above the most frugal one of a type are left out while others would have to wait for
    them: ``growth`` is how many times over the demand could be served. ``held`` (J,) is the number
    of GPUs that the job has: so many are always allowed.
    """

    def __init__(self, worth: Worth, counts: IntArray, held: IntArray, growth: float) -> None:
        seconds = worth.seconds
        jobs = len(seconds)
        if seconds.size:
            frugal = counts[(seconds * counts).argmin(axis=2)]
            most = np.maximum(held[:, None], frugal * max(1.0, growth))
            allowed = np.isfinite(seconds) & (counts <= most[:, :, None])
        else:
            allowed = np.zeros(seconds.shape, dtype=bool)
        kinds = np.broadcast_to(np.arange(seconds.shape[1])[:, None], seconds.shape[1:]).ravel()
        sizes = np.broadcast_to(counts, seconds.shape[1:]).ravel()
        rank = np.where(allowed, worth.rank, -_INF).reshape(jobs, -1)
        shape = rank.shape
        order = np.lexsort((np.broadcast_to(kinds, shape), np.broadcast_to(sizes, shape), -rank))
        self._order: list[list[int]] = order.tolist()
        self._number: list[int] = allowed.sum(axis=(1, 2)).tolist()
        self._kinds, self._sizes = kinds.tolist(), sizes.tolist()
        self._seconds = seconds.reshape(jobs, -1)
        self._utility, self._rank = worth.utility.reshape(jobs, -1), rank
        self._known: dict[int, tuple[TypeOption, ...]] = {}
        self.quickest: list[float] = (
            np.where(allowed, seconds, _INF).min(axis=(1, 2), initial=_INF).tolist()
        )
        """(J,) shortest run time, s."""
        self.least: list[int] = (
            np.where(allowed, counts, _MANY).min(axis=(1, 2), initial=_MANY).tolist()
        )
        """(J,) smallest gang; very large where the job cannot run."""
        self.pattern = [row.tobytes() for row in np.packbits(allowed.reshape(jobs, -1), axis=1)]
        """(J,) equal for jobs with the same types and counts."""

    def of(self, job: int) -> tuple[TypeOption, ...]:
        """The cells of one job."""
        if job not in self._known:
            seconds, utility = self._seconds[job].tolist(), self._utility[job].tolist()
            rank = self._rank[job].tolist()
            self._known[job] = tuple(
                TypeOption(self._kinds[at], self._sizes[at], seconds[at], utility[at], rank[at])
                for at in self._order[job][: self._number[job]]
            )
        return self._known[job]
