"""Running jobs that give back what they have beyond their request, as the controller has them do
(:mod:`slurm_hadar.controller.actuation.destinations.surplus`)."""

from collections.abc import Iterable, Iterator

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import IntArray
from slurm_hadar.scheduling.slurm_schedulers import Waiting, main_scheduler
from slurm_hadar.simulator.queue.cluster_state import ClusterState


def returned(
    state: ClusterState, plan: Plan, queue: Iterable[Waiting], now: float, pause_s: float
) -> Iterator[tuple[int, Placement]]:
    """The jobs that hold more GPUs than they were submitted with, and their places with as many,
    where a job of ``queue`` that is not managed starts on the rest. ``pause_s``: of a restart; a
    job that is over before such a pause is keeps all."""
    work, types = state.work, state.cluster.types
    free = state.free()
    waiting = _left_waiting(queue, free)
    for job, kind, less in _grown(state, plan, now, pause_s):
        after = free.copy()
        after[kind] += less
        left = _left_waiting(waiting, after)
        gone = {one.job for one in waiting} - {one.job for one in left}
        if not any(not state.asked.managed[one] for one in gone):
            continue
        free, waiting = after, left
        yield job, Placement(gpus={types[kind]: int(work.request[job])})


def _grown(
    state: ClusterState, plan: Plan, now: float, pause_s: float
) -> list[tuple[int, int, int]]:
    """(job, its type, GPUs beyond its request) of jobs on one type, the most first."""
    jobs = state.running()
    more = state.on[jobs].sum(axis=1) - state.work.request[jobs]
    is_one = (state.on[jobs] > 0).sum(axis=1) == 1
    lasts = state.ends(jobs, now) > now + pause_s
    found = []
    for at in np.flatnonzero(state.asked.managed[jobs] & is_one & lasts & (more > 0)).tolist():
        job = int(jobs[at])
        planned = plan.placements.get(state.work.ids[job])
        if planned is None or planned.gpu_count > state.work.request[job]:
            found.append((job, int(state.on[job].argmax()), int(more[at])))
    return sorted(found, key=lambda one: -one[2])


def _left_waiting(queue: Iterable[Waiting], free: IntArray) -> list[Waiting]:
    """Those of the queue that Slurm's main scheduler does not start; takes from ``free`` what the
    others get."""
    waiting = {one.job: one for one in queue}

    def start(job: int, kind: int) -> bool:
        if free[kind] < waiting[job].count:
            return False
        free[kind] -= waiting.pop(job).count
        return True

    main_scheduler(list(waiting.values()), len(free), start)
    return list(waiting.values())
