"""The utility of each placement to each job, the order of the queue, and the price of GPUs.

Computed once per decision, for all jobs at once.
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
class Utilities:
    """Arrays over J jobs, R types, C counts. Times in s; utility per job has no unit."""

    seconds: FloatArray
    """(J, R, C) run time of the remaining work; inf if the job cannot run there."""
    utility: FloatArray
    """(J, R, C) U_j if the job starts there now; for critical jobs raised above all others."""
    rank: FloatArray
    """(J, R, C) payoff per price before any GPU is taken: the order of the queue."""
    best_s: FloatArray
    """(J,) shortest run time."""
    critical: BoolArray
    """(J,) whether the horizon leaves no slack to the job, or to all gangs of its size."""
    scarcity: Scarcity
    horizon_s: float
    """A lower bound of the time until all present work can be done."""


def utilities_of(view: View, pools: ResourcePools, settings: HadarOptions) -> Utilities:
    """The utility of each job on each type and count.

    Utilities from arXiv 2503.10918 (recalled: U_j is non-increasing in the finish time f_j, by
    default the effective throughput; the other forms are ours), times the job's weight. t = time
    left, t* = time left at the job's best, a_j = arrival, m = now:

    - ``throughput``: t* / (f - m), the effective throughput of the remaining work in units of the
      job's best speed. This is the paper's formula with the decision as the start: waiting and
      training in the past do not depend on this decision.
    - ``lifetime``: (t* of the whole job) / (f - a), the paper's formula as it stands.
    - ``makespan``: the job's share of the horizon (its work at the dual prices of the types),
      longest time left first.
    - ``fairness``: finish-time fairness rho = (f - a) / t_alone, with t_alone = t* of the whole job
      times jobs per node (at least 1), has the convex cost rho^2 / 2. Its slope rho / t_alone is
      the cost of one second of delay (generalised c-mu rule), times the relative speed there.
    """
    jobs = view.jobs
    counts = np.asarray(view.counts, dtype=np.float64)
    times = _run_times(view, pools)
    seconds, best_s = times.left, times.best_s
    capacity = view.nodes.gpus.sum(axis=0)
    gpu_seconds = seconds * counts
    frugal = gpu_seconds.min(axis=2, initial=_INF)
    found = scarcity(frugal, capacity)
    possible = np.isfinite(best_s)
    gang_horizons = _gang_horizons(view, frugal, np.where(np.isfinite(seconds), counts, _MANY))
    horizon = max(
        found.horizon_s,
        float(best_s[possible].max(initial=0.0)),
        *(h for _, h in gang_horizons),
        0.0,
    )
    price = np.maximum(found.price, 1e-12 / max(1.0, float(capacity.sum())))
    priced = np.where(np.isfinite(gpu_seconds), gpu_seconds * price[None, :, None], _INF)
    cheapest = priced.min(axis=(1, 2), initial=_INF)
    utility = _utility(view, settings, times, cheapest, horizon)
    with np.errstate(invalid="ignore", divide="ignore"):
        fit = np.where(np.isfinite(priced), cheapest[:, None, None] / priced, 0.0)
        rank = np.where(np.isfinite(priced), utility * fit / priced, 0.0)
    least = settings.critical * horizon
    gangs = [
        rows & (jobs.weight > 0.0)
        for rows, together_s in gang_horizons
        if together_s >= least and not rows[possible].all()
    ]
    critical = possible & (jobs.weight > 0.0) & (best_s >= least)
    for rows in gangs:
        _raise_above_others(rank, rows)
    if critical.any():
        top = float(rank.max(initial=0.0)) or 1.0
        urgent, there = best_s[critical, None, None], np.isfinite(seconds[critical])
        relative_speed = np.where(there, urgent / seconds[critical], 0.0)
        rank[critical] = top * (1.0 + urgent / max(horizon, 1e-9)) * relative_speed
    for rows in gangs:
        critical |= rows
    cost = np.where(np.isfinite(priced), priced, 0.0)[critical]
    utility[critical] = np.maximum(utility[critical], rank[critical] * cost)
    return Utilities(seconds, utility, rank, best_s, critical, found, horizon)


@dataclass(frozen=True)
class _RunTimes:
    """(J, R, C) seconds for the work that is ``left`` and for the ``whole`` work; inf where a job
    cannot run. ``best_s`` (J,): the shortest for what is left."""

    left: FloatArray
    whole: FloatArray
    best_s: FloatArray


def _run_times(view: View, pools: ResourcePools) -> _RunTimes:
    jobs, counts = view.jobs, np.asarray(view.counts, dtype=np.float64)
    open_, total = _open_gpus(view, pools)
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.where(jobs.rate > 0, jobs.left[:, None, None] / jobs.rate, _INF)
        whole = np.where(jobs.rate > 0, jobs.total[:, None, None] / jobs.rate, _INF)
    fits = open_[:, :, None] & (counts[None, None, :] <= _reachable_gpus(view, total))
    seconds = np.where(fits, np.maximum(seconds, 1.0), _INF)
    whole = np.where(fits, np.maximum(whole, 1.0), _INF)
    return _RunTimes(seconds, whole, seconds.min(axis=(1, 2), initial=_INF))


def _gang_horizons(
    view: View, frugal: FloatArray, sizes: FloatArray
) -> list[tuple[BoolArray, float]]:
    """For each gang size above 1: the jobs that need at least so many GPUs, and a lower bound of
    the time (s) that they need together. Example: 20 GPUs hold gangs of 8 on 16 of them only."""
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


def _raise_above_others(rank: FloatArray, rows: BoolArray) -> None:
    """Raise the ranks of these jobs above all others; their own order stays."""
    best = rank.max(axis=(1, 2), initial=0.0)
    able = rows & (best > 0.0)
    if able.any():
        top = float(best[~rows].max(initial=0.0))
        lifted = top * (1.0 + best[able] / best[able].max())
        rank[able] *= np.maximum(1.0, lifted / best[able])[:, None, None]


def _open_gpus(view: View, pools: ResourcePools) -> tuple[BoolArray, IntArray]:
    """(J, R) whether the owner may use a pool of the type, and the number of GPUs in these
    pools."""
    jobs, kinds = len(view.jobs.ids), len(view.types)
    total = np.zeros((jobs, kinds), dtype=np.int64)
    for pool, kind in enumerate(pools.pool_type):
        total[:, kind] += view.jobs.groups[:, pools.pool_group[pool]] * pools.capacity[pool]
    return total > 0, total


def _reachable_gpus(view: View, total: IntArray) -> IntArray:
    """(J, R, C) GPUs that a gang at the speed of the type could use: those of the type and, if the
    job can mix types, those of types that are at least as fast."""
    jobs = view.jobs
    reach = np.broadcast_to(total[:, :, None], jobs.rate.shape).copy()
    rows = np.flatnonzero(jobs.mixable & (jobs.max_nodes > 1))
    rate = jobs.rate[rows]
    for kind in range(rate.shape[1]):
        as_fast = (rate >= rate[:, kind : kind + 1]) & (rate > 0)
        reach[rows, kind] = (as_fast * total[rows][:, :, None]).sum(axis=1)
    return reach


def _utility(
    view: View, settings: HadarOptions, times: _RunTimes, cheapest: FloatArray, horizon: float
) -> FloatArray:
    jobs, seconds, best_s = view.jobs, times.left, times.best_s
    waited = np.maximum(view.now - jobs.arrival_s, 0.0)[:, None, None]
    best = best_s[:, None, None]
    whole_best = times.whole.min(axis=(1, 2), initial=_INF)
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


def marginal_payoff(
    utilities: Utilities, frugal_counts: IntArray, waiting: BoolArray, gpus: int
) -> float:
    """Payoff per price of the last job that still gets GPUs if the queue is served in order; 0 if
    all fit, so that no job has to be outbid. Fractional; does not distinguish types."""
    order = np.flatnonzero(waiting)
    best = utilities.rank.max(axis=(1, 2), initial=0.0)
    order = order[np.argsort(-best[order], kind="stable")]
    filled = np.cumsum(frugal_counts[order])
    last = int(np.searchsorted(filled, gpus, side="right"))
    return float(best[order[last]]) if last < len(order) else 0.0


def frugal_counts(counts: IntArray, utilities: Utilities) -> IntArray:
    """(J,) the count that needs the fewest GPU-seconds; ``counts`` (C,)."""
    gpu_seconds = (utilities.seconds * counts).reshape(len(utilities.seconds), -1)
    if not gpu_seconds.size:
        return np.zeros(len(gpu_seconds), dtype=np.int64)
    chosen: IntArray = counts[gpu_seconds.argmin(axis=1) % len(counts)]
    return chosen


def round_price(view: View, utilities: Utilities, waiting: BoolArray, gpus: int) -> DualPrice:
    """Hadar's price for the waiting jobs (J,) if so many GPUs are free.

    Critical jobs do not bid: their utility has been raised above all others.
    """
    rows = np.flatnonzero(waiting & ~utilities.critical & np.isfinite(utilities.best_s))
    seconds, utility = utilities.seconds[rows], utilities.utility[rows]
    doable = np.isfinite(seconds)
    gpu_seconds = np.where(doable, seconds, 0.0) * np.asarray(view.counts, float)
    density = np.divide(utility, gpu_seconds, out=np.zeros_like(utility), where=doable)
    slowest = np.where(doable, seconds, 0.0).max(axis=(1, 2), initial=0.0)
    # A job that ends at the horizon keeps this fraction of its least utility.
    least = np.where(doable, utility, _INF).min(axis=(1, 2), initial=_INF)
    last = least * np.minimum(1.0, slowest / max(utilities.horizon_s, 1.0))
    longest = gpu_seconds.max(axis=(1, 2), initial=0.0)
    best = density.max(axis=2, initial=0.0)
    return dual_price(best, last, longest, float(max(gpus, 1)), view.round_s)


@dataclass(frozen=True, slots=True)
class TypeOption:
    """A (type, count) that a job may run on. ``rank``: payoff per price; ``seconds``: run time;
    ``utility``: U_j there; all before any GPU is taken."""

    gpu_type: int
    count: int
    seconds: float
    utility: float
    rank: float


class TypeOptions:
    """The types and counts that each job may run on, best first.

    A count above the one that needs the fewest GPU-seconds of its type is left out while other jobs
    would have to wait for it: ``growth`` is how many times the demand fits the cluster. The number
    of GPUs that a job holds, ``held`` (J,), is always allowed.
    """

    def __init__(
        self, utilities: Utilities, counts: IntArray, held: IntArray, growth: float
    ) -> None:
        self.utilities = utilities
        seconds = utilities.seconds
        jobs = len(seconds)
        if seconds.size:
            frugal = counts[(seconds * counts).argmin(axis=2)]
            most = np.maximum(held[:, None], frugal * max(1.0, growth))
            allowed = np.isfinite(seconds) & (counts <= most[:, :, None])
        else:
            allowed = np.zeros(seconds.shape, dtype=bool)
        kinds = np.broadcast_to(np.arange(seconds.shape[1])[:, None], seconds.shape[1:]).ravel()
        sizes = np.broadcast_to(counts, seconds.shape[1:]).ravel()
        rank = np.where(allowed, utilities.rank, -_INF).reshape(jobs, -1)
        shape = rank.shape
        order = np.lexsort((np.broadcast_to(kinds, shape), np.broadcast_to(sizes, shape), -rank))
        self._order: list[list[int]] = order.tolist()
        self._number: list[int] = allowed.sum(axis=(1, 2)).tolist()
        self._kinds, self._sizes = kinds.tolist(), sizes.tolist()
        self._seconds = seconds.reshape(jobs, -1)
        self._utility, self._rank = utilities.utility.reshape(jobs, -1), rank
        self._known: dict[int, tuple[TypeOption, ...]] = {}
        self.quickest: list[float] = (
            np.where(allowed, seconds, _INF).min(axis=(1, 2), initial=_INF).tolist()
        )
        """(J,) shortest run time, s."""
        self.least: list[int] = (
            np.where(allowed, counts, _MANY).min(axis=(1, 2), initial=_MANY).tolist()
        )
        """(J,) smallest gang; very large if the job cannot run."""
        self.pattern = [row.tobytes() for row in np.packbits(allowed.reshape(jobs, -1), axis=1)]
        """(J,) equal for jobs with the same types and counts."""

    def of(self, job: int) -> tuple[TypeOption, ...]:
        """The options of one job."""
        if job not in self._known:
            seconds, utility = self._seconds[job].tolist(), self._utility[job].tolist()
            rank = self._rank[job].tolist()
            self._known[job] = tuple(
                TypeOption(self._kinds[at], self._sizes[at], seconds[at], utility[at], rank[at])
                for at in self._order[job][: self._number[job]]
            )
        return self._known[job]
