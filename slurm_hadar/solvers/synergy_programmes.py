"""Synergy-OPT's two linear programmes [V: from its code].

The first gives CPUs and memory to jobs that run together, one option per job, with the largest sum
of values: max sum_jk f_jk y_jk, sum_k y_jk = 1, sums of CPUs and of memory within those of the
cluster, and no job below its fair share, which here depends on the options passed. A vertex of the
programme has at most as many jobs with several options as there are scarce resources; each of these
gets its best option that still fits.

The second gives each job its node by GPUs, CPUs and memory of all of them: X_sj is the part of job
j on server s, sum_s X_sj = 1, and no server gives more than it has. There any feasible X is
accepted; here running jobs prefer to stay, and otherwise as few jobs as possible are split (a
vertex of the programme has at most as many split jobs as servers have scarce resources).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.solvers.highs import INFINITY, is_best
from slurm_hadar.solvers.programme import Programme

_SAFETY_NET_S = 30.0
"""Time limit in s, never reached so far: the size of the programme bounds the effort."""
_SLACK = 1e-6
_STAY = 1.0
_NEAR = 1e-3


@dataclass(frozen=True)
class ShareChoice:
    """``option`` (J,); ``value``: the optimum of the programme, before rounding; ``optimal``: False
    if the solver gave up."""

    option: IntArray
    value: float
    optimal: bool


def choose(
    value: Sequence[FloatArray], use: Sequence[FloatArray], capacity: FloatArray
) -> ShareChoice:
    """``value``: per job (O,); ``use``: per job (O, K) of each of K resources; ``capacity`` (K,).
    The first option of each job is guaranteed: all first options together must fit, or they are the
    result."""
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
    # Resources as fractions of the capacity keep the programme well scaled.
    scaled = use / np.maximum(capacity, _SLACK)
    rows = np.broadcast_to(jobs + np.arange(kinds), (size, kinds))
    solver = Programme(
        cost=value,
        upper=np.ones(size),
        low=np.concatenate([np.ones(jobs), np.full(kinds, -INFINITY)]),
        high=np.ones(jobs + kinds),
        index=np.concatenate([row[:, None], rows], axis=1),
        value=np.concatenate([np.ones((size, 1)), scaled], axis=1),
    ).solve(time_limit=_SAFETY_NET_S)
    if not is_best(solver):
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


def places(use: FloatArray, capacity: FloatArray, open_: BoolArray, now: IntArray) -> IntArray:
    """(J,) node that has the whole job, or the largest part of it; -1 if it has none.

    ``use`` (J, K) of K resources, ``capacity`` (N, K), ``open_`` (J, N) nodes that the job may use,
    ``now`` (J,) its present node, -1 for none. A job that does not fit as a whole is placed in
    part.
    """
    jobs, nodes = open_.shape
    kinds = capacity.shape[1]
    job, node = np.nonzero(open_)
    none: IntArray = np.full(jobs, -1, dtype=np.int64)
    if not len(job):
        return none
    size = len(job)
    rows = jobs + node[:, None] * kinds + np.arange(kinds)
    scaled = use[job] / np.maximum(capacity[node], 1e-9)
    solver = Programme(
        # Placing a job counts most, then staying; ties go to the first nodes.
        cost=10.0 + _STAY * (now[job] == node) - _NEAR * node / max(1, nodes),
        upper=np.ones(size),
        low=np.full(jobs + nodes * kinds, -INFINITY),
        high=np.ones(jobs + nodes * kinds),
        index=np.concatenate([job[:, None], rows], axis=1),
        value=np.concatenate([np.ones((size, 1)), scaled], axis=1),
    ).solve(time_limit=_SAFETY_NET_S)
    if not is_best(solver):
        return none
    part = np.zeros((jobs, nodes))
    part[job, node] = np.array(solver.getSolution().col_value)
    found: IntArray = np.where(part.max(axis=1) > 1e-6, part.argmax(axis=1), -1)
    return found
