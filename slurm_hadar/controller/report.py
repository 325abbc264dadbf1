"""The report of one tick: what it observed, decided and did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.controller.actuation.actions import Action
from slurm_hadar.controller.actuation.plan_diff import PlanDiff
from slurm_hadar.controller.idle_training.decision import IdleTrainingPlan
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.placement import Plan


@dataclass(frozen=True)
class TickReport:
    """What one tick observed, decided and did. Times in s."""

    observation: Observation
    snapshot: Snapshot
    plan: Plan
    diff: PlanDiff
    acted: bool
    backfill: IdleTrainingPlan = field(default_factory=IdleTrainingPlan)
    decided: Sequence[Decision] | None = None
    """What was recorded for each managed job; None if nothing was recorded."""
    notices: tuple[str, ...] = ()
    """Messages for the operator from before this tick's actions."""
    outcomes: tuple[str, ...] = ()
    """Messages about the results of these actions."""
    queries: Mapping[str, int] = field(default_factory=dict)
    """Requests to Slurm by kind, over the whole tick."""
    refused: frozenset[str] = frozenset()
    """Ids of jobs of which Slurm refused each change; the reasons are in ``outcomes``."""
    private: frozenset[str] = frozenset(("jobs", "nodes"))
    """What Slurm shows to operators only (PrivateData): ``jobs``, ``nodes``."""
    understated: Mapping[int, float] = field(default_factory=dict)
    """uid -> factor of this user's declared work, if above 1."""
    read_s: float = 0.0
    decide_s: float = 0.0
    act_s: float = 0.0

    @property
    def messages(self) -> tuple[str, ...]:
        """All messages for the operator, in order of time."""
        return (*self.notices, *self.outcomes)

    @property
    def done(self) -> tuple[Action, ...]:
        """The actions that Slurm accepted."""
        if not self.acted:
            return ()
        return tuple(a for a in self.diff.actions if a.job.id not in self.refused)
