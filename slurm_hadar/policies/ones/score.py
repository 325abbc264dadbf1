"""The score of a candidate schedule: the job seconds still to come under it.

ONES minimises the GPU-seconds that running jobs still need plus a cost per waiting job (recalled;
its cost is not known to us). Our cost of waiting: each waiting job starts when the jobs ahead of it
have been served by the GPUs that are idle or that running jobs release. A price of GPU-seconds for
future jobs is added.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.solvers.evolution_space import Space

_NEVER = 1e9
_FORBIDDEN = 1e15


@dataclass(frozen=True)
class ScoreInput:
    """The input of the score beside the space. Times in s; J jobs, K pools, M releases."""

    weight: FloatArray
    """(J,)"""
    now_option: IntArray
    """(J,) present option; -1: does not run, or matches no option."""
    now_batch: IntArray
    restart_s: FloatArray
    """(J,) cost of a change, margin included; also of resuming a job that ran before."""
    fresh: FloatArray
    """(J,) 0 for jobs whose next start costs nothing, else 1."""
    work: FloatArray
    """(J,) least GPU-seconds of the remaining work, weighted by ``value``; inf: cannot run."""
    alone_s: FloatArray
    """(J,) seconds that this work takes."""
    value: FloatArray
    """(K,) relative value of a GPU of the pool."""
    bound_s: FloatArray
    """(M,) seconds until GPUs that no job may choose now become free."""
    bound_gpus: FloatArray
    """(M,) their number, weighted by ``value``."""
    round_s: float
    """A waiting job waits at least until the next decision."""
    price: float
    """Cost of one GPU-second for future jobs, weighted s."""


def work_of(space: Space) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``work``, ``alone_s`` and ``value`` of :class:`ScoreInput`."""
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

    def __init__(self, space: Space, score_input: ScoreInput) -> None:
        self._space, self._score_input = space, score_input
        with np.errstate(divide="ignore", invalid="ignore"):
            urgency = np.where(
                np.isfinite(score_input.work), score_input.work / score_input.weight, np.inf
            )
        self._order = np.argsort(urgency, kind="stable")[: int(np.isfinite(urgency).sum())]
        self._total = float((space.capacity * score_input.value).sum())

    def __call__(self, option: IntArray, batch: IntArray) -> FloatArray:
        """The scores (P,) of P candidates."""
        space, score_input = self._space, self._score_input
        number = len(option)
        row, job = np.nonzero(option >= 0)
        chosen, size = option[row, job], batch[row, job]
        moved = (chosen != score_input.now_option[job]) | (size != score_input.now_batch[job])
        pause = score_input.restart_s[job] * moved * score_input.fresh[job]
        end = space.seconds[job, chosen, size] + pause
        gpus = space.gpus[chosen] * score_input.value[space.pool[chosen]]
        cost = np.bincount(row, weights=score_input.weight[job] * end, minlength=number).astype(
            float
        )
        if score_input.price:
            cost += score_input.price * np.bincount(row, weights=gpus * end, minlength=number)
        if space.keep.any():
            cost += _FORBIDDEN * (option[:, space.keep] < 0).sum(axis=1)
        queue = option[:, self._order] < 0
        if queue.any():
            taken = np.bincount(row, weights=gpus, minlength=number)
            idle = np.maximum(self._total - taken, 0.0)
            start = self._starts(row, end, gpus, idle, queue)
            job_s = (
                score_input.alone_s[self._order]
                + (score_input.restart_s * score_input.fresh)[self._order]
            )
            start = np.maximum(start, score_input.round_s)
            weighted = score_input.weight[self._order] * (start + job_s)
            weighted += score_input.price * score_input.work[self._order]
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
        """(P, W) s until each job of the queue would start if it waited."""
        score_input, number = self._score_input, len(idle)
        every = np.arange(number)
        bound = len(score_input.bound_s)
        rows = np.concatenate([every, row, np.repeat(every, bound)])
        time = np.concatenate([np.zeros(number), end, np.tile(score_input.bound_s, number)])
        gain = np.concatenate([idle, gpus, np.tile(score_input.bound_gpus, number)])
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
        work = np.where(queue, score_input.work[self._order][None, :], 0.0)
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
