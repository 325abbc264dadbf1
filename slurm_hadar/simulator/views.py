"""The view that a policy gets in each round: built once, cut to the jobs that are there."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from slurm_hadar.domain.traits import Prospects
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, JobArrays, View
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.estimates import Estimates
from slurm_hadar.simulator.job_owners import owners
from slurm_hadar.simulator.learning import RateLearner
from slurm_hadar.simulator.seats import Seat
from slurm_hadar.simulator.workload import Workload, doable


@dataclass
class Present:
    """How things stand, over all J jobs."""

    done: FloatArray
    """(J,) work that is done."""
    since: FloatArray
    """(J,) start of the present placement, s."""
    attained: FloatArray
    """(J,) GPU-seconds received."""
    batch: IntArray
    """(J,) present batches, 0 unknown."""
    slowed: FloatArray
    """(J,) as in ``domain.traits.Network``."""
    given: FloatArray
    """(J, 2) CPUs and MB per GPU that each job had last."""
    moves: IntArray
    """(J,) how often a job that had run before was started again."""

    @classmethod
    def nothing(cls, jobs: int) -> "Present":
        """Before anything ran."""
        return cls(
            np.zeros(jobs), np.zeros(jobs), np.zeros(jobs), np.zeros(jobs, dtype=np.int64),
            np.ones(jobs), np.zeros((jobs, 2)), np.zeros(jobs, dtype=np.int64),
        )  # fmt: skip


class Views:
    """Views of one simulation. Every job may be moved at any decision and may mix GPU types."""

    def __init__(
        self,
        workload: Workload,
        cluster: VirtualCluster,
        seen: Estimates,
        costs: Costs,
        seed: int,
        options: Mapping[str, object],
    ) -> None:
        jobs = len(workload.ids)
        self._workload, self._cluster, self._seen = workload, cluster, seen
        self._seed, self._options = seed, dict(options)
        self._nodes = cluster.arrays()
        self._ids = np.array(workload.ids, dtype=object)
        self._rate = np.where(doable(workload, cluster), seen.rate, 0.0)
        self._known = np.full(workload.rate.shape, seen.known)
        self.learner = RateLearner(workload, cluster, self._rate, seed) if seen.learned else None
        """Of what the jobs report; None: the rates are given."""
        self._priority = np.zeros(jobs)
        self._movable = np.ones(jobs, dtype=bool)
        self._restart = np.full(jobs, costs.pause_s)
        # What the cluster does not count must not keep a job waiting.
        self._cpus = workload.cpus_per_gpu * (cluster.cpus_per_gpu > 0)
        self._mem = workload.mem_per_gpu_mb * (cluster.mem_per_gpu_mb > 0)
        self._groups = np.ones((jobs, 1), dtype=bool)
        users = np.array(owners(workload, seed).users)
        self._owner: IntArray = np.unique(users, return_inverse=True)[1].reshape(-1)
        self._cut_to: IntArray | None = None
        self._fixed: dict[str, object] = {}

    def of(
        self,
        now: float,
        round_s: float,
        active: IntArray,
        present: Present,
        seats: Mapping[int, tuple[Seat, ...]],
    ) -> View:
        """The view at ``now`` of the jobs ``active`` (rising), of which some hold ``seats``."""
        done, since, attained = present.done, present.since, present.attained
        batch, slowed, given = present.batch, present.slowed, present.given
        if self._cut_to is None or not np.array_equal(self._cut_to, active):
            self._cut(active)
        holders = sorted(seats)
        rows = np.searchsorted(active, np.asarray(holders, dtype=np.int64))
        running: BoolArray = np.zeros(len(active), dtype=bool)
        running[rows] = True
        taken = [(row, *s) for row, job in zip(rows.tolist(), holders, strict=True)
                 for s in seats[job]]  # fmt: skip
        held = np.fromiter(chain.from_iterable(taken), np.int64, 4 * len(taken)).reshape(-1, 4)
        # As in the controller: who declared too little always has one sample left.
        left = np.maximum(self._seen.total[active] - done[active], 1.0)
        jobs = JobArrays(
            left=left,
            running=running,
            held=held,
            since_s=np.where(running, since[active], 0.0),
            attained=attained[active],
            **self._fixed,  # type: ignore[arg-type]
        )
        if jobs.cpu_sensitivity is not None:
            now_given = np.where(running[:, None], given[active], 0.0)
            cpus, mem = now_given.T
            cpu_sensitivity = replace(jobs.cpu_sensitivity, present_cpus=cpus, present_mem_mb=mem)
            jobs = replace(jobs, cpu_sensitivity=cpu_sensitivity)
        if jobs.batches is not None:
            # As a job's runtime measures it.
            noise = jobs.batches.noise * self._workload.noise_factor(done)[active]
            jobs = replace(jobs, batches=replace(jobs.batches, present=batch[active], noise=noise))
        if jobs.network is not None:
            jobs = replace(jobs, network=replace(jobs.network, slowed=slowed[active]))
        if self.learner is not None:
            jobs = _learned(jobs, self.learner, active, present.moves[active], now)
        return View(
            now=now,
            round_s=round_s,
            seed=self._seed,
            types=self._cluster.types,
            counts=self._workload.counts,
            nodes=self._nodes,
            jobs=jobs,
            options=self._options,
        )

    def _cut(self, active: IntArray) -> None:
        work, seen = self._workload, self._seen
        rate = self._rate[active]
        self._cut_to = active.copy()
        self._fixed = {
            "ids": tuple(self._ids[active].tolist()),
            "arrival_s": work.arrival_s[active],
            "weight": work.weight[active],
            "priority": self._priority[active],
            "total": self._seen.total[active],
            "rate": rate,
            "known": self._known[active],
            "movable": self._movable[active],
            "mixable": self._movable[active],
            "restart_s": self._restart[active],
            "cpus_per_gpu": self._cpus[active],
            "mem_per_gpu_mb": self._mem[active],
            "groups": self._groups[active],
            "max_nodes": work.max_nodes[active],
            "copies": work.copies[active],
            "tasks": work.tasks[active],
            "owner": self._owner[active],
            "cpu_sensitivity": seen.cpu_sensitivity.take(active) if seen.cpu_sensitivity else None,
            "batches": seen.batches.take(active) if seen.batches else None,
            "network": seen.network.take(active) if seen.network else None,
        }


def _learned(
    jobs: JobArrays, learner: RateLearner, active: IntArray, moves: IntArray, now: float
) -> JobArrays:
    """The same jobs with the rates that were learned, and how sure those are."""
    learner.learn(active)
    unknown = np.full(len(active), np.nan)
    none = np.zeros(len(active), dtype=bool)
    return replace(
        jobs,
        rate=learner.rate[active],
        known=learner.known[active],
        prospects=Prospects(
            rate_error=learner.error[active],
            restarts=moves,
            first_start_s=unknown,
            work_unknown=none,
            movable_from_s=np.where(jobs.running, now, 0.0),
            batch_in_place=none,
        ),
    )
