"""The jobs of a simulation, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.traits import BatchTrait, CpuTrait, NetworkTrait
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.profiles.cpu_table import CpuTable, cpu_trait_of
from slurm_hadar.simulator.cluster import VirtualCluster


@dataclass(frozen=True)
class Queued:
    """What a trace says of its jobs for Slurm's queue; arrays over J jobs and R types."""

    managed: IntArray
    """(J,) 1 opted in, 0 did not, -1 not said."""
    types: BoolArray
    """(J, R) the types asked for; all false where nothing is said."""
    limit_s: FloatArray
    """(J,) time limit, s; nan where nothing is said."""
    priority: FloatArray
    """(J,) what Slurm adds beside the age; higher first."""
    users: tuple[str, ...]
    """(J,) "" where nothing is said."""
    accounts: tuple[str, ...]

    def take(self, at: IntArray) -> "Queued":
        """The jobs of these rows."""
        return Queued(
            self.managed[at],
            self.types[at],
            self.limit_s[at],
            self.priority[at],
            tuple(self.users[i] for i in at.tolist()),
            tuple(self.accounts[i] for i in at.tolist()),
        )


@dataclass(frozen=True)
class Workload:
    """J jobs that may run on R GPU types at C counts. Work is in samples (in steps for Gavel's
    traces), rates in the same per s: only their ratio matters."""

    name: str
    types: tuple[str, ...]
    counts: tuple[int, ...]
    """(C,) GPU counts of the last axis of ``rate``, rising."""
    ids: tuple[str, ...]
    arrival_s: FloatArray
    """(J,) s, from any zero."""
    request: IntArray
    """(J,) GPUs asked for."""
    total: FloatArray
    """(J,) work of the whole job."""
    rate: FloatArray
    """(J, R, C) true rate of the whole job on that many GPUs of one type; 0: it cannot run so."""
    weight: FloatArray
    """(J,) importance, 1 for an ordinary job."""
    models: tuple[str, ...]
    """(J,) what each job trains; "" unknown."""
    max_nodes: IntArray
    """(J,) most nodes that the job may spread over."""
    cpus_per_gpu: FloatArray
    """(J,) CPUs asked for per GPU; 0: not looked at."""
    mem_per_gpu_mb: FloatArray
    """(J,) memory asked for per GPU; 0: not looked at."""
    lines: tuple[int, ...] = ()
    """(J,) line of each job in its file, for error messages."""
    left_out: tuple[str, ...] = ()
    """Rows of the file that are no jobs to simulate, each with the reason."""
    skipped: tuple[str, ...] = ()
    """Lines of the file that are not understood, each with the reason."""
    copies: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(J,) most copies that each job may be forked into; 1 for all where nothing is given."""
    tasks: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(J,) tasks that a round of each job consists of; 1 for all where nothing is given."""
    cpu_sensitivity: CpuTrait | None = None
    """The true effect of CPUs and memory on each job; None: there is none."""
    batches: BatchTrait | None = None
    """The true rates with other batches, noise scales at the start of each job; None: every job
    keeps its own."""
    noise_growth: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(J,) noise scale at the end of a job over that at its start; 1 for all where nothing is
    given."""
    network: NetworkTrait | None = None
    """The true loss when GPUs are apart, without others' traffic; None: that of the costs."""
    gradients: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(J,) bytes of gradients that the GPUs of a job exchange per unit of work; 0: none."""
    queue: Queued | None = None
    """What they ask Slurm for; None: the trace does not say."""

    def __post_init__(self) -> None:
        """Fill in the arrays that have a default where they were left out."""
        for name in ("copies", "tasks"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.ones(len(self.ids), dtype=np.int64))
        if not len(self.gradients):
            object.__setattr__(self, "gradients", np.zeros(len(self.ids)))
        if not len(self.noise_growth):
            object.__setattr__(self, "noise_growth", np.ones(len(self.ids)))

    def noise_factor(self, done: FloatArray) -> FloatArray:
        """(J,) present noise scales over those at the start, after so much work (J,): from equal
        parts of the work they grow by equal factors."""
        part = np.clip(done / self.total, 0.0, 1.0)
        factor: FloatArray = self.noise_growth**part
        return factor

    def forked(self, copies: int) -> "Workload":
        """The same jobs, each of which may be forked into so many copies."""
        return replace(self, copies=np.full(len(self.ids), copies, dtype=np.int64))

    def take(self, rows: Sequence[int] | IntArray, ids: Sequence[str] | None = None) -> "Workload":
        """The jobs of these rows, in this order; ``ids`` renames them."""
        at = np.asarray(rows, dtype=np.intp)
        return replace(
            self,
            ids=tuple(ids) if ids is not None else tuple(self.ids[i] for i in at),
            arrival_s=self.arrival_s[at],
            request=self.request[at],
            total=self.total[at],
            rate=self.rate[at],
            weight=self.weight[at],
            models=tuple(self.models[i] for i in at),
            max_nodes=self.max_nodes[at],
            cpus_per_gpu=self.cpus_per_gpu[at],
            mem_per_gpu_mb=self.mem_per_gpu_mb[at],
            lines=tuple(self.lines[i] for i in at) if self.lines else (),
            copies=self.copies[at],
            tasks=self.tasks[at],
            cpu_sensitivity=self.cpu_sensitivity.take(at) if self.cpu_sensitivity else None,
            batches=self.batches.take(at) if self.batches else None,
            noise_growth=self.noise_growth[at],
            network=self.network.take(at) if self.network else None,
            gradients=self.gradients[at],
            queue=self.queue.take(at) if self.queue else None,
        )


def resampled(workload: Workload, jobs: int, seed: int) -> Workload:
    """A bootstrapped trace: ``jobs`` jobs drawn with replacement, arrivals as they are drawn."""
    rng = np.random.default_rng([seed, 7])
    rows = rng.integers(0, len(workload.ids), jobs)
    rows = rows[np.argsort(workload.arrival_s[rows], kind="stable")]
    drawn = workload.take(rows, [str(i) for i in range(jobs)])
    return replace(drawn, name=f"{workload.name}, resampled {seed}", left_out=(), skipped=())


def doable(workload: Workload, cluster: VirtualCluster) -> BoolArray:
    """(J, R, C) where a job can run on this cluster: a positive rate, enough GPUs of the type on
    as many nodes as the job may spread over."""
    most = np.zeros((len(workload.ids), len(workload.types)), dtype=np.int64)
    for kind in range(len(cluster.types)):
        sizes = np.sort(cluster.gpus[:, kind])[::-1].cumsum()
        spread = np.clip(workload.max_nodes, 1, len(sizes))
        most[:, kind] = sizes[spread - 1]
    counts = np.asarray(workload.counts)
    found: BoolArray = (workload.rate > 0) & (counts[None, None, :] <= most[:, :, None])
    return found


def check(workload: Workload, cluster: VirtualCluster) -> None:
    """Whether every job can run on the cluster. Raises UsageError naming the job and its line."""
    if not workload.ids:
        raise UsageError(f"{workload.name} has no job")
    if workload.types != cluster.types:
        raise UsageError(
            f"{workload.name} is for {', '.join(workload.types)}, "
            f"the cluster has {', '.join(cluster.types)}"
        )
    possible = doable(workload, cluster).any(axis=(1, 2))
    if possible.all():
        return
    row = int(np.flatnonzero(~possible)[0])
    where = f"{workload.name}, line {workload.lines[row]}" if workload.lines else workload.name
    job = f"job {workload.ids[row]}"
    if not workload.rate[row].any():
        raise UsageError(
            f"{where}: {job} has zero throughput on every type of the cluster "
            f"({', '.join(cluster.types)}); correct the trace or the cluster"
        )
    raise UsageError(
        f"{where}: {job} asks for {int(workload.request[row])} GPUs and fits nowhere on "
        f"{cluster.text}; a larger --cluster or fewer GPUs would help"
    )


def with_cpu_profiles(work: Workload, cluster: VirtualCluster, table: CpuTable) -> Workload:
    """The same jobs; the rates of the trace are those with the CPUs and memory that they ask for.

    A job that asks for none asks for its GPUs' part of the node. A job whose model the table knows
    may be given from one CPU and as little memory as was measured, up to a whole node. Raises
    UsageError for a cluster that does not count them.
    """
    if not cluster.cpus_per_gpu or not cluster.mem_per_gpu_mb:
        raise UsageError("--cpu-profiles needs --cpus-per-gpu and --mem-per-gpu above 0")
    size = int(cluster.gpus.sum(axis=1).max(initial=1))
    cpus = np.where(work.cpus_per_gpu > 0, work.cpus_per_gpu, float(cluster.cpus_per_gpu))
    mem = np.where(work.mem_per_gpu_mb > 0, work.mem_per_gpu_mb, float(cluster.mem_per_gpu_mb))
    pairs = zip(work.models, work.request.tolist(), strict=True)
    grids = [table.grid(model, gpus) if model else None for model, gpus in pairs]
    known = np.array([grid is not None for grid in grids])
    one = np.ones(len(grids))
    least = np.where(known, one, cpus), np.where(known, one, mem)
    most = (
        np.where(known, float(size * cluster.cpus_per_gpu), cpus),
        np.where(known, float(size * cluster.mem_per_gpu_mb), mem),
    )
    return replace(
        work,
        cpus_per_gpu=cpus,
        mem_per_gpu_mb=mem,
        cpu_sensitivity=cpu_trait_of(grids, (cpus, mem), least, most),
    )
