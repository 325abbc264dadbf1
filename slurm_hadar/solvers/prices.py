"""Prices of GPUs: what one GPU of a type is worth to all the work, and Hadar's dual price.

Two kinds, for two questions. :func:`scarcity` compares the types over the whole horizon: how much
later everything would end without one GPU of the type. :class:`DualPrice` is today's price of a
machine that fills up while a round is planned.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray

_ITERATIONS = 60
_DAMPING = 0.15


@dataclass(frozen=True)
class Scarcity:
    """``price`` (R,): the part of the horizon that one GPU of the type accounts for; over all
    GPUs it sums to 1. ``horizon_s``: a lower bound of the time until all the work is done."""

    price: FloatArray
    horizon_s: float


def scarcity(work: FloatArray, capacity: IntArray, iterations: int = _ITERATIONS) -> Scarcity:
    """Dual of "finish all the work as early as possible", by multiplicative weights.

    ``work`` (J, R): GPU-seconds that the job needs on the type, inf where it cannot run.
    ``capacity`` (R,): GPUs of the type. The dual is max over price >= 0 with capacity x price = 1
    of sum_j min_r price_r work_jr: every iterate is a valid bound, and the best one is kept. Own
    derivation from the LP; the effort is bounded by ``iterations``.
    """
    there = capacity > 0
    cap = np.where(there, capacity, 1).astype(np.float64)
    doable = np.isfinite(work) & there
    rows = doable.any(axis=1)
    cost = np.where(doable, work, np.inf)[rows]
    share = np.where(there, 1.0, 0.0)
    share /= max(share.sum(), 1.0)
    best, price = 0.0, share / cap
    if not cost.size:
        return Scarcity(price, 0.0)
    index = np.arange(len(cost))
    for step in range(iterations):
        now = share / cap
        with np.errstate(invalid="ignore"):
            priced = np.where(np.isfinite(cost), cost * now, np.inf)
        choice = priced.argmin(axis=1)
        value = float(priced[index, choice].sum())
        if value > best:
            best, price = value, now
        load = np.bincount(choice, weights=cost[index, choice], minlength=len(cap)) / cap
        share = share * np.exp((load / load.max() - 1.0) / (1.0 + _DAMPING * step))
        share = np.where(there, np.maximum(share, 1e-9), 0.0)
        share /= share.sum()
    return Scarcity(price, best)


@dataclass(frozen=True)
class DualPrice:
    """Hadar's price of a GPU, k_r(g) = Umin_r (Umax_r / Umin_r)^(g / c), in utility per GPU-second.

    arXiv 2503.10918, recalled. g of c GPUs of a machine are in use: the first costs what every job
    can pay, the last what only the most profitable one can. Nodes of one type that the same jobs
    may use are interchangeable, so they are one machine here: a price per node would make an empty
    node cheaper than a half-full one and scatter small jobs until no gang fits anywhere.
    ``least`` and ``most`` are Umin and Umax per type, (R,).
    """

    least: FloatArray
    most: FloatArray

    def at(self, gpu_type: int, used: float, capacity: float) -> float:
        """Price with ``used`` of ``capacity`` GPUs taken."""
        low, high = float(self.least[gpu_type]), float(self.most[gpu_type])
        if low <= 0.0 or capacity <= 0:
            return max(low, 0.0)
        return low * float((high / low) ** min(1.0, max(0.0, used / capacity)))

    @property
    def ratio(self) -> float:
        """alpha of the paper's competitive ratio 2 alpha: max_r max(1, ln(Umax_r / Umin_r))."""
        ok = (self.least > 0) & (self.most > 0)
        if not ok.any():
            return 1.0
        return max(1.0, float(np.log(self.most[ok] / self.least[ok]).max()))


def dual_price(
    density: FloatArray, last: FloatArray, longest: FloatArray, gpus: float, slot_s: float
) -> DualPrice:
    """The bounds of Hadar's price from the jobs of the round (recalled from the paper).

    ``density`` (J, R): U_j / (w_jr t_jr) when started now on the type, 0 where it cannot run, in
    utility per GPU-second: Umax_r is its maximum (the paper divides by w alone and pays per slot;
    a job here pays for each second it needs). ``last`` (J,): U_j when it ends at the horizon.
    ``longest`` (J,): tmax_j sum_r w_jr, GPU-seconds on the slowest type. ``gpus``: sum of c_hr.
    Umin = (1 / 4 eta) min_j last_j / longest_j with 1/eta = min(1, min_j longest_j / (slots of all
    GPUs)), the largest that the paper's condition allows.
    """
    most = density.max(axis=0, initial=0.0)
    usable = np.isfinite(longest) & (longest > 0) & (last > 0)
    if not usable.any():
        return DualPrice(np.zeros(density.shape[1]), most)
    inverse_eta = min(1.0, float(longest[usable].min()) / max(gpus * slot_s, 1e-9))
    low = 0.25 * inverse_eta * float((last[usable] / longest[usable]).min())
    return DualPrice(np.minimum(low, most), most)
