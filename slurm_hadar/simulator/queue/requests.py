"""What each job asks Slurm for: what the trace says, and drawn from a seed what it does not."""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.job_owners import owners
from slurm_hadar.simulator.workload import Workload, doable


@dataclass(frozen=True)
class Drawn:
    """How what a trace leaves open is drawn.

    ``unmanaged``: share of the jobs that did not opt in. ``typed``: those ask for one GPU type,
    drawn by the types' GPUs; else for any. ``limits``: range of time limit over true run time on
    the slowest type that a job may get, uniform (1.5 to 3: recalled from the prototype behind the
    project's hints).
    """

    unmanaged: float = 0.0
    typed: bool = False
    limits: tuple[float, float] = (1.5, 3.0)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.unmanaged <= 1.0:
            raise UsageError(f"--unmanaged-share {self.unmanaged:g}: it must be 0 to 1")
        if not 1.0 <= self.limits[0] <= self.limits[1] <= 1e6:
            raise UsageError("time limits must be at least the run time")


@dataclass(frozen=True)
class Requests:
    """Arrays over J jobs and R types."""

    managed: BoolArray
    """(J,) opted in."""
    types: BoolArray
    """(J, R) the GPU types that the job asks for."""
    limit_s: FloatArray
    """(J,) time limit, s."""
    priority: FloatArray
    """(J,) what Slurm adds for the job beside its age; higher first."""
    users: tuple[str, ...]
    accounts: tuple[str, ...]

    def kinds(self, job: int) -> list[int]:
        """The types that a job asks for, rising."""
        found: list[int] = np.flatnonzero(self.types[job]).tolist()
        return found


def requests(workload: Workload, cluster: VirtualCluster, drawn: Drawn) -> Requests:
    """The requests of all jobs. Raises UsageError for one that cannot run with its GPUs.

    Users and accounts, who is managed, types and limits are drawn from the seed and a job's number
    alone, so that runs of different policies, shares or traces of one length compare.
    """
    jobs = len(workload.ids)
    said = workload.queue
    rate = as_requested(workload.rate, workload, cluster)
    can: BoolArray = rate > 0
    if not can.any(axis=1).all():
        row = int(np.flatnonzero(~can.any(axis=1))[0])
        raise UsageError(
            f"{workload.name}: job {workload.ids[row]} cannot run on {cluster.text} with the "
            f"{int(workload.request[row])} GPUs that it asks for, as Slurm would start it"
        )
    # A share of the draws, and not a draw by the share: 30% unmanaged are among 70% unmanaged.
    draws: FloatArray = np.random.default_rng([drawn.seed, 11]).random(jobs)
    managed: BoolArray = draws >= drawn.unmanaged
    types: BoolArray = can.copy()
    if drawn.typed:
        one = _one_type(can, cluster.capacity, drawn.seed)
        types = np.where(managed.reshape(-1, 1), types, one)
    if said is not None:
        managed = np.where(said.managed >= 0, said.managed > 0, managed)
        types = np.where(_some(said.types), said.types & can, types)
    types = np.where(_some(types), types, can)
    slowest = np.where(types, rate, np.inf).min(axis=1)
    factor = np.random.default_rng([drawn.seed, 13]).uniform(*drawn.limits, jobs)
    limit = factor * workload.total / slowest
    priority = np.zeros(jobs)
    people = owners(workload, drawn.seed)
    if said is not None:
        limit = np.where(np.isnan(said.limit_s), limit, said.limit_s)
        priority = said.priority
    return Requests(managed, types, limit, priority, people.users, people.accounts)


def as_requested(rate: FloatArray, workload: Workload, cluster: VirtualCluster) -> FloatArray:
    """(J, R) of rates (J, R, C) those with the GPUs that each job asks for; 0: it cannot run."""
    column = np.searchsorted(np.asarray(workload.counts), workload.request)
    found: FloatArray = np.where(doable(workload, cluster), rate, 0.0)
    return found[np.arange(len(column)), :, column]


def _some(types: BoolArray) -> BoolArray:
    """(J, 1) whether a job has any."""
    return np.asarray(types.any(axis=1, keepdims=True), dtype=np.bool_)


def _one_type(can: BoolArray, capacity: IntArray, seed: int) -> BoolArray:
    """(J, R) one type for each job, drawn by the GPUs of the types on which it can run."""
    share = np.cumsum(np.where(can, capacity, 0), axis=1)
    draw = np.random.default_rng([seed, 12]).random(len(can)) * share[:, -1]
    at = (share <= draw[:, None]).sum(axis=1)
    found: BoolArray = np.arange(can.shape[1])[None, :] == at[:, None]
    return found
