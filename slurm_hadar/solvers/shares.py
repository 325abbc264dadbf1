"""Shares of time on GPU types: linear programmes, by HiGHS.

X_jr is the part of its time that job j spends on type r. Always sum_r X_jr <= 1 and, with g_j GPUs
per job and c_r GPUs per type, sum_j g_j X_jr <= c_r. Rows that are alike are solved once, for all
of them together, and get alike shares: smaller, and no job is better off for its place in a list.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.centre import centre
from slurm_hadar.solvers.programme import INFINITY, Programme, is_best

_SAFETY_NET_S = 60.0
"""Never met so far: the effort is bounded by the programme's size."""


@dataclass(frozen=True)
class Shares:
    """``share`` (J, R) X, ``value`` of the objective, ``optimal`` unless the solver gave up."""

    share: FloatArray
    value: float
    optimal: bool


def nearly(best: float) -> float:
    """As good as the best, but for a hundred-thousandth that leaves a centre."""
    return best * (1.0 - 1e-5)


def largest_least(
    gain: FloatArray,
    gpus: IntArray,
    capacity: IntArray,
    asked: Callable[[float], float] = nearly,
) -> Shares:
    """The middle of all X with min_j sum_r gain_jr X_jr >= ``asked`` of the largest there is.

    ``gain`` (J, R) of at least 0, ``gpus`` (J,), ``capacity`` (R,). Jobs without any gain get no
    share and do not count. ``value``: the largest least gain.
    """
    gain = np.where(capacity > 0, gain, 0.0)
    able = gain.max(axis=1, initial=0.0) > 0
    if not able.any() or not capacity.any():
        return Shares(np.zeros_like(gain), 0.0, True)
    rows, back, copies = _alike(np.column_stack([gain, gpus])[able])
    found = _solve(rows[:, :-1], rows[:, -1], copies, capacity, together=True)
    if found.optimal and found.value > 0:
        least = asked(found.value)
        middle = centre(rows[:, :-1], rows[:, -1], copies, capacity.astype(np.float64), least)
        # The corner that HiGHS found is as good, where the method does not settle.
        if middle is not None:
            # Digits beyond these are the machine's, and would decide between jobs alike.
            found = Shares(np.round(middle, 7), found.value, True)
    share = np.zeros_like(gain)
    share[able] = found.share[back]
    return Shares(share, found.value, found.optimal)


def largest_sum(gain: FloatArray, gpus: IntArray, capacity: IntArray) -> Shares:
    """max sum_jr gain_jr X_jr, otherwise as :func:`largest_least`."""
    if not gain.size or not capacity.any():
        return Shares(np.zeros_like(gain), 0.0, True)
    rows, back, copies = _alike(np.column_stack([gain, gpus]))
    found = _solve(rows[:, :-1], rows[:, -1], copies, capacity, together=False)
    return Shares(found.share[back], found.value, found.optimal)


def _alike(rows: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
    """Distinct rows, which of them each row is, and how often each occurs."""
    distinct, back, copies = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return distinct, back.reshape(-1), copies.astype(np.float64)


def _solve(
    gain: FloatArray, gpus: FloatArray, copies: FloatArray, capacity: IntArray, together: bool
) -> Shares:
    """``together``: the least of the jobs' gains, else their sum. Columns: X by job, then z."""
    jobs, kinds = gain.shape
    # Gains of about 1 keep the programme well scaled; z is scaled back at the end.
    unit = float(np.median(gain.max(axis=1))) or 1.0
    scaled = gain / unit
    cells = jobs * kinds
    column = np.arange(cells)
    job, kind = column // kinds, column % kinds
    flat = scaled.reshape(-1)
    used = (copies * gpus)[job]
    # Each column of X has an entry in its job's time, its type's capacity, and its job's gain.
    parts = 3 if together else 2
    index = np.empty((cells, parts), dtype=np.int32)
    value = np.empty((cells, parts))
    index[:, 0], value[:, 0] = job, 1.0
    index[:, 1], value[:, 1] = jobs + kind, used
    if together:
        index[:, 2], value[:, 2] = jobs + kinds + job, flat
    rows = jobs + kinds + (jobs if together else 0)
    upper = np.where(flat > 0, 1.0, 0.0)
    start = np.arange(cells + 1) * parts
    cost, entries, factors = (copies[:, None] * scaled).ravel(), index.ravel(), value.ravel()
    if together:
        cost, upper = np.append(np.zeros(cells), 1.0), np.append(upper, INFINITY)
        start = np.append(start, start[-1] + jobs)
        entries = np.append(entries, np.arange(rows - jobs, rows))
        factors = np.append(factors, np.full(jobs, -1.0))
    limits = np.concatenate([np.ones(jobs), capacity.astype(np.float64)])
    gains = rows - len(limits)
    solver = Programme(
        cost=cost,
        most=upper,
        low=np.concatenate([np.full(len(limits), -INFINITY), np.zeros(gains)]),
        high=np.concatenate([limits, np.full(gains, INFINITY)]),
        index=entries,
        value=factors,
        start=start,
        # Presolve finds nothing there; without it a fifth to a quarter faster.
    ).solve(time_limit=_SAFETY_NET_S, presolve="off")
    if not is_best(solver):
        return _proportional(gain, gpus, copies, capacity)
    answer = np.array(solver.getSolution().col_value)
    share = np.clip(answer[:cells], 0.0, 1.0).reshape(jobs, kinds)
    return Shares(share, float(solver.getInfo().objective_function_value) * unit, True)


def _proportional(
    gain: FloatArray, gpus: FloatArray, copies: FloatArray, capacity: IntArray
) -> Shares:
    """Everybody alike: possible, though not the best."""
    alike = capacity[None, :] / max(1.0, float((copies * gpus).sum()))
    share = np.broadcast_to(alike, gain.shape) / max(1.0, float(alike.sum()))
    share = np.where(gain > 0, share, 0.0)
    return Shares(share, float((gain * share).sum(axis=1).min(initial=0.0)), False)
