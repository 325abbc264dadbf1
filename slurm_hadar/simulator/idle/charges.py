"""What a rescale and a forced leave cost in a replay, in samples."""

from dataclasses import dataclass

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.policies.bftrainer.records import Trainer


@dataclass(frozen=True)
class Charge:
    """``after``: growing costs its seconds at the rate after it (no node trains meanwhile, so a
    start costs too); else, as in BFTrainer's own replay, at the rate before it, and a start is
    free. Shrinking and a forced leave cost their seconds at the rate before, a leave once however
    many nodes go (arXiv 2106.12091, verified in its code)."""

    after: bool

    def rescale(
        self, trainer: Trainer, before: float, after: float, grown: bool, shrunk: bool
    ) -> float:
        """Samples that a change by choice costs; rates in samples/s."""
        cost = trainer.grow_s * (after if self.after else before) if grown else 0.0
        return cost + (trainer.shrink_s * before if shrunk else 0.0)

    def leave(self, trainer: Trainer, before: float) -> float:
        """Samples that nodes taken back cost their trainer, once."""
        return trainer.shrink_s * before


def charges(name: str) -> Charge:
    """``strict`` or ``paper``. Raises UsageError."""
    if name not in ("strict", "paper"):
        raise UsageError(f"there is no charge {name!r}; known: strict, paper")
    return Charge(name == "strict")
