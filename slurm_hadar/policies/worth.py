"""What jobs are worth: utilities, the order of the queue, and what a GPU costs each job.

All of it once per decision and for all jobs at once.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, View
from slurm_hadar.policies.allocation import Floor
from slurm_hadar.policies.settings import Settings
from slurm_hadar.solvers.prices import Scarcity, scarcity

_INF = np.inf


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
    base: FloatArray
    """(J, R) GPU-seconds at the most frugal count."""
    critical: BoolArray
    """(J,) whether the horizon leaves the job no slack."""
    scarcity: Scarcity
    horizon_s: float
    """Time by which all the present work can be done at the earliest, as far as we can bound it."""


def worth(view: View, floor: Floor, settings: Settings) -> Worth:
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
    open_, total = _open(view, floor)
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.where(jobs.rate > 0, jobs.left[:, None, None] / jobs.rate, _INF)
        whole = np.where(jobs.rate > 0, jobs.total[:, None, None] / jobs.rate, _INF)
    fits = open_[:, :, None] & (counts[None, None, :] <= total[:, :, None])
    seconds = np.where(fits, np.maximum(seconds, 1.0), _INF)
    whole = np.where(fits, np.maximum(whole, 1.0), _INF)
    capacity = view.nodes.gpus.sum(axis=0)
    gpu_seconds = seconds * counts
    frugal = gpu_seconds.min(axis=2, initial=_INF)
    found = scarcity(frugal, capacity)
    best_s = seconds.min(axis=(1, 2), initial=_INF)
    possible = np.isfinite(best_s)
    horizon = max(found.horizon_s, float(best_s[possible].max(initial=0.0)))
    price = np.maximum(found.price, 1e-12 / max(1.0, float(capacity.sum())))
    priced = gpu_seconds * price[None, :, None]
    cheapest = priced.min(axis=(1, 2), initial=_INF)
    utility = _utility(view, settings, seconds, whole, best_s, cheapest, horizon)
    with np.errstate(invalid="ignore", divide="ignore"):
        fit = np.where(np.isfinite(priced), cheapest[:, None, None] / priced, 0.0)
        rank = np.where(np.isfinite(priced), utility * fit / priced, 0.0)
        pace = np.where(np.isfinite(seconds), best_s[:, None, None] / seconds, 0.0)
    critical = possible & (best_s >= settings.critical * horizon)
    if critical.any():
        top = float(rank.max(initial=0.0)) or 1.0
        urgency = (1.0 + best_s / max(horizon, 1e-9))[:, None, None]
        first = critical[:, None, None] & np.isfinite(seconds)
        rank = np.where(first, top * urgency * pace, rank)
        with np.errstate(invalid="ignore"):
            utility = np.where(first, np.maximum(utility, rank * priced), utility)
    return Worth(seconds, utility, rank, best_s, frugal, critical, found, horizon)


def _open(view: View, floor: Floor) -> tuple[BoolArray, IntArray]:
    """(J, R) whether the owner may use a pool of the type, and how many GPUs those have."""
    jobs, kinds = len(view.jobs.ids), len(view.types)
    total = np.zeros((jobs, kinds), dtype=np.int64)
    for pool, kind in enumerate(floor.pool_type):
        total[:, kind] += view.jobs.groups[:, floor.pool_group[pool]] * floor.capacity[pool]
    return total > 0, total


def _utility(
    view: View,
    settings: Settings,
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

    0 where there is room for all: then nobody has to be outbid. Fractional, types not told apart.
    """
    order = np.flatnonzero(waiting)
    best = worth.rank.max(axis=(1, 2), initial=0.0)
    order = order[np.argsort(-best[order], kind="stable")]
    filled = np.cumsum(frugal_counts[order])
    last = int(np.searchsorted(filled, gpus, side="right"))
    return float(best[order[last]]) if last < len(order) else 0.0
