"""Hare's offline heuristic: tasks in the order of their midpoints, each where it is done first.

Recalled: with task times that differ by a factor of at most alpha over the GPUs the weighted sum of
completion times is at most alpha (2 + alpha) times the least one.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray


@dataclass(frozen=True)
class TaskSchedule:
    """``finish_s`` (J,) ends of the jobs; ``starts``: per job and round, (type, start s, end s) of
    each task."""

    finish_s: FloatArray
    starts: tuple[tuple[tuple[tuple[int, float, float], ...], ...], ...]


def alpha(task_s: FloatArray) -> float:
    """Largest over smallest time of a job's task over the types that it can run on; (J, R)."""
    finite = np.isfinite(task_s)
    most = np.where(finite, task_s, 0.0).max(axis=1, initial=0.0)
    least = np.where(finite, task_s, np.inf).min(axis=1, initial=np.inf)
    return float((most / least).max(initial=1.0))


def list_schedule(
    midpoint: Sequence[FloatArray],
    arrival_s: FloatArray,
    tasks: IntArray,
    task_s: FloatArray,
    sync_s: FloatArray,
    gpus: IntArray,
) -> TaskSchedule:
    """``midpoint``: per job (its rounds,), rising; ``task_s`` (J, R), inf where a job cannot run;
    ``sync_s`` (J,) after each round; ``gpus`` (R,). Each task is put behind what its GPU has."""
    order = sorted(
        (float(middle), job, number)
        for job, row in enumerate(midpoint)
        for number, middle in enumerate(row.tolist())
    )
    free: list[list[float]] = [[0.0] * count for count in gpus.tolist()]
    ready = arrival_s.tolist()
    made: list[list[tuple[tuple[int, float, float], ...]]] = [[] for _ in midpoint]
    for _, job, _ in order:
        ends: list[tuple[int, float, float]] = []
        lengths = task_s[job].tolist()
        for _ in range(int(tasks[job])):
            finish, kind = min(
                (max(row[0], ready[job]) + lengths[kind], kind)
                for kind, row in enumerate(free)
                if row
            )
            # Of GPUs that would wait for the task the one that would wait least.
            row = free[kind]
            row.pop(max(0, bisect_right(row, ready[job]) - 1))
            insort(row, finish)
            ends.append((kind, finish - lengths[kind], finish))
        made[job].append(tuple(ends))
        ready[job] = max(end for _, _, end in ends) + float(sync_s[job])
    return TaskSchedule(np.array(ready), tuple(tuple(rows) for rows in made))
