"""Max-min fair shares of links (progressive filling; Bertsekas and Gallager, Data Networks)."""

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray

_EQUAL = 1.0 + 1e-9


def max_min(demand: FloatArray, who: IntArray, where: IntArray, capacity: FloatArray) -> FloatArray:
    """(K,) share of each flow, in the unit of ``demand`` (K,) and ``capacity`` (L,).

    Flow ``who[p]`` crosses link ``where[p]``, each pair once; a flow has one share, the same on
    all its links. No flow gets more than its demand, no link carries more than its capacity, and
    none could get more unless one with no larger share got less.
    """
    flows, links = len(demand), len(capacity)
    share: FloatArray = np.zeros(flows)
    left, active = capacity.astype(np.float64), np.ones(flows, dtype=bool)
    while active.any():
        keep = active[who]
        who, where = who[keep], where[keep]
        level = np.full(links, np.inf)
        used = np.bincount(where, minlength=links)
        np.divide(left, used, out=level, where=used > 0)
        least = np.full(flows, np.inf)
        np.minimum.at(least, who, level[where])
        settled: BoolArray = active & (demand <= least * _EQUAL)
        if not settled.any():
            # A link whose level is the least one of all its flows binds them, whatever others do.
            worst = np.full(links, np.inf)
            np.minimum.at(worst, where, least[who])
            tight = (used > 0) & (level <= worst * _EQUAL)
            settled[who[tight[where]]] = True
        share[settled] = np.minimum(demand[settled], least[settled])
        gone = settled[who]
        left -= np.bincount(where[gone], weights=share[who[gone]], minlength=links)
        np.maximum(left, 0.0, out=left)
        active &= ~settled
    return share
