"""What a piece of advice is, and what it is drawn from. The rules stand in the modules beside."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from slurm_hadar.config import Config
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles.cpu_table import CpuTable
from slurm_hadar.tuning.draft import Draft, Ref
from slurm_hadar.tuning.replay import PolicyReplay, ReplayWorkload
from slurm_hadar.tuning.sacct_history import History
from slurm_hadar.tuning.site import SlurmSite
from slurm_hadar.tuning.usage import Usage

Basis = Literal["simulated", "measured", "not simulated"]

NOT_SIMULATED = "not simulated"
WORTH = 0.05
"""Part of the mean job time, or of the GPU-hours, from which on advice is given."""


@dataclass(frozen=True)
class Advice:
    """One thing to do. ``refs``: lines of slurm.conf; ``toml``: lines of hadar.toml, which go
    into the section that they begin with; ``gain``: a figure that was simulated or measured, or
    the text "not simulated"."""

    topic: str
    why: str
    gain: str = NOT_SIMULATED
    basis: Basis = "not simulated"
    refs: tuple[Ref, ...] = ()
    toml: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """What the replayed jobs had, before any replay: (J,) s from arrival to end, s that they ran,
    and GPU-s that they held; nan where that is unknown."""

    name: str
    jct_s: FloatArray
    run_s: FloatArray
    gpu_s: FloatArray


@dataclass
class Study:
    """All that advice is drawn from. ``recorded``: of the jobs of ``work``; ``config``: the site's
    hadar.toml where it has one; ``save_s``: how long the slowest checkpoint takes, 0: unknown."""

    site: SlurmSite
    history: History | None = None
    usage: Usage | None = None
    work: ReplayWorkload | None = None
    recorded: Recorded | None = None
    runs: Sequence[PolicyReplay] = ()
    config: Config | None = None
    cpus: CpuTable | None = None
    save_s: float = 0.0
    restart_s: float = 60.0
    draft: Draft = field(init=False)
    fine: list[str] = field(default_factory=list)
    """What was looked at and may stay as it is, or could not be looked at."""

    def __post_init__(self) -> None:
        """An empty draft."""
        self.draft = Draft(self.site)

    def run(self, name: str) -> PolicyReplay | None:
        """A replay that ended all its jobs; None where there is none."""
        found = next((run for run in self.runs if run.policy == name), None)
        return found if found and found.outcome and not found.outcome.unfinished else None

    def setting(self, name: str, default: str = "") -> str:
        """A setting of slurm.conf; ``(null)`` counts as none."""
        value = self.site.settings.get(name.lower(), default).strip()
        return default if value in ("", "(null)") else value

    @property
    def open_partitions(self) -> list[Partition]:
        """Partitions with GPUs that are up and that all users may use."""
        gpu = {node.name for node in self.site.gpu_nodes}
        return [
            p
            for p in self.site.partitions
            if p.up
            and gpu & set(p.nodes)
            and not (p.allow_groups or p.allow_accounts or p.allow_qos)
            and not (p.deny_accounts or p.deny_qos or p.root_only or p.reservation_required)
        ]


def gained(before: float, after: float, what: str) -> str:
    """``mean job time 18.2 h instead of 24.1 h (-24%)``; both in s."""
    return (
        f"{what} {after / 3600:.2f} h instead of {before / 3600:.2f} h "
        f"({(after - before) / before:+.0%})"
    )
