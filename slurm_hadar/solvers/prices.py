"""Prices of GPUs: the value of a GPU of each type to all work, and Hadar's dual price.

:func:`scarcity` compares the types over the whole horizon: how much later all work would end
without one GPU of the type. :class:`DualPrice` is the present price of a machine that fills up
while a round is planned.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray

_ITERATIONS = 60
_DAMPING = 0.15


@dataclass(frozen=True)
class Scarcity:
    """``price`` (R,): the fraction of the horizon that one GPU of the type accounts for; it sums to
    1 over all GPUs. ``horizon_s``: a lower bound of the time until all work is done."""

    price: FloatArray
    horizon_s: float


def scarcity(work: FloatArray, capacity: IntArray, iterations: int = _ITERATIONS) -> Scarcity:
    """The dual of "finish all work as early as possible", by multiplicative weights.

    ``work`` (J, R): GPU-seconds that the job needs on the type, inf if it cannot run. ``capacity``
    (R,): GPUs of the type. The dual is max over price >= 0 with capacity x price = 1 of sum_j min_r
    price_r work_jr: each iterate is a valid bound, and the best one is kept. Own derivation from
    the LP; ``iterations`` bounds the effort.
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

    arXiv 2503.10918, recalled. g of the c GPUs of a machine are in use: the first costs what each
    job can pay, the last what only the most profitable job can. Nodes of one type that are open to
    the same jobs are interchangeable and form one machine here: with a price per node an empty node
    would be cheaper than a half-full one, which scatters small jobs until no gang fits. ``least``
    and ``most``: Umin and Umax per type, (R,).
    """

    least: FloatArray
    most: FloatArray

    def at(self, gpu_type: int, used: float, capacity: float) -> float:
        """The price with ``used`` of ``capacity`` GPUs taken."""
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

    ``density`` (J, R): U_j / (w_jr t_jr) if started now on the type, 0 if it cannot run, in utility
    per GPU-second; Umax_r is its maximum (the paper divides by w alone and charges per slot; here a
    job pays for each second that it needs). ``last`` (J,): U_j if it ends at the horizon.
    ``longest`` (J,): tmax_j sum_r w_jr, GPU-seconds on the slowest type. ``gpus``: sum of c_hr.
    ``slot_s``: length of a slot, s. Umin = (1 / 4 eta) min_j last_j / longest_j with 1/eta = min(1,
    min_j longest_j / (slots of all GPUs)), the largest that the paper's condition allows.
    """
    most = density.max(axis=0, initial=0.0)
    usable = np.isfinite(longest) & (longest > 0) & (last > 0)
    if not usable.any():
        return DualPrice(np.zeros(density.shape[1]), most)
    inverse_eta = min(1.0, float(longest[usable].min()) / max(gpus * slot_s, 1e-9))
    low = 0.25 * inverse_eta * float((last[usable] / longest[usable]).min())
    return DualPrice(np.minimum(low, most), most)
