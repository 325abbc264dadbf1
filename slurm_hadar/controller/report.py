"""What one tick saw, meant and did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.controller.actuation.actions import Action, PlanDiff
from slurm_hadar.controller.backfill.backfill import BackfillPlan
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.placement import Plan


@dataclass(frozen=True)
class TickReport:
    """What one tick saw, meant and did. Times in s."""

    seen: Observed
    snapshot: Snapshot
    plan: Plan
    diff: PlanDiff
    acted: bool
    backfill: BackfillPlan = field(default_factory=BackfillPlan)
    decided: Sequence[Decision] | None = None
    """What was recorded on each managed job; None where nothing was."""
    said: tuple[str, ...] = ()
    """Sentences for the operator up to what this tick sends."""
    outcomes: tuple[str, ...] = ()
    """Sentences on what became of that."""
    queries: Mapping[str, int] = field(default_factory=dict)
    """Requests to Slurm by kind, over the whole tick."""
    refused: frozenset[str] = frozenset()
    """Ids of jobs of which nothing was changed, as Slurm refused it; ``outcomes`` has why."""
    private: frozenset[str] = frozenset(("jobs", "nodes"))
    """What Slurm shows to none but operators (PrivateData), of ``jobs`` and ``nodes``."""
    understated: Mapping[int, float] = field(default_factory=dict)
    """uid -> how many times a user's declared work counts, where that is more than once."""
    read_s: float = 0.0
    decide_s: float = 0.0
    act_s: float = 0.0

    @property
    def messages(self) -> tuple[str, ...]:
        """All sentences for the operator, in the order of time."""
        return (*self.said, *self.outcomes)

    @property
    def done(self) -> tuple[Action, ...]:
        """What was sent to Slurm and taken."""
        if not self.acted:
            return ()
        return tuple(a for a in self.diff.actions if a.job.id not in self.refused)
