"""The view as options: the run time of each job on each (pool, count), and its present option."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, View
from slurm_hadar.policies.allocation import (
    Allocation,
    Demand,
    ResourcePools,
    demands_of,
    held_allocations,
)

_OVERDUE = 0.5
"""A job that did more than declared is assumed to need this fraction of the work done again."""
_UNKNOWN_S = 86_400.0
"""Run time of a job whose work is unknown, on the fewest GPUs that it can have, s. On its fastest
option, a job that may grow far would seem to need the most."""
_MOST_S = 1e9


@dataclass(frozen=True)
class Options:
    """J jobs, O options, P pools. An option is a number of GPUs of one pool (one type, one access
    group)."""

    gpus: IntArray
    """(O,)"""
    pool: IntArray
    """(O,)"""
    capacity: IntArray
    """(P,) GPUs that managed jobs may use."""
    seconds: FloatArray
    """(J, O) run time of the remaining work in s; inf if the job cannot run there."""
    left: FloatArray
    """(J,) remaining samples, as far as they are believed."""
    now: IntArray
    """(J,) the present option of the job; -1: none; -2: it holds GPUs that match no option."""
    bound: BoolArray
    """(J,) whether the job holds GPUs and may not leave them now."""
    held: dict[int, Allocation]
    """What running jobs hold: (slot, GPUs) per node."""
    needs: Sequence[Demand]
    apart: dict[int, IntArray]
    """For jobs whose GPUs match no option: (P,) GPUs per pool."""

    @property
    def best_s(self) -> FloatArray:
        """(J,) shortest run time in s; inf if the job cannot run anywhere."""
        best: FloatArray = self.seconds.min(axis=1, initial=np.inf)
        return best


def options_of(view: View, pools: ResourcePools, rate: FloatArray, min_stay_s: float) -> Options:
    """The options of a view. ``rate`` (J, R, C): samples/s, as the policy believes them."""
    jobs = view.jobs
    counts = np.asarray(view.counts, dtype=np.int64)
    number = len(pools.spans)
    gpus = np.tile(counts, number)
    pool = np.repeat(np.arange(number, dtype=np.int64), len(counts))
    held = held_allocations(view, pools)
    capacity = np.asarray(pools.capacity, dtype=np.int64)
    kinds = np.asarray(pools.pool_type, dtype=np.int64)
    groups = np.asarray(pools.pool_group, dtype=np.int64)
    fastest = rate[:, kinds, :].reshape(len(jobs.ids), -1)
    open_ = jobs.groups[:, groups].repeat(len(counts), axis=1)
    open_ &= gpus[None, :] <= capacity[pool][None, :]
    largest = np.array([_largest(view, pools, p) for p in range(number)], dtype=np.int64)
    open_ &= gpus[None, :] <= jobs.max_nodes[:, None] * largest[pool][None, :]
    able = open_ & (fastest > 0)
    left = believed(jobs.left, jobs.total)
    known = np.isfinite(left)
    slow = np.where(able, gpus, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    fewest = np.where(able & (gpus == slow[:, None]), fastest, 0.0)
    left = np.where(known, left, _UNKNOWN_S * fewest.max(axis=1, initial=0.0))
    seconds = np.clip(left[:, None] / np.where(able, fastest, 1.0), 1.0, _MOST_S)
    seconds = np.where(able, seconds, np.inf)
    taken, now = _present(view, pools, seconds)
    apart = {job: taken[job] for job in np.flatnonzero(now == -2).tolist()}
    bound = (now != -1) & (~jobs.movable | (view.now - jobs.since_s < min_stay_s) | (now == -2))
    return Options(gpus, pool, capacity, seconds, left, now, bound, held, demands_of(view), apart)


def believed(left: FloatArray, total: FloatArray) -> FloatArray:
    """(J,) samples that are likely left. A job that did more than declared is assumed to need a
    fraction of what it did again: its declaration is no longer informative, and with almost no work
    left it would come before all others."""
    with np.errstate(invalid="ignore"):
        done = np.where(np.isfinite(left), np.maximum(total - left, 0.0), 0.0)
    overdue = left <= np.minimum(1.0, 1e-3 * total)
    result: FloatArray = np.where(
        overdue & np.isfinite(total), np.maximum(left, _OVERDUE * done), left
    )
    return result


def _present(view: View, pools: ResourcePools, seconds: FloatArray) -> tuple[IntArray, IntArray]:
    """(J, P) GPUs that each job holds, and (J,) the present option as in :class:`Options`."""
    jobs, counts = len(view.jobs.ids), np.asarray(view.counts, dtype=np.int64)
    slot = np.full((len(view.nodes.names), len(view.types)), -1, dtype=np.int64)
    slot[pools.node, pools.gpu_type] = np.arange(len(pools.node))
    job, node, kind, gpus = view.jobs.held.T
    taken: IntArray = np.zeros((jobs, len(pools.spans)), dtype=np.int64)
    np.add.at(taken, (job, pools.pool[slot[node, kind]]), gpus)
    total = taken.sum(axis=1)
    now: IntArray = np.where(total > 0, -2, -1)
    if not len(counts) or not taken.size:
        return taken, now
    pool, column = taken.argmax(axis=1), np.searchsorted(counts, total).clip(0, len(counts) - 1)
    option = pool * len(counts) + column
    alike = (taken.max(axis=1) == total) & (counts[column] == total)
    alike &= np.isfinite(seconds[np.arange(jobs), option])
    return taken, np.where((total > 0) & alike, option, now)


def _largest(view: View, pools: ResourcePools, pool: int) -> int:
    first, end = pools.spans[pool]
    return int(view.nodes.gpus[pools.node[first:end], pools.gpu_type[first:end]].max(initial=0))
