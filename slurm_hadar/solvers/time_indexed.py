"""Which work runs when and where: a linear programme over time buckets, and its prices.

Unrelated machines with preemption, gangs as fluid. The textbook relaxation (recalled: time-indexed
formulations of R | r_j, pmtn | sum w_j C_j, mean busy time in place of completion), with two
constraints that determine the makespan: no job runs more than all the time, and all work ends at a
horizon. Solved exactly by HiGHS on one thread, so equal input gives equal output.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.highs import INFINITY
from slurm_hadar.solvers.programme import Programme

_LATE = 100.0
"""Cost of work beyond the horizon, in horizons: it makes each programme feasible."""


@dataclass(frozen=True)
class TimeIndexedWork:
    """Jobs, or classes of similar jobs, and the options to run them.

    ``seconds`` (J, O): run time of the remaining work, inf if not possible. ``gpus`` (O,) and
    ``pool`` (O,): what an option uses. ``capacity`` (P,): GPUs. ``number`` (J,): jobs per class.
    ``weight`` (J,): weight of one job.
    """

    seconds: FloatArray
    gpus: IntArray
    pool: IntArray
    capacity: IntArray
    number: FloatArray
    weight: FloatArray


@dataclass(frozen=True)
class FluidSchedule:
    """A fluid timetable.

    ``share`` (J, O, B): fraction of the job's work done in the bucket on the option. ``worth``
    (J,): what one job of the class adds to the objective, weighted s. ``price`` (P, B): weighted s
    that one GPU-second less of the pool in the bucket would cost.
    """

    share: FloatArray
    worth: FloatArray
    price: FloatArray


def shortest(work: TimeIndexedWork, alone: bool = True) -> tuple[float, FloatArray]:
    """Least time for all work, s, and the price per pool, s per GPU-second.

    min T: the parts of each job sum to 1, none runs longer than T, no pool is used above T x GPUs.
    Without ``alone`` the run time of a single job does not count, only the capacity that it uses.
    """
    jobs, pools = len(work.number), len(work.capacity)
    row, col = np.nonzero(np.isfinite(work.seconds))
    size, unit = len(row), _unit(work)
    if not size:
        return 0.0, np.zeros(pools)
    time = work.seconds[row, col] / unit
    pool = work.pool[col]
    filled = np.where(work.capacity > 0, work.capacity, 1)
    load = time * work.gpus[col] * work.number[row] / filled[pool]
    index = np.stack([row, jobs + row, 2 * jobs + pool], axis=1)
    value = np.stack([np.ones(size), time, load], axis=1)
    rest = np.arange(jobs, 2 * jobs + pools)
    low = np.full(2 * jobs + pools, -INFINITY)
    high = np.zeros(2 * jobs + pools)
    if not alone:
        high[jobs : 2 * jobs] = INFINITY
    possible = np.bincount(row, minlength=jobs) > 0
    low[:jobs] = high[:jobs] = np.where(possible, 1.0, 0.0)
    programme = Programme(
        cost=np.append(np.zeros(size), 1.0),
        upper=np.full(size + 1, INFINITY),
        low=low,
        high=high,
        index=np.append(index, rest),
        value=np.append(value, np.full(len(rest), -1.0)),
        start=np.append(np.arange(size + 1) * 3, 3 * size + len(rest)),
        minimise=True,
    )
    solved = _solved(programme)
    return float(solved[0][-1]) * unit, np.maximum(-solved[1][2 * jobs :], 0.0) / filled


def timetable(
    work: TimeIndexedWork, edges: FloatArray, duty: FloatArray, there: FloatArray | None = None
) -> FluidSchedule:
    """Minimise the weighted mean busy time with all work done by the last edge.

    ``edges`` (B + 1,), s from now, ascending from 0. ``duty`` (J,): largest planned fraction of any
    bucket for a job; below 1 it leaves capacity for what a fluid plan ignores. ``there`` (J, B):
    fraction of each bucket in which the job has arrived; default: all. Work that does not fit goes
    to an extra bucket after the horizon, at a high cost, which the result omits.
    """
    jobs, pools, buckets = len(work.number), len(work.capacity), len(edges)
    horizon = float(edges[-1])
    length = np.append(np.diff(edges), horizon)
    middle = np.append((edges[1:] + edges[:-1]) / 2, _LATE * horizon)
    limit = np.repeat(duty[:, None], buckets, axis=1)
    if there is not None:
        limit[:, :-1] *= there
    limit[:, -1] = np.inf
    rows, cols = np.nonzero(np.isfinite(work.seconds))
    row, col = np.repeat(rows, buckets), np.repeat(cols, buckets)
    bucket = np.tile(np.arange(buckets), len(rows))
    time = work.seconds[row, col]
    pool, number = work.pool[col], work.number[row]
    filled = np.where(work.capacity > 0, work.capacity, 1)
    load = time * work.gpus[col] * number / (length[bucket] * filled[pool])
    first, second = jobs, jobs + jobs * buckets
    possible = np.bincount(rows, minlength=jobs) > 0
    low = np.full(second + pools * buckets, -INFINITY)
    low[:jobs] = np.where(possible, 1.0, 0.0)
    high = np.concatenate([low[:jobs], limit.ravel(), np.ones(pools * buckets)])
    high[second + buckets - 1 :: buckets] = INFINITY
    index = [row, first + row * buckets + bucket, second + pool * buckets + bucket]
    value = [np.ones(len(row)), time / length[bucket], load]
    programme = Programme(
        cost=work.weight[row] * number * middle[bucket] / horizon,
        upper=np.full(len(row), INFINITY),
        low=low,
        high=high,
        index=np.stack(index, axis=1),
        value=np.stack(value, axis=1),
        minimise=True,
    )
    solved = _solved(programme)
    share = np.zeros((jobs, len(work.gpus), buckets))
    share[row, col, bucket] = solved[0]
    of_capacity = solved[1][second:].reshape(pools, buckets)[:, :-1] * horizon
    return FluidSchedule(
        share=share[:, :, :-1],
        worth=solved[1][:jobs] * horizon / work.number,
        price=_gpu_price(of_capacity, length[:-1] * filled[:, None]),
    )


def _gpu_price(dual: FloatArray, gpu_s: FloatArray) -> FloatArray:
    """(P, B) the price of a GPU-second: the ``dual`` of a pool's capacity in a bucket over its
    GPU-seconds."""
    price: FloatArray = np.maximum(-dual, 0.0) / gpu_s
    return price


def _unit(work: TimeIndexedWork) -> float:
    finite = work.seconds[np.isfinite(work.seconds)]
    return float(finite.max(initial=1.0))


def _solved(programme: Programme) -> tuple[FloatArray, FloatArray]:
    """The solution, and the duals of the rows."""
    found = programme.solve().getSolution()
    return np.array(found.col_value), np.array(found.row_dual)
