"""CPUs and memory of managed jobs: what their owners allow, and how it is said to Slurm.

What Slurm 22.05.8 and 24.11.5 were seen to do with a pending job that has ``--gres``:

- ``CPUsPerTask=8 NumCPUs=8-8 MinCPUsNode=8`` in one update runs it with 8 CPUs, more or fewer than
  before, and ``SLURM_CPUS_PER_TASK`` (where it was submitted with ``-c``) is 8 as well. ``NumCPUs``
  alone leaves that variable, ``CPUsPerTask`` alone leaves the CPUs, ``MinCPUsNode`` alone only
  raises them.
- ``MinMemoryNode`` (MB) makes memory per CPU into memory per node; ``MinMemoryCPU`` the opposite.
- With fewer CPUs than tasks the job starts and its ``srun`` fails.
- A job that was submitted with ``--cpus-per-gpu`` waits forever after such an update
  (BadConstraints), and with ``--mem-per-gpu`` its ``srun`` fails after a change of memory.

The CPUs of a running job cannot be changed; another number takes a move.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob, profile_key
from slurm_hadar.controller.snapshot.resource_request import (
    ResourceRequest,
    cpus_asked,
    memory_asked_mb,
)
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Node
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.traits import CpuTrait
from slurm_hadar.profiles.cpu_table import CpuTable, cpu_trait_of

_NOTHING_DECLARED = Declaration()


def may_change(job: Job, want: ResourceRequest) -> bool:
    """Whether the owner allows other CPUs or memory, in a form that can be changed."""
    declared = job.declaration or _NOTHING_DECLARED
    one_place = want.form == "node" and want.most_nodes == 1 and want.copies[1] == 1
    one_place = one_place and not want.whole
    return bool(declared.cpus or declared.mem) and one_place and not job.per_gpu


def trait(
    targets: Sequence[SchedulableJob], table: CpuTable, nodes: Iterable[Node]
) -> CpuTrait | None:
    """How the speed of each target hangs on CPUs and memory; None where no job may change any.

    A job whose model no table of the site knows keeps what it asks for, and so does one that
    declares more than any of the ``nodes`` has: it would wait forever.
    """
    if not any(may_change(target.job, target.request) for target in targets):
        return None
    shapes = {(kind, n.cpus, n.memory_mb) for n in nodes if n.usable for kind in n.gpus}
    grids, rows = [], []
    for target in targets:
        job, want = target.job, target.request
        gpus = max(1, want.count)
        cpus, mem = cpus_asked(job) / gpus, memory_asked_mb(job) / gpus
        declared = job.declaration or _NOTHING_DECLARED
        grid = table.grid(profile_key(job), gpus) if may_change(job, want) else None
        low, high = declared.cpus or (cpus, cpus)
        least, most = declared.mem if declared.mem and mem else (mem, mem)
        fewest = want.counts[0]
        if grid is None or not any(
            low * fewest <= has and least * fewest <= has_mb
            for kind, has, has_mb in shapes
            if not want.types or kind in want.types
        ):
            grid, low, high, least, most = None, cpus, cpus, mem, mem
        running = job.state is JobState.RUNNING
        held = max(1, job.gpu_count)
        present = (pending_demand.cpus(job) / held, pending_demand.memory_mb(job) / held)
        grids.append(grid)
        rows.append((cpus, mem, low, high, least, most, *(present if running else (0.0, 0.0))))
    bounded = np.minimum(np.array(rows, float), pending_demand.MOST)
    asked_c, asked_m, low_c, high_c, low_m, high_m, now_c, now_m = bounded.T
    found = cpu_trait_of(grids, (asked_c, asked_m), (low_c, low_m), (high_c, high_m))
    return CpuTrait(
        found.cpus,
        found.mem_mb,
        found.factor,
        found.least_cpus,
        found.most_cpus,
        found.least_mem_mb,
        found.most_mem_mb,
        present_cpus=now_c,
        present_mem_mb=now_m,
    )


def changed_fields(job: Job, want: ResourceRequest, placement: Placement) -> dict[str, str]:
    """Slurm's fields of the CPUs and the memory of a placement; empty where they stay."""
    declared = job.declaration or _NOTHING_DECLARED
    if placement.cpus_per_gpu is None or not may_change(job, want):
        return {}
    total, found = job.cpus, {}
    if declared.cpus:
        total = _cpus(job, placement)
        each = str(total // max(1, job.tasks))
        found = {"CPUsPerTask": each, "NumCPUs": f"{total}-{total}", "MinCPUsNode": each}
    mem = pending_demand.memory_mb(job)
    if declared.mem and placement.mem_per_gpu_mb:
        mem = placement.mem_per_gpu_mb * placement.gpu_count
    if job.mem_per_node_mb and declared.mem:
        found["MinMemoryNode"] = str(mem)
    elif job.mem_per_cpu_mb and mem:
        # Otherwise more CPUs would bring more memory along.
        found["MinMemoryCPU"] = str(math.ceil(mem / total))
    return found


def differs(job: Job, want: ResourceRequest, placement: Placement) -> bool:
    """Whether a running job has other CPUs or memory than planned."""
    declared = job.declaration or _NOTHING_DECLARED
    if placement.cpus_per_gpu is None or not may_change(job, want):
        return False
    # A node gives whole cores: with two threads each a job that asked for 3 CPUs has 4.
    asked = job.cpus_per_task * max(1, job.tasks)
    if declared.cpus and _cpus(job, placement) not in (asked, job.cpus):
        return True
    planned = (placement.mem_per_gpu_mb or 0) * placement.gpu_count
    has = {
        pending_demand.memory_mb(job),
        job.mem_per_cpu_mb * asked or pending_demand.memory_mb(job),
    }
    # Memory per CPU is rounded up to whole MB.
    return bool(declared.mem and planned) and min(abs(planned - mb) for mb in has) > job.cpus


def _cpus(job: Job, placement: Placement) -> int:
    """CPUs of the whole job: as many for each task."""
    wanted = round((placement.cpus_per_gpu or 0.0) * placement.gpu_count)
    tasks = max(1, job.tasks)
    return max(wanted - wanted % tasks, tasks)
