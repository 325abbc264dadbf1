"""CPUs and memory of jobs that run together: one option each, the largest sum of their values.

Synergy-OPT's first programme [V: from its code]: max sum_jk f_jk y_jk, sum_k y_jk = 1, sums of CPUs
and of memory within the cluster's, and no job below its fair share, which here is a matter of the
options that are handed in. A linear programme has at most one job more with several options than it
has scarce resources; those get the best of theirs that still fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.quiet import new_solver

_SAFETY_NET_S = 30.0
"""Never met so far: the effort is bounded by the programme's size."""
_SLACK = 1e-6


@dataclass(frozen=True)
class ShareChoice:
    """``option`` (J,) per job; ``value``: the programme's optimum, before rounding; ``optimal``
    unless the solver gave up."""

    option: IntArray
    value: float
    optimal: bool


def choose(
    value: Sequence[FloatArray], use: Sequence[FloatArray], capacity: FloatArray
) -> ShareChoice:
    """``value``: per job (O,); ``use``: per job (O, K) of each of K resources, whose ``capacity``
    is (K,). The first option of a job is the one that it has for sure: what all first ones use must
    fit, or these are the answer."""
    first = np.sum([one[0] for one in use], axis=0)
    safe: IntArray = np.zeros(len(value), dtype=np.int64)
    if not len(value) or (first > capacity + _SLACK).any():
        return ShareChoice(safe, 0.0, not len(value))
    sizes = np.array([len(one) for one in value])
    row = np.repeat(np.arange(len(value)), sizes)
    worth, needs = np.concatenate(value), np.concatenate(use)
    part = _solve(worth, needs, row, len(value), capacity)
    if part is None:
        return ShareChoice(safe, 0.0, False)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    best = float(part @ worth)
    return ShareChoice(_rounded(value, use, part, starts, capacity), best, True)


def _solve(
    value: FloatArray, use: FloatArray, row: IntArray, jobs: int, capacity: FloatArray
) -> FloatArray | None:
    size, kinds = len(value), len(capacity)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = size, jobs + kinds
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = value
    lp.col_lower_, lp.col_upper_ = np.zeros(size), np.ones(size)
    # Resources in parts of what there is keep the programme well scaled.
    scaled = use / np.maximum(capacity, _SLACK)
    lp.row_lower_ = np.concatenate([np.ones(jobs), np.full(kinds, -highspy.kHighsInf)])
    lp.row_upper_ = np.ones(jobs + kinds)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = (np.arange(size + 1) * (kinds + 1)).astype(np.int32)
    index = np.concatenate(
        [row[:, None], np.broadcast_to(jobs + np.arange(kinds), (size, kinds))], axis=1
    )
    lp.a_matrix_.index_ = index.ravel().astype(np.int32)
    lp.a_matrix_.value_ = np.concatenate([np.ones((size, 1)), scaled], axis=1).ravel()
    solver = new_solver()
    solver.setOptionValue("time_limit", _SAFETY_NET_S)
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    part: FloatArray = np.clip(np.array(solver.getSolution().col_value), 0.0, 1.0)
    return part


def _rounded(
    value: Sequence[FloatArray],
    use: Sequence[FloatArray],
    part: FloatArray,
    starts: IntArray,
    capacity: FloatArray,
) -> IntArray:
    option: IntArray = np.zeros(len(value), dtype=np.int64)
    left = capacity - np.sum([one[0] for one in use], axis=0)
    cut: list[int] = []
    for job in range(len(value)):
        own = part[starts[job] : starts[job + 1]]
        at = int(own.argmax())
        more = use[job][at] - use[job][0]
        if own[at] > 1.0 - 1e-6 and (more <= left + _SLACK).all():
            option[job], left = at, left - more
        else:
            cut.append(job)
    for job in cut:
        more = use[job] - use[job][0]
        fits = (more <= left + _SLACK).all(axis=1)
        at = int(np.where(fits, value[job], -np.inf).argmax())
        option[job], left = at, left - more[at]
    return option
