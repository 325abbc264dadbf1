"""What runs of a sandbox, as data and as a few lines for a person."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """What runs. ``nodes``: name -> Slurm's state; ``jobs``: state -> number; both empty when
    slurmctld does not answer."""

    folder: Path
    version: str
    daemons: Mapping[str, bool]
    """munged, slurmctld, slurmd of each started node -> whether it runs."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        """Whether all daemons run."""
        return bool(self.daemons) and all(self.daemons.values())

    def plain(self) -> dict[str, object]:
        """As plain data."""
        return {
            "folder": str(self.folder),
            "slurm": self.version,
            "running": self.is_running,
            "daemons": dict(self.daemons),
            "nodes": dict(self.nodes),
            "jobs": dict(self.jobs),
        }

    def __str__(self) -> str:
        """A few lines for a person."""
        if not any(self.daemons.values()):
            return f"The sandbox in {self.folder} is down."
        missing = [name for name, runs in self.daemons.items() if not runs]
        lines = [
            f"The sandbox in {self.folder} is {'up' if not missing else 'partly up'} "
            f"({self.version})."
        ]
        if missing:
            lines.append(f"not running: {', '.join(missing)}")
        if self.nodes:
            states = Counter(self.nodes.values())
            lines.append(
                "nodes: " + ", ".join(f"{number} {state}" for state, number in states.items())
            )
            lines.append(
                "jobs:  "
                + (", ".join(f"{number} {state}" for state, number in self.jobs.items()) or "none")
            )
        return "\n".join(lines)
