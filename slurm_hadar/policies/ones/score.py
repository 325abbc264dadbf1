"""What a candidate schedule is worth: the job seconds that are still to come under it.

ONES minimises the GPU-seconds that the running jobs still need plus a cost per waiting job
(recalled; the cost is not known to us). Ours says what waiting costs: each waiting job starts when
the jobs ahead of it have been served by the GPUs that stand idle or that running jobs leave. To
that comes a price of GPU-seconds for the jobs that are still to arrive.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.solvers.evolution_space import Space

_NEVER = 1e9
_FORBIDDEN = 1e15


@dataclass(frozen=True)
class Stakes:
    """What the score looks at, beside the space. Times in s."""

    weight: FloatArray
    """(J,)"""
    now_option: IntArray
    """(J,) -1: does not run, or not on an option."""
    now_batch: IntArray
    restart_s: FloatArray
    """(J,) what it costs to go elsewhere, margin included; also to go on, for who ran before."""
    fresh: FloatArray
    """(J,) 0 for jobs whose next start is free, else 1."""
    work: FloatArray
    """(J,) GPU-seconds of what is left where they are fewest, types made equal; inf: cannot."""
    alone_s: FloatArray
    """(J,) time that this takes."""
    value: FloatArray
    """(K,) what a GPU of the pool counts for, relative to others."""
    bound_s: FloatArray
    """(M,) when GPUs that no job may choose now get free."""
    bound_gpus: FloatArray
    """(M,) how many, in equal ones."""
    round_s: float
    """Who waits, waits at least until the next decision."""
    price: float
    """What a GPU-second costs jobs that will come, weighted s."""


def work_of(space: Space) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``work``, ``alone_s`` and ``value`` of :class:`Stakes`."""
    pools = len(space.capacity)
    jobs = len(space.quickest)
    each = space.quickest * space.gpus[None, :]
    by_pool = each.reshape(jobs, pools, -1).min(axis=2, initial=np.inf)
    best = by_pool.min(axis=1, initial=np.inf)
    able = np.isfinite(best)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(np.isfinite(by_pool[able]), best[able, None] / by_pool[able], 0.0)
    value = relative.mean(axis=0) if able.any() else np.ones(pools)
    value = np.maximum(value, 1e-3)
    cost = each * value[space.pool][None, :]
    if not cost.size:
        return np.full(jobs, np.inf), np.full(jobs, np.inf), value
    at = cost.argmin(axis=1)
    rows = np.arange(jobs)
    return cost[rows, at], space.quickest[rows, at], value


class Score:
    """Callable: (P, J) options and batches -> (P,) job seconds."""

    def __init__(self, space: Space, stakes: Stakes) -> None:
        self._space, self._stakes = space, stakes
        with np.errstate(divide="ignore", invalid="ignore"):
            urgency = np.where(np.isfinite(stakes.work), stakes.work / stakes.weight, np.inf)
        self._order = np.argsort(urgency, kind="stable")[: int(np.isfinite(urgency).sum())]
        self._total = float((space.capacity * stakes.value).sum())

    def __call__(self, option: IntArray, batch: IntArray) -> FloatArray:
        """Score candidates."""
        space, stakes = self._space, self._stakes
        number = len(option)
        row, job = np.nonzero(option >= 0)
        chosen, size = option[row, job], batch[row, job]
        moved = (chosen != stakes.now_option[job]) | (size != stakes.now_batch[job])
        pause = stakes.restart_s[job] * moved * stakes.fresh[job]
        end = space.seconds[job, chosen, size] + pause
        gpus = space.gpus[chosen] * stakes.value[space.pool[chosen]]
        cost = np.bincount(row, weights=stakes.weight[job] * end, minlength=number).astype(float)
        if stakes.price:
            cost += stakes.price * np.bincount(row, weights=gpus * end, minlength=number)
        if space.keep.any():
            cost += _FORBIDDEN * (option[:, space.keep] < 0).sum(axis=1)
        queue = option[:, self._order] < 0
        if queue.any():
            taken = np.bincount(row, weights=gpus, minlength=number)
            idle = np.maximum(self._total - taken, 0.0)
            start = self._starts(row, end, gpus, idle, queue)
            job_s = stakes.alone_s[self._order] + (stakes.restart_s * stakes.fresh)[self._order]
            start = np.maximum(start, stakes.round_s)
            weighted = stakes.weight[self._order] * (start + job_s)
            weighted += stakes.price * stakes.work[self._order]
            cost += np.where(queue, weighted, 0.0).sum(axis=1)
        return cost

    def _starts(
        self,
        row: IntArray,
        end: FloatArray,
        gpus: FloatArray,
        idle: FloatArray,
        queue: BoolArray,
    ) -> FloatArray:
        """(P, W) s until a waiting job starts, were it waiting."""
        stakes, number = self._stakes, len(idle)
        every = np.arange(number)
        bound = len(stakes.bound_s)
        rows = np.concatenate([every, row, np.repeat(every, bound)])
        time = np.concatenate([np.zeros(number), end, np.tile(stakes.bound_s, number)])
        gain = np.concatenate([idle, gpus, np.tile(stakes.bound_gpus, number)])
        order = np.lexsort((time, rows))
        rows, time, gain = rows[order], np.minimum(time[order], _NEVER), gain[order]
        first = np.searchsorted(rows, every)
        speed = np.cumsum(gain)
        speed -= (speed[first] - gain[first])[rows]
        speed = np.maximum(speed, 0.0)
        done = np.zeros(len(rows))
        done[1:] = speed[:-1] * np.diff(time)
        done[first] = 0.0
        done = np.cumsum(done)
        done -= done[first][rows]
        work = np.where(queue, stakes.work[self._order][None, :], 0.0)
        ahead = np.cumsum(work, axis=1) - work
        span = max(float(done.max()), float(ahead.max())) * 1.01 + 1.0
        asked = (ahead + every[:, None] * span).ravel()
        at = np.searchsorted(done + rows * span, asked, side="right") - 1
        at = np.maximum(at, first[np.repeat(every, ahead.shape[1])])
        with np.errstate(divide="ignore", invalid="ignore"):
            more = (ahead.ravel() - done[at]) / speed[at]
        start = time[at] + np.where(speed[at] > 0, np.maximum(more, 0.0), _NEVER)
        found: FloatArray = np.minimum(start, _NEVER).reshape(ahead.shape)
        return found
