"""What a tick decided on each job, as text for the journal."""

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.actions import NOT_STOPPED, WOULD_STOP
from slurm_hadar.controller.actuation.plan_diff import PlanDiff
from slurm_hadar.controller.idle_training.decision import IdleTrainingPlan
from slurm_hadar.controller.journal.entry import NOT_STEERED, WAITS, Decision
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.placement import Plan, by_type


def decisions(
    observation: Observation, shown: Snapshot, plan: Plan, means: PlanDiff, idle: IdleTrainingPlan
) -> list[Decision]:
    """One for each managed job: where it goes and why, why it waits, or why it is left alone."""
    found = []
    placements = {**plan.placements, **idle.placements}
    waiting = {**plan.waiting, **idle.waiting}
    kept = not_stopped(shown, plan, means, idle)
    for id_ in [*shown.schedulable, *idle.schedulable]:
        placement = placements.get(id_)
        where, reason = WAITS, waiting.get(id_, "")
        if placement:
            where = job_updates.placement_text(placement.gpus, list(placement.nodes))
            reason = placement.reason
            if id_ in means.deferred:
                reason = f"{means.deferred[id_]}. The policy said: {reason}"
        elif id_ in kept:
            held = kept[id_].held
            where = job_updates.placement_text(by_type(held), list(held))
            why = means.deferred[id_]
            reason = why if why == NOT_STOPPED else f"{WOULD_STOP}, but {why}"
        found.append(Decision(id_, observation.now, where, reason))
    for id_, why in {**shown.excluded, **idle.excluded}.items():
        found.append(Decision(id_, observation.now, NOT_STEERED, why))
    return found


def not_stopped(
    shown: Snapshot, plan: Plan, means: PlanDiff, idle: IdleTrainingPlan
) -> dict[str, SchedulableJob]:
    """The running jobs that the policy would stop, and that the guards keep where they are."""
    targets = {**shown.schedulable, **idle.schedulable}
    stopped = {**plan.waiting, **idle.waiting}
    return {
        id_: target
        for id_, target in targets.items()
        if target.held and id_ in stopped and id_ in means.deferred
    }
