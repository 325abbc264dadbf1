"""Who comes first at a round's boundary: the orders of the relaxed policies."""

from collections.abc import Callable

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.policies.queues.tiresias import QUEUES
from slurm_hadar.simulator.tasks.jobs import TaskJobs
from slurm_hadar.solvers.hare import RoundJobs, relax

Key = tuple[float, float, int]
Order = Callable[[int, int], Key]
"""(job, its next round) -> what sorts its tasks among the others', smallest first."""


def hlas(jobs: TaskJobs, gpus: IntArray, weighted: bool = False) -> Order:
    """Online: heterogeneity-aware least attained service (HLAS; recalled).

    Attained service is the sum over types of GPU-time x (speed there / speed on the fastest type),
    so a finished task counts as it would on the fastest type. Queues as in Tiresias, first in
    first out inside. ``weighted`` (ours): service divided by the job's weight.
    """
    each = jobs.reference_s * jobs.tasks
    if weighted:
        each = each / np.maximum(jobs.weight, 1e-9)
    service, arrival, limits = each.tolist(), jobs.arrival_s.tolist(), np.asarray(QUEUES)

    def key(job: int, number: int) -> Key:
        queue = int(np.searchsorted(limits, number * service[job], side="right"))
        return float(queue), arrival[job], job

    return key


def offline(jobs: TaskJobs, gpus: IntArray) -> Order:
    """All is known in advance: the order of the relaxation's midpoints."""
    relaxed = relax(round_jobs(jobs), gpus)
    middle = [row.tolist() for row in relaxed.midpoint]

    def key(job: int, number: int) -> Key:
        return middle[job][number], 0.0, job

    return key


def round_jobs(jobs: TaskJobs) -> RoundJobs:
    """The same jobs for the relaxation and the list schedules."""
    return RoundJobs(jobs.arrival_s, jobs.weight, jobs.rounds, jobs.tasks, jobs.task_s, jobs.sync_s)


def lengths(jobs: TaskJobs) -> FloatArray:
    """(J,) GPU-seconds of each whole job on its fastest type."""
    work: FloatArray = jobs.reference_s * jobs.tasks * jobs.rounds
    return work


def shortest(jobs: TaskJobs, gpus: IntArray) -> Order:
    """Online with known lengths (ours, for comparison): least remaining work per weight first."""
    each = (jobs.reference_s * jobs.tasks / np.maximum(jobs.weight, 1e-9)).tolist()
    rounds, arrival = jobs.rounds.tolist(), jobs.arrival_s.tolist()

    def key(job: int, number: int) -> Key:
        return (rounds[job] - number) * each[job], arrival[job], job

    return key
