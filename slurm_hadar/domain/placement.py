"""What a policy decides: a placement per job, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one job shall run in the next round.

    ``gpus`` counts GPUs per type over the whole job. ``nodes`` says which node gives how many of
    which type. A policy of another package must name the nodes; a policy of this package may leave
    them empty, and then any nodes of the types serve. ``batch`` is the global batch in samples
    (None: as the job has it). ``shares`` are the copies' parts of a round, summing to 1.
    """

    gpus: Mapping[str, int]
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    cpus_per_gpu: float | None = None
    mem_per_gpu_mb: int | None = None
    batch: int | None = None
    copies: int = 1
    shares: tuple[float, ...] = ()
    tier: str = ""
    reason: str = ""

    @property
    def gpu_count(self) -> int:
        """GPUs over all types."""
        return sum(self.gpus.values())


def by_type(nodes: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """GPUs by type over all nodes."""
    counts: dict[str, int] = {}
    for gpus in nodes.values():
        for kind, count in gpus.items():
            counts[kind] = counts.get(kind, 0) + count
    return counts


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy's answer for one round: who runs where, and why the others wait."""

    placements: Mapping[str, Placement] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the operator should know: prices, an infeasible view, a limit that was hit."""
