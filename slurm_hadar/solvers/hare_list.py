"""Hare's offline list schedules: tasks in one order, each appended to a GPU.

Two rules choose the GPU. ``available``: the one that is free first, whatever its speed. This is the
rule of the paper (HPDC 2022, verified), and its bound holds for it: if the times of a task differ
by a factor of at most alpha over the GPUs, the weighted sum of completion times is at most alpha (2
+ alpha) times the minimum, in the order of
:func:`~slurm_hadar.solvers.hare_relaxation.paper_order`. ``finish``: the one that ends the task
first (ours); without a proven bound.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.hare_relaxation import RoundJobs

Rule = Literal["available", "finish"]
"""Which GPU gets a task: the one that is free first, or the one that ends it first."""


@dataclass(frozen=True)
class TaskSchedule:
    """``finish_s`` (J,) ends of the jobs; ``starts``: per job and round, (type, start s, end s) of
    each task; ``switches``: how often a GPU changes to another job."""

    finish_s: FloatArray
    starts: tuple[tuple[tuple[tuple[int, float, float], ...], ...], ...]
    switches: int = 0


def alpha(task_s: FloatArray) -> float:
    """The largest ratio, over all jobs, of the longest to the shortest time of a task over the
    types that it can run on; (J, R)."""
    finite = np.isfinite(task_s)
    most = np.where(finite, task_s, 0.0).max(axis=1, initial=0.0)
    least = np.where(finite, task_s, np.inf).min(axis=1, initial=np.inf)
    return float((most / least).max(initial=1.0))


def list_schedule(
    order: Sequence[FloatArray],
    jobs: RoundJobs,
    gpus: IntArray,
    rule: Rule = "finish",
    switch_s: float = 0.0,
) -> TaskSchedule:
    """Append each task, smallest ``order`` first, to a GPU.

    ``order``: per job (its rounds,), ascending; ``gpus`` (R,); ``switch_s``: seconds that a GPU is
    idle before a task of another job. Types on which a job cannot run are skipped by both rules.
    """
    first = sorted(
        (float(place), job, number)
        for job, row in enumerate(order)
        for number, place in enumerate(row.tolist())
    )
    # Per type, ascending: when each GPU is free, and its last job.
    free: list[list[tuple[float, int]]] = [[(0.0, -1)] * count for count in gpus.tolist()]
    ready = jobs.arrival_s.tolist()
    sync = jobs.sync_s.tolist()
    made: list[list[tuple[tuple[int, float, float], ...]]] = [[] for _ in order]
    switches = 0
    for _, job, _ in first:
        ends: list[tuple[int, float, float]] = []
        lengths = jobs.task_s[job].tolist()
        kinds = [kind for kind, row in enumerate(free) if row and lengths[kind] < np.inf]
        for _ in range(int(jobs.tasks[job])):
            if rule == "available":
                kind = min(kinds, key=lambda kind: free[kind][0][0])
                at = 0
            else:
                kind = min(
                    kinds, key=lambda kind: max(free[kind][0][0], ready[job]) + lengths[kind]
                )
                # Of GPUs that would wait for the task, the one that waits least.
                at = max(0, bisect_right(free[kind], (ready[job], len(made))) - 1)
            since, before = free[kind].pop(at)
            other = before not in (-1, job)
            switches += other
            start = max(since + (switch_s if before != job else 0.0), ready[job])
            insort(free[kind], (start + lengths[kind], job))
            ends.append((kind, start, start + lengths[kind]))
        made[job].append(tuple(ends))
        ready[job] = max(end for _, _, end in ends) + sync[job]
    return TaskSchedule(np.array(ready), tuple(tuple(rows) for rows in made), switches)
