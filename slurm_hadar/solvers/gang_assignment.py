"""The gangs that get GPUs now: at most one option per job, with the largest sum of values.

A multiple-choice knapsack with one capacity per pool. Prices by an ascending auction (recalled:
Demange, Gale and Sotomayor; no longer exact for gangs), then the gaps are filled by value per GPU.
Small instances are solved by HiGHS.
"""

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.highs import INFINITY
from slurm_hadar.solvers.programme import Programme

_SWEEPS = 60
_EXACT = 4000
"""Most (job, option) pairs that are passed to HiGHS."""
_NODES = 60
_GAP = 1e-3


def assign(value: FloatArray, gpus: IntArray, pool: IntArray, capacity: IntArray) -> IntArray:
    """(J,) option per job, -1 for none. ``value`` (J, O): 0 or less: not allowed.

    The effort is bounded by sweeps and nodes, not by time. O(sweeps x J x (O + log J)).
    """
    useful = (value > 0).any(axis=1) & (capacity.sum() > 0)
    rows = np.flatnonzero(useful)
    chosen: IntArray = np.full(len(value), -1, dtype=np.int64)
    if not len(rows):
        return chosen
    part = value[rows]
    found = _auction(part, gpus, pool, capacity)
    if int((part > 0).sum()) <= _EXACT:
        better = _exact(part, gpus, pool, capacity)
        if better is not None and _sum(part, better) >= _sum(part, found):
            found = better
    chosen[rows] = found
    return chosen


def _sum(value: FloatArray, chosen: IntArray) -> float:
    some = np.flatnonzero(chosen >= 0)
    return float(value[some, chosen[some]].sum())


def _auction(value: FloatArray, gpus: IntArray, pool: IntArray, capacity: IntArray) -> IntArray:
    """Raise prices where demand exceeds the capacity, until each pool can serve the jobs that want
    it."""
    jobs, pools = len(value), len(capacity)
    price, gain = np.zeros(pools), np.zeros(jobs)
    worth = np.where(value > 0, value, -np.inf)
    wants: IntArray = np.full(jobs, -1, dtype=np.int64)
    # The pool of what a job wants.
    there: IntArray = np.full(jobs, -1, dtype=np.int64)
    anew = [np.arange(jobs)]
    for _ in range(_SWEEPS):
        cost = gpus * price[pool]
        # Prices only rise, so a job wants what it wanted until that becomes dearer.
        rows = np.concatenate(anew)
        net = worth[rows] - cost
        best = net.argmax(axis=1)
        gain[rows] = net[np.arange(len(rows)), best]
        wants[rows] = np.where(gain[rows] > 0, best, -1)
        there[rows] = np.where(gain[rows] > 0, pool[best], -1)
        anew = []
        for p in range(pools):
            rows = np.flatnonzero(there == p)
            need = gpus[wants[rows]]
            if need.sum() <= capacity[p]:
                continue
            anew.append(rows)
            net = worth[rows] - cost
            elsewhere = np.where(pool == p, -np.inf, net).max(axis=1, initial=0.0)
            leaves = (gain[rows] - elsewhere) / need
            order = np.argsort(-leaves, kind="stable")
            over = int(np.searchsorted(np.cumsum(need[order]), capacity[p], side="right"))
            price[p] += float(leaves[order[over]]) * (1.0 + 1e-9) + 1e-15
        if not anew:
            break
    return _fill(value, gpus, pool, capacity, wants)


def _fill(
    value: FloatArray, gpus: IntArray, pool: IntArray, capacity: IntArray, wants: IntArray
) -> IntArray:
    """The jobs that are served at the prices, then all others by value per GPU, as far as they
    fit."""
    free = capacity.astype(np.int64).copy()
    chosen: IntArray = np.full(len(value), -1, dtype=np.int64)
    served = np.flatnonzero(wants >= 0)
    served = served[
        np.argsort(-(value[served, wants[served]] / gpus[wants[served]]), kind="stable")
    ]
    for p in range(len(capacity)):
        there = served[pool[wants[served]] == p]
        fits = np.cumsum(gpus[wants[there]]) <= free[p]
        chosen[there[fits]] = wants[there[fits]]
        free[p] -= int(gpus[wants[there[fits]]].sum())
    row, col = np.nonzero(np.where((chosen < 0)[:, None], value, 0.0) > 0)
    order = np.argsort(-(value[row, col] / gpus[col]), kind="stable")
    row, col = row[order], col[order]
    while len(row) and free.any():
        fits = (gpus[col] <= free[pool[col]]) & (chosen[row] < 0)
        row, col = row[fits], col[fits]
        if not len(row):
            break
        chosen[row[0]] = col[0]
        free[pool[col[0]]] -= gpus[col[0]]
    return chosen


def _exact(
    value: FloatArray, gpus: IntArray, pool: IntArray, capacity: IntArray
) -> IntArray | None:
    row, col = np.nonzero(value > 0)
    size, jobs = len(row), len(value)
    solver = Programme(
        cost=value[row, col] / float(value.max()),
        upper=np.ones(size),
        low=np.full(jobs + len(capacity), -INFINITY),
        high=np.concatenate([np.ones(jobs), capacity.astype(np.float64)]),
        index=np.stack([row, jobs + pool[col]], axis=1),
        value=np.stack([np.ones(size), gpus[col]], axis=1),
        integer=True,
    ).solve(mip_rel_gap=_GAP, mip_max_nodes=_NODES)
    taken = np.array(solver.getSolution().col_value)
    if len(taken) != size:
        return None
    chosen: IntArray = np.full(jobs, -1, dtype=np.int64)
    chosen[row[taken > 0.5]] = col[taken > 0.5]
    used = np.zeros(len(capacity), dtype=np.int64)
    some = chosen >= 0
    np.add.at(used, pool[chosen[some]], gpus[chosen[some]])
    return chosen if (used <= capacity).all() else None
