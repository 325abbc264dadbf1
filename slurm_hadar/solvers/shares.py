"""Shares of time on GPU types: linear programmes, by HiGHS, and the centre of the best shares.

X_jr is the fraction of its time that job j spends on type r. Always sum_r X_jr <= 1 and, with g_j
GPUs per job and c_r GPUs per type, sum_j g_j X_jr <= c_r. Equal rows are merged and get equal
shares: the programme is smaller, and the position of a job in the list does not matter.

A linear programme gives the value of the best shares, not which of many equally good ones to take:
the vertex that a solver returns depends on its release and on the order of the jobs. Their analytic
centre, by Newton's method, is unique.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.highs import INFINITY, is_best
from slurm_hadar.solvers.programme import Programme

_SAFETY_NET_S = 60.0
"""Time limit in s, never reached so far: the size of the programme bounds the effort."""
_MOST_STEPS = 80
_ENOUGH = 1e-5
"""Last relative change of any slack."""
_TO_THE_EDGE = 0.95


@dataclass(frozen=True)
class Shares:
    """``share`` (J, R): X; ``value`` of the objective; ``optimal``: False if the solver gave up."""

    share: FloatArray
    value: float
    optimal: bool


def just_below(best: float) -> float:
    """The maximum less a hundred-thousandth, which leaves an interior with a centre."""
    return best * (1.0 - 1e-5)


def max_min_shares(
    gain: FloatArray,
    gpus: IntArray,
    capacity: IntArray,
    asked: Callable[[float], float] = just_below,
) -> Shares:
    """The centre of all X with min_j sum_r gain_jr X_jr >= ``asked`` of the maximum.

    ``gain`` (J, R) at least 0, ``gpus`` (J,), ``capacity`` (R,). Jobs without any gain get no share
    and do not count. ``value``: the max-min gain.
    """
    gain = np.where(capacity > 0, gain, 0.0)
    able = gain.max(axis=1, initial=0.0) > 0
    if not able.any() or not capacity.any():
        return Shares(np.zeros_like(gain), 0.0, True)
    rows, back, copies = _alike(np.column_stack([gain, gpus])[able])
    found = _solve(rows[:, :-1], rows[:, -1], copies, capacity, max_min=True)
    if found.optimal and found.value > 0:
        least = asked(found.value)
        middle = centre(rows[:, :-1], rows[:, -1], copies, capacity.astype(np.float64), least)
        # If the method does not converge, the vertex that HiGHS found is as good.
        if middle is not None:
            # Further digits are rounding errors, and would decide between equal jobs.
            found = Shares(np.round(middle, 7), found.value, True)
    share = np.zeros_like(gain)
    share[able] = found.share[back]
    return Shares(share, found.value, found.optimal)


def max_total_shares(gain: FloatArray, gpus: IntArray, capacity: IntArray) -> Shares:
    """max sum_jr gain_jr X_jr; otherwise as :func:`max_min_shares`."""
    if not gain.size or not capacity.any():
        return Shares(np.zeros_like(gain), 0.0, True)
    rows, back, copies = _alike(np.column_stack([gain, gpus]))
    found = _solve(rows[:, :-1], rows[:, -1], copies, capacity, max_min=False)
    return Shares(found.share[back], found.value, found.optimal)


def _alike(rows: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
    """Distinct rows, the index of each row among them, and the number of occurrences."""
    distinct, back, copies = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return distinct, back.reshape(-1), copies.astype(np.float64)


def _solve(
    gain: FloatArray, gpus: FloatArray, copies: FloatArray, capacity: IntArray, max_min: bool
) -> Shares:
    """``max_min``: maximise the least of the jobs' gains, else their sum. Columns: X by job, then
    z."""
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
    parts = 3 if max_min else 2
    index = np.empty((cells, parts), dtype=np.int32)
    value = np.empty((cells, parts))
    index[:, 0], value[:, 0] = job, 1.0
    index[:, 1], value[:, 1] = jobs + kind, used
    if max_min:
        index[:, 2], value[:, 2] = jobs + kinds + job, flat
    rows = jobs + kinds + (jobs if max_min else 0)
    upper = np.where(flat > 0, 1.0, 0.0)
    start = np.arange(cells + 1) * parts
    cost, entries, factors = (copies[:, None] * scaled).ravel(), index.ravel(), value.ravel()
    if max_min:
        cost, upper = np.append(np.zeros(cells), 1.0), np.append(upper, INFINITY)
        start = np.append(start, start[-1] + jobs)
        entries = np.append(entries, np.arange(rows - jobs, rows))
        factors = np.append(factors, np.full(jobs, -1.0))
    limits = np.concatenate([np.ones(jobs), capacity.astype(np.float64)])
    gains = rows - len(limits)
    solver = Programme(
        cost=cost,
        upper=upper,
        low=np.concatenate([np.full(len(limits), -INFINITY), np.zeros(gains)]),
        high=np.concatenate([limits, np.full(gains, INFINITY)]),
        index=entries,
        value=factors,
        start=start,
        # Presolve reduces nothing here; without it the solution takes 20 to 25% less time.
    ).solve(time_limit=_SAFETY_NET_S, presolve="off")
    if not is_best(solver):
        return _proportional(gain, gpus, copies, capacity)
    answer = np.array(solver.getSolution().col_value)
    share = np.clip(answer[:cells], 0.0, 1.0).reshape(jobs, kinds)
    return Shares(share, float(solver.getInfo().objective_function_value) * unit, True)


def _proportional(
    gain: FloatArray, gpus: FloatArray, copies: FloatArray, capacity: IntArray
) -> Shares:
    """Equal shares for all jobs: feasible, not optimal."""
    alike = capacity[None, :] / max(1.0, float((copies * gpus).sum()))
    share = np.broadcast_to(alike, gain.shape) / max(1.0, float(alike.sum()))
    share = np.where(gain > 0, share, 0.0)
    return Shares(share, float((gain * share).sum(axis=1).min(initial=0.0)), False)


def centre(
    gain: FloatArray, gpus: FloatArray, copies: FloatArray, capacity: FloatArray, least: float
) -> FloatArray | None:
    """argmax of the sum of the logarithms of all slacks of X_jr >= 0, sum_r X_jr <= 1, sum_j
    copies_j gpus_j X_jr <= capacity_r, and sum_r gain_jr X_jr >= least.

    ``gain`` (J, R): X is 0 where it is 0; each row has a positive entry, and none on a type without
    GPUs. ``gpus`` (J,). ``copies`` (J,): how often each row occurs; its slacks count as often.
    ``least`` > 0 must be below the maximum. None if the method does not converge. Infeasible-start
    Newton (Boyd and Vandenberghe, Convex Optimization, 10.3); the Hessian is a small block per job
    plus one row per type.
    """
    open_ = gain > 0
    used = np.where(open_, (copies * gpus)[:, None], 0.0)
    speed = gain / least
    m = copies[:, None]
    # A type without GPUs has no shares; its slack is constant.
    cap = np.where(capacity > 0, capacity, 1.0)
    width = gain.shape[1]
    x = np.where(
        open_, np.minimum(0.5 / width, 0.5 * cap / np.maximum(used.sum(axis=0), 1e-9)), 1.0
    )
    # The slacks of time, of the types, and of the gain; those of the gain start infeasible.
    u = 1.0 - (x * open_).sum(axis=1)
    v = cap - (used * x).sum(axis=0)
    w = np.maximum((speed * x).sum(axis=1) - 1.0, 1e-2)
    eye = np.eye(width)
    ones = open_.astype(np.float64)
    both, faster = ones[:, :, None] * ones[:, None, :], speed[:, :, None] * speed[:, None, :]
    sides = np.empty((len(gain), width, width + 1))
    # Woodbury: beside the right-hand side stand the types' capacities.
    sides[:, :, 1:] = used[:, :, None] * eye
    for _ in range(_MOST_STEPS):
        over_w = copies / w
        short = w - (speed * x).sum(axis=1) + 1.0
        push = m / x - (copies / u)[:, None] - used / v
        push += speed * (over_w + over_w / w * short)[:, None]
        sides[:, :, 0] = push * ones
        block = (copies / u**2)[:, None, None] * both + (over_w / w)[:, None, None] * faster
        block += eye * np.where(open_, m / x**2, 1.0)[:, :, None]
        try:
            solved = np.linalg.solve(block, sides)
            plain, spread = solved[:, :, 0], solved[:, :, 1:]
            small = np.diag(v**2) + np.einsum("jr,jrk->rk", used, spread)
            back = np.linalg.solve(small, (used * plain).sum(axis=0))
        except np.linalg.LinAlgError:
            # The slacks differ so much that their squares lose all digits.
            return None
        dx = (plain - spread @ back) * ones
        du, dv = -dx.sum(axis=1), -(used * dx).sum(axis=0)
        dw = (speed * dx).sum(axis=1) - short
        relative = np.concatenate([(dx / x).reshape(-1), du / u, dv / v, dw / w])
        most = float(-relative.min(initial=0.0))
        step = 1.0 if most <= _TO_THE_EDGE else _TO_THE_EDGE / most
        x, u, v, w = x + step * dx, u + step * du, v + step * dv, w + step * dw
        if step == 1.0 and float(np.abs(relative).max(initial=0.0)) < _ENOUGH:
            return np.where(open_, x, 0.0)
    return None
