"""Slurm's main scheduler and its backfill (recalled: sched/backfill of Slurm 22.05 to 24.11).

For a site with one partition per GPU type: each job is in the queue once for each of its types.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.scheduling.free_over_time import FreeOverTime


@dataclass(frozen=True)
class SchedulerLimits:
    """``depth``: jobs that the main scheduler considers (default_queue_depth); ``tested``: jobs
    that backfill considers (bf_max_job_test); ``interval_s``: between two passes of backfill
    (bf_interval)."""

    depth: int = 100
    tested: int = 500
    interval_s: float = 30.0

    def __post_init__(self) -> None:
        if self.depth < 1 or self.tested < 1 or not 0.0 <= self.interval_s <= 1e6:
            raise UsageError(
                "Slurm's schedulers look at one job at least, at intervals of 0 or more"
            )


@dataclass(frozen=True)
class Waiting:
    """A job in the queue: its types in the order of its list, GPUs, time limit in s."""

    job: int
    kinds: Sequence[int]
    count: int
    limit_s: float


Start = Callable[[int, int], bool]
"""(job, type) -> whether it could be started there: free GPUs may be on nodes that the job cannot
use together."""


def main_scheduler(queue: Iterable[Waiting], types: int, start: Start) -> None:
    """Try the jobs in the order of the queue. A type on which a job did not fit is closed to all
    jobs behind it."""
    closed: set[int] = set()
    for one in queue:
        for kind in one.kinds:
            if kind in closed:
                continue
            if start(one.job, kind):
                break
            closed.add(kind)
        if len(closed) == types:
            return


def backfill_scheduler(
    queue: Iterable[Waiting], free: Mapping[int, FreeOverTime], start: Start
) -> None:
    """Start each job that delays none before it. A job that cannot start gets a reservation on each
    of its types, as without bf_one_resv_per_job. ``free``: type -> free GPUs over time; modified:
    the GPUs of started jobs and of reservations are taken."""
    for one in queue:
        later: dict[int, float] = {}
        for kind in one.kinds:
            at = free[kind].earliest(one.count, one.limit_s)
            if at == free[kind].now and start(one.job, kind):
                free[kind].take(at, at + one.limit_s, one.count)
                break
            later[kind] = at
        else:
            for kind, at in later.items():
                if free[kind].now < at < float("inf"):
                    free[kind].take(at, at + one.limit_s, one.count)
