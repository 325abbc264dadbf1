"""Tables that say what the site is: folders, Slurm, GPU types, partitions, and whose jobs count."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from slurm_hadar.config.section import FullPath, Section


class Site(Section):
    """Who we are and how far we may go."""

    name: str = "site"
    mode: Literal["observe", "act"] = "observe"
    """observe: decide and explain, change nothing. act: also carry it out."""
    rights: Literal["operator", "user", "sandbox"] = "operator"
    """operator: an own user with AdminLevel=Operator. user: one researcher, for their own jobs.
    sandbox: a test cluster with SlurmUser as the controller's user."""
    controller_user: str = ""
    """User whose plan files jobs trust; empty: the user who runs the controller."""
    state_dir: FullPath = Path("/var/lib/slurm-hadar")
    """Folder of the controller's own file, mode 0700, on a local disk."""
    exchange_dir: FullPath = Path("/var/spool/slurm-hadar")
    """Folder that nodes and controller share, mode 1777 (per-user mode: in the home)."""


class Slurm(Section):
    """How to reach Slurm."""

    backend: Literal["auto", "cli", "pyslurm"] = "auto"
    bin_dir: FullPath | None = None
    """Folder of Slurm's commands; None: as PATH has them."""
    conf: FullPath | None = None
    """slurm.conf; None: as Slurm finds it."""
    timeout_s: float = Field(default=30.0, gt=0)


class GpuType(Section):
    """One GPU type, named as in the site's GRES."""

    feature: str = ""
    """Node feature that selects it; empty: the type's own name."""
    memory_gb: float = Field(default=0.0, ge=0)
    """Memory of one GPU; 0: unknown, and then jobs that declare gpu_mem do not use it."""
    tflops: float = Field(default=0.0, ge=0)
    """Training speed from the specification, to estimate unmeasured pairs; 0: unknown."""
    profile: str = ""
    """Name of the type in the throughput tables; empty: the type's own name."""


class Partitions(Section):
    """Partitions that stand for others, and those that opt every job in."""

    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Partition -> the partitions, one per GPU type, that a managed job which asks for it may run
    in: they have together its nodes, and its access, limits, defaults and tier."""
    opt_in: tuple[str, ...] = ()
    """Partitions whose jobs are managed without a declaration of their own."""
    chain: tuple[str, ...] = ()
    """Partitions in which a job whose owner declared max_requeues is saved and requeued before its
    time limit ends, until it is done. With a partition of groups also those that it stands for, and
    with all that it stands for also the partition itself."""


class Profiles(Section):
    """Throughput tables beside the shipped one."""

    tables: tuple[FullPath, ...] = ()
    cpu_tables: tuple[FullPath, ...] = ()
    """Tables of the rate by CPUs and memory, which ``hadar profile`` writes."""


class Wrapper(Section):
    """What hbatch adds."""

    quiet: bool = False
    default_types: str = ""
    """types of a job in an opt-in partition that declares none."""


class Rollout(Section):
    """Which of the jobs that opted in are managed, while a site tries that; by default all."""

    accounts: tuple[str, ...] = ()
    """Jobs of these accounts, and of ``users``; both empty: of all."""
    users: tuple[str, ...] = ()
    """The same, by users."""
    percent: float = Field(default=100.0, ge=0, le=100)
    """Of these jobs that share, drawn by their numbers: tasks of an array go together, and
    a job that is in stays in when the share grows."""


class Simulation(Section):
    """What ``hadar simulate jobs --from-sacct`` takes past jobs for: patterns with ``*`` and ``?``
    of job names, then of accounts, each with a model of the throughput tables."""

    job_names: dict[str, str] = Field(default_factory=dict)
    accounts: dict[str, str] = Field(default_factory=dict)
