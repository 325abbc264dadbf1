"""A view as a search problem: the choices, what is fixed, and where each job is now."""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, View
from slurm_hadar.policies.allocation import ResourcePools
from slurm_hadar.policies.batches import goodput_of, present_index, sizes_of
from slurm_hadar.policies.ones.score import ScoreInput, work_of
from slurm_hadar.policies.ones.settings import OnesOptions
from slurm_hadar.policies.timetable.places import PlacedJobs
from slurm_hadar.policies.timetable.work import Options, options_of
from slurm_hadar.solvers.evolution_space import Space

_MOST_S = 1e9
_LEAST_WEIGHT = 1e-3


@dataclass(frozen=True)
class BatchProblem:
    """``seconds`` (J, O, B): run times, also for jobs that may not be moved, which ``space``
    excludes. ``sizes`` (J, B): batches in samples."""

    space: Space
    score_input: ScoreInput
    options: Options
    seconds: FloatArray
    sizes: IntArray
    now_option: IntArray
    """(J,) present option; -1: waits, or holds GPUs that match no option."""
    now_batch: IntArray
    """(J,) column of the present batch."""
    own_batch: IntArray
    """(J,) column of the declared batch."""


def problem_of(
    view: View, pools: ResourcePools, settings: OnesOptions, limit: IntArray | None, price: float
) -> BatchProblem:
    """The problem of a view. ``limit`` (J,): largest batch in samples; ``price``: see
    :class:`ScoreInput`."""
    jobs = view.jobs
    options = options_of(view, pools, jobs.rate, settings.min_stay_s)
    sizes, now_batch = sizes_of(jobs), present_index(jobs)
    seconds = _seconds(view, pools, options, goodput_of(jobs, limit))
    now_option: IntArray = np.where(options.now >= 0, options.now, -1)
    free = np.where(options.bound[:, None, None], np.inf, seconds)
    running = now_option >= 0
    keep = running & ~options.bound if not settings.preempt else np.zeros(len(running), bool)
    space = Space(
        capacity=_capacity(options),
        counts=np.asarray(view.counts, dtype=np.int64),
        seconds=free,
        sizes=sizes,
        keep=keep,
    )
    work, alone, value = work_of(space)
    weight = np.maximum(jobs.weight, _LEAST_WEIGHT)
    bound = np.flatnonzero(options.bound & running)
    ends = seconds[bound, now_option[bound], now_batch[bound]]
    known = np.isfinite(ends)
    gpus = options.gpus[now_option[bound]] * value[options.pool[now_option[bound]]]
    score_input = ScoreInput(
        weight=weight,
        now_option=now_option,
        now_batch=now_batch,
        restart_s=jobs.restart_s * max(1.0, settings.gain_over_cost),
        fresh=((jobs.attained > 0) | jobs.running).astype(np.float64),
        work=work,
        alone_s=alone,
        value=value,
        bound_s=ends[known],
        bound_gpus=gpus[known],
        round_s=view.round_s,
        price=price,
    )
    base = jobs.batches.base if jobs.batches is not None else np.zeros(len(weight))
    own: IntArray = np.abs(sizes - base[:, None]).argmin(axis=1)
    return BatchProblem(space, score_input, options, seconds, sizes, now_option, now_batch, own)


def _seconds(view: View, pools: ResourcePools, options: Options, good: FloatArray) -> FloatArray:
    kinds = np.asarray(pools.pool_type, dtype=np.int64)
    rates = good[:, kinds].reshape(len(good), -1, good.shape[3])
    able = np.isfinite(options.seconds)[:, :, None] & (rates > 0)
    left = options.left[:, None, None]
    found = np.clip(left / np.where(able, rates, 1.0), 1.0, _MOST_S)
    return np.where(able, found, np.inf)


def _capacity(options: Options) -> IntArray:
    """(K,) GPUs per pool without those of jobs that may not be moved."""
    free = options.capacity.copy()
    for job in np.flatnonzero(options.bound).tolist():
        option = int(options.now[job])
        if option >= 0:
            free[options.pool[option]] -= options.gpus[option]
        else:
            free -= options.apart[job]
    return np.maximum(free, 0)


def present(problem: BatchProblem) -> tuple[IntArray, IntArray]:
    """Candidate: each job as it is now; where nodes have shrunk, without the longest jobs."""
    space = problem.space
    jobs = np.arange(len(problem.now_option))
    option, batch = problem.now_option.copy(), problem.now_batch.copy()
    if not space.seconds.size:
        return np.full_like(option, -1), np.zeros_like(batch)
    held = np.maximum(option, 0)
    option[~np.isfinite(space.seconds[jobs, held, batch])] = -1
    for pool, capacity in enumerate(space.capacity.tolist()):
        here = np.flatnonzero((option >= 0) & (space.pool[held] == pool))
        order = here[np.argsort(space.seconds[here, held[here], batch[here]], kind="stable")]
        over = np.cumsum(space.gpus[held[order]]) > capacity
        option[order[over]] = -1
    return option, np.where(option >= 0, batch, 0)


def greedy(problem: BatchProblem, start: tuple[IntArray, IntArray]) -> tuple[IntArray, IntArray]:
    """Candidate: ``start``, then waiting jobs by their work, each on the option with the fewest
    GPU-seconds among those that fit, with its best batch."""
    space, score_input = problem.space, problem.score_input
    option, batch = start[0].copy(), start[1].copy()
    free = space.capacity.copy()
    held = np.flatnonzero(option >= 0)
    np.subtract.at(free, space.pool[option[held]], space.gpus[option[held]])
    cost = space.quickest * (space.gpus * score_input.value[space.pool])[None, :]
    waits: BoolArray = (option < 0) & np.isfinite(score_input.work)
    least = int(space.gpus.min(initial=1))
    rows = np.flatnonzero(waits)
    for job in rows[
        np.argsort(score_input.work[rows] / score_input.weight[rows], kind="stable")
    ].tolist():
        if free.max(initial=0) < least:
            break
        fits = np.where(space.gpus <= free[space.pool], cost[job], np.inf)
        at = int(fits.argmin())
        if np.isfinite(fits[at]):
            option[job], batch[job] = at, space.best[job, at]
            free[space.pool[at]] -= space.gpus[at]
    return option, batch


@dataclass(frozen=True)
class PlacedRound:
    """The result of one round.

    ``option`` (J,): index of the problem's option that each job gets; ``batch`` (J,): column of its
    batch; ``places``: the nodes.
    """

    view: View
    pools: ResourcePools
    problem: BatchProblem
    option: IntArray
    batch: IntArray
    places: PlacedJobs
