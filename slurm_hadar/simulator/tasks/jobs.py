"""Jobs as rounds of tasks, for the simulation at the level of tasks.

A round of a job is K equal tasks (micro-batches of one global batch) on one GPU each, and an
exchange of gradients behind them. With relaxed fixed-scale synchronization (Hare) the tasks of a
round need not run at once; only the round's barrier holds.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.simulator.workload import Workload


@dataclass(frozen=True)
class TaskJobs:
    """J jobs for R GPU types. Times in s."""

    name: str
    types: tuple[str, ...]
    ids: tuple[str, ...]
    arrival_s: FloatArray
    """(J,)"""
    weight: FloatArray
    """(J,) importance, 1 for an ordinary job."""
    rounds: IntArray
    """(J,) rounds of the whole job."""
    tasks: IntArray
    """(J,) tasks of a round."""
    task_s: FloatArray
    """(J, R) one task on one GPU; inf: it cannot run there."""
    sync_s: FloatArray
    """(J,) from the end of a round's last task to the next round."""

    @property
    def reference_s(self) -> FloatArray:
        """(J,) a task on the type that is fastest for the job."""
        fastest: FloatArray = self.task_s.min(axis=1, initial=np.inf)
        return fastest


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """``switch_s``: a GPU that takes a task of another job than before stands still so long. Hare
    keeps models in GPU memory and needs milliseconds (recalled); a gang pays once per start."""

    switch_s: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.switch_s <= 1e6:
            raise UsageError(f"switch {self.switch_s:g} s: it must be at least 0 and finite")


@dataclass(frozen=True)
class TaskOutcome:
    """What came of a simulation."""

    policy: str
    jobs: TaskJobs
    gpus: IntArray
    """(R,) the cluster."""
    finish_s: FloatArray
    """(J,)"""
    busy_s: FloatArray
    """(R,) GPU-seconds of training."""
    switches: int
    """Times that a GPU went from one job to another."""
    wall_s: float

    @property
    def jct_s(self) -> FloatArray:
        """(J,) from arrival to end."""
        found: FloatArray = self.finish_s - self.jobs.arrival_s
        return found

    @property
    def weighted_jct_s(self) -> float:
        """Average weighted by the jobs' importance."""
        return float(np.average(self.jct_s, weights=self.jobs.weight))

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        return float(self.finish_s.max() - self.jobs.arrival_s.min())

    @property
    def utilization(self) -> float:
        """Training as a part of all GPUs' time until the last end."""
        return float(self.busy_s.sum() / (self.gpus.sum() * self.makespan_s))

    def summary(self) -> dict[str, object]:
        """For JSON and tables; units in the names."""
        jct = self.jct_s / 3600.0
        return {
            "policy": self.policy,
            "jobs": len(self.jobs.ids),
            "weighted_avg_jct_h": self.weighted_jct_s / 3600.0,
            "avg_jct_h": float(jct.mean()),
            "median_jct_h": float(np.median(jct)),
            "p99_jct_h": float(np.percentile(jct, 99)),
            "makespan_h": self.makespan_s / 3600.0,
            "utilization": self.utilization,
            "utilization_by_type": {
                kind: float(busy / (max(1, count) * self.makespan_s))
                for kind, busy, count in zip(
                    self.jobs.types, self.busy_s.tolist(), self.gpus.tolist(), strict=True
                )
            },
            "switches": self.switches,
            "wall_s": self.wall_s,
        }


def from_workload(
    workload: Workload, task_s: float, sync_s: float, tasks: int | None = None
) -> TaskJobs:
    """Jobs as rounds of tasks. A task is what the fastest type trains in ``task_s`` s on one GPU.

    A job has ``tasks`` tasks a round, else those of the workload, else as many as GPUs were asked
    for. The rate of one GPU is that of the request divided by its GPUs, so a gang is as fast as the
    workload says, but for ``sync_s`` after each round. Raises UsageError for values without
    meaning.
    """
    if not 0.0 < task_s <= 1e6 or not 0.0 <= sync_s <= 1e6:
        raise UsageError("a task takes above 0 s and the exchange after a round at least 0 s")
    asked = workload.request
    columns = np.searchsorted(np.asarray(workload.counts), asked)
    rate = workload.rate[np.arange(len(asked)), :, columns] / asked[:, None]
    with np.errstate(divide="ignore"):
        seconds = task_s * rate.max(axis=1, keepdims=True) / rate
    number = np.where(workload.tasks > 1, workload.tasks, asked)
    if tasks is not None:
        number = np.full(len(asked), tasks, dtype=np.int64)
    samples = task_s * rate.max(axis=1) * number
    with np.errstate(divide="ignore", invalid="ignore"):
        rounds = np.ceil(np.where(samples > 0, workload.total / samples, 1.0))
    return TaskJobs(
        name=workload.name,
        types=workload.types,
        ids=workload.ids,
        arrival_s=workload.arrival_s - workload.arrival_s.min(initial=np.inf),
        weight=workload.weight,
        rounds=np.maximum(rounds, 1.0).astype(np.int64),
        tasks=number.astype(np.int64),
        task_s=np.where(rate > 0, seconds, np.inf),
        sync_s=np.full(len(asked), sync_s),
    )


def check(jobs: TaskJobs, gpus: IntArray, gangs: bool) -> None:
    """Whether all jobs can run, as gangs of one type where ``gangs``. Raises UsageError."""
    if not jobs.ids:
        raise UsageError(f"{jobs.name} has no job")
    able = np.isfinite(jobs.task_s) & (gpus > 0)
    if gangs:
        able &= jobs.tasks[:, None] <= gpus
    missing = np.flatnonzero(~able.any(axis=1))
    if len(missing):
        job = int(missing[0])
        what = f"{int(jobs.tasks[job])} GPUs of one type" if gangs else "a GPU"
        raise UsageError(
            f"{jobs.name}: job {jobs.ids[job]} needs {what} that it can run on, and there is no "
            "such; a larger --cluster or fewer --tasks would help"
        )
