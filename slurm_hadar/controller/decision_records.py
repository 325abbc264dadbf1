"""What a tick decided on each job, as text for the journal."""

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.actions import PlanDiff
from slurm_hadar.controller.backfill.backfill import BackfillPlan
from slurm_hadar.controller.journal.entry import NOT_STEERED, WAITS, Decision
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.snapshot.eligibility import by_type
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.placement import Plan


def decisions(
    seen: Observed, shown: Snapshot, plan: Plan, means: PlanDiff, idle: BackfillPlan
) -> list[Decision]:
    """One for each managed job: where it goes and why, why it waits, or why it is left alone."""
    found = []
    placements = {**plan.placements, **idle.placements}
    waiting = {**plan.waiting, **idle.waiting}
    for id_ in [*shown.schedulable, *idle.schedulable]:
        placement = placements.get(id_)
        where = (
            job_updates.placement_text(placement.gpus, list(placement.nodes))
            if placement
            else _without_placement(shown, means, id_)
        )
        reason = placement.reason if placement else waiting.get(id_, "")
        if id_ in means.deferred:
            reason = f"{means.deferred[id_]}. The policy said: {reason}"
        found.append(Decision(id_, seen.now, where, reason))
    for id_, why in {**shown.excluded, **idle.excluded}.items():
        found.append(Decision(id_, seen.now, NOT_STEERED, why))
    return found


def _without_placement(shown: Snapshot, means: PlanDiff, id_: str) -> str:
    """Where a job without a placement is: where it runs, if the guards keep it there."""
    target = shown.schedulable.get(id_)
    if target is None or id_ not in means.deferred or not target.held:
        return WAITS
    return job_updates.placement_text(by_type(target.held), list(target.held))
