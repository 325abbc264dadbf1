"""The jobs that get GPUs in this round, and of which type: the queue in the configured order."""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import IntArray, View
from slurm_hadar.policies.queues.list_scheduler import seconds_left
from slurm_hadar.policies.queues.tiresias import QUEUES
from slurm_hadar.policies.synergy.settings import SynergyOptions


@dataclass(frozen=True, slots=True)
class Pick:
    """A job with its GPUs: one type, and a count."""

    job: int
    kind: int
    gpus: int
    seconds: float
    """Seconds left on these GPUs at the speed of what the job requests."""


@dataclass(frozen=True)
class OrderedJobs:
    """``order`` (J,): all jobs, first to go first. ``pinned``: jobs that keep what they hold.
    ``picks``: jobs for which the GPUs suffice, in order, nodes ignored. ``others``: the other jobs
    that could run at all, in order."""

    order: IntArray
    pinned: tuple[int, ...]
    picks: tuple[Pick, ...]
    others: tuple[int, ...]


def queue_of(view: View, settings: SynergyOptions) -> OrderedJobs:
    """The queue of a round."""
    jobs = view.jobs
    seconds = seconds_left(view)
    order = _order(view, settings, seconds.min(axis=(1, 2), initial=np.inf))
    held: dict[int, list[tuple[int, int]]] = {}
    for job, _, kind, count in jobs.held.tolist():
        if count > 0:
            held.setdefault(job, []).append((kind, count))
    left = view.nodes.gpus.sum(axis=0).tolist()
    pinned = [
        job
        for job, allocation in held.items()
        # This policy does not move copies or mixed types.
        if not jobs.movable[job]
        or len({kind for kind, _ in allocation}) > 1
        or sum(count for _, count in allocation) not in view.counts
    ]
    for job in pinned:
        for kind, count in held[job]:
            left[kind] -= count
    picks: list[Pick] = []
    others: list[int] = []
    fixed = set(pinned)
    column = np.isfinite(seconds).any(axis=1).argmax(axis=1)
    at_column = seconds[np.arange(len(column)), :, column]
    faster = np.argsort(at_column, axis=1, kind="stable").tolist()
    times, columns = at_column.tolist(), column.tolist()
    for job in order.tolist():
        if job in fixed:
            continue
        if not any(n > 0 for n in left):
            others.append(job)
            continue
        found = None
        if job in held:
            kind, gpus = held[job][0][0], sum(count for _, count in held[job])
            time = float(seconds[job, kind, view.counts.index(gpus)])
            if left[kind] >= gpus and np.isfinite(time):
                found = Pick(job, kind, gpus, time)
        gpus = view.counts[columns[job]]
        for kind in () if found else faster[job]:
            if left[kind] >= gpus and times[job][kind] < np.inf:
                found = Pick(job, kind, gpus, times[job][kind])
                break
        if found is None:
            others.append(job)
            continue
        left[found.kind] -= found.gpus
        picks.append(found)
    return OrderedJobs(order, tuple(pinned), tuple(picks), tuple(others))


def _order(view: View, settings: SynergyOptions, shortest: np.ndarray) -> IntArray:
    jobs = view.jobs
    keys: list[np.ndarray] = [np.arange(len(jobs.ids)), jobs.arrival_s]
    match settings.order:
        case "srtf":
            keys += [shortest]
        case "las":
            keys += [jobs.attained]
        case "tiresias":
            keys += [np.searchsorted(np.asarray(QUEUES), jobs.attained, side="right")]
        case _:
            keys += [-jobs.priority]
    if not settings.preempt:
        keys += [~jobs.running]
    return np.asarray(np.lexsort(keys), dtype=np.int64)
