"""Jobs of a trace whose speed hangs on CPUs and memory, by the models that they name."""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles.cpu_table import CpuTable, cpu_trait_of
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.workload import Workload


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
