"""How a simulation went."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.simulator.fairness import RunFairness, fairness
from slurm_hadar.simulator.job_owners import JobOwners
from slurm_hadar.simulator.workload import Workload


@dataclass
class Timeline:
    """One entry per decision: from when to when, GPU-seconds assigned by type, jobs waiting."""

    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    gpu_s: list[FloatArray] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    def add(self, start_s: float, end_s: float, gpu_s: FloatArray, waiting: int) -> None:
        """Append one entry; ``gpu_s`` (R,)."""
        self.start_s.append(start_s)
        self.end_s.append(end_s)
        self.gpu_s.append(gpu_s)
        self.waiting.append(waiting)


@dataclass(frozen=True)
class Outcome:
    """Times in s on the workload's clock; arrays over its J jobs."""

    policy: str
    workload: Workload
    capacity: IntArray
    """(R,) GPUs per type."""
    finish_s: FloatArray
    """(J,) nan where a job never finished."""
    moves: IntArray
    """(J,) how often a job that had run before was started again."""
    attained: FloatArray
    """(J,) GPU-seconds held."""
    decide_s: FloatArray
    """Seconds that each decision took."""
    wall_s: float
    timeline: Timeline
    owners: JobOwners
    apart: FloatArray | None = None
    """(J,) GPU-seconds spent waiting for the network; None where no links were simulated."""
    order: str = "policy"
    """Who said which job is next: the policy, or Slurm's queue."""
    managed: BoolArray | None = None
    """(J,) the jobs that opted in; None: all."""

    @property
    def jct_s(self) -> FloatArray:
        """(J,) finish minus arrival, nan where unfinished."""
        return self.finish_s - self.workload.arrival_s

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Jobs that never finished. They are in no average."""
        rows = np.flatnonzero(np.isnan(self.finish_s))
        return tuple(self.workload.ids[row] for row in rows.tolist())

    @property
    def finished(self) -> int:
        """How many finished."""
        return len(self.finish_s) - len(self.unfinished)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last finish; nan if nothing finished."""
        if not self.finished:
            return float("nan")
        return float(np.nanmax(self.finish_s) - self.workload.arrival_s.min())

    @property
    def avg_jct_s(self) -> float:
        """Mean over the finished jobs; nan if nothing finished."""
        return float(np.nanmean(self.jct_s)) if self.finished else float("nan")

    @property
    def unmanaged_jct_s(self) -> FloatArray:
        """JCT of the jobs that did not opt in and finished; empty where all did."""
        if self.managed is None:
            return np.zeros(0)
        found: FloatArray = self.jct_s[~self.managed & ~np.isnan(self.finish_s)]
        return found

    @property
    def managed_jct_s(self) -> FloatArray:
        """JCT of the jobs that opted in and finished."""
        there = ~np.isnan(self.finish_s)
        return self.jct_s[there if self.managed is None else there & self.managed]

    @property
    def utilization(self) -> float:
        """Assigned GPU-time over the capacity from the first arrival to the last finish."""
        span = self.makespan_s * float(self.capacity.sum())
        return float(self.attained.sum()) / span if span > 0 else float("nan")

    @cached_property
    def fairness(self) -> RunFairness:
        """Over jobs, users and accounts."""
        return fairness(self.workload, self.capacity, self.finish_s, self.owners)

    @property
    def communication_share(self) -> float:
        """GPU-time spent waiting for the network over the GPU-time held; nan where unknown."""
        held = float(self.attained.sum())
        return float("nan") if self.apart is None or not held else float(self.apart.sum()) / held

    def summary(self) -> dict[str, object]:
        """The figures by name, as the command prints them. None where nothing finished."""
        done = self.jct_s[~np.isnan(self.jct_s)] / 3600.0
        median, p99 = (
            (float(np.percentile(done, 50)), float(np.percentile(done, 99)))
            if len(done)
            else (None, None)
        )
        network = {} if self.apart is None else {"communication_share": self.communication_share}
        return {
            "policy": self.policy,
            "order": self.order,
            "jobs": len(self.finish_s),
            "finished": self.finished,
            "unfinished": list(self.unfinished),
            "avg_jct_h": self.avg_jct_s / 3600.0 if len(done) else None,
            "median_jct_h": median,
            "p99_jct_h": p99,
            "makespan_h": self.makespan_s / 3600.0 if len(done) else None,
            "utilization": self.utilization if len(done) else None,
            "moves": int(self.moves.sum()),
            **self.fairness.summary(),
            **network,
            **(
                {}
                if self.managed is None
                else {
                    "managed_jct_h": _mean_h(self.managed_jct_s),
                    "unmanaged_jct_h": _mean_h(self.unmanaged_jct_s),
                }
            ),
            "decide_s_mean": float(self.decide_s.mean()) if len(self.decide_s) else None,
            "decide_s_max": float(self.decide_s.max()) if len(self.decide_s) else None,
            "wall_s": self.wall_s,
        }


def _mean_h(jct_s: FloatArray) -> float | None:
    return float(jct_s.mean()) / 3600.0 if len(jct_s) else None
