"""The centre of all equally good shares: an analytic centre, by Newton's method.

A linear programme gives the value of the best shares, not which of many equally good ones to take:
the vertex that a solver returns depends on its release and on the order of the jobs. The centre is
unique.
"""

import numpy as np

from slurm_hadar.domain.view import FloatArray

_MOST_STEPS = 80
_ENOUGH = 1e-5
"""Last relative change of any slack."""
_TO_THE_EDGE = 0.95


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
