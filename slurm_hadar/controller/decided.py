"""What a tick decided on each job, as text for the journal."""

from slurm_hadar.controller.acts import laying
from slurm_hadar.controller.acts.actions import Intent
from slurm_hadar.controller.idle.backfill import Backfill
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.picture.viewing import Picture
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.domain.placement import Plan


def decisions(
    seen: Observed, shown: Picture, plan: Plan, means: Intent, idle: Backfill
) -> list[Decision]:
    """One for each managed job: where it goes and why, why it waits, or why it is left alone."""
    found = []
    placements = {**plan.placements, **idle.placements}
    waiting = {**plan.waiting, **idle.waiting}
    for id_ in [*shown.targets, *idle.targets]:
        placement = placements.get(id_)
        where = laying.words(placement.gpus, list(placement.nodes)) if placement else "waits"
        reason = placement.reason if placement else waiting.get(id_, "")
        if id_ in means.deferred:
            reason = f"{means.deferred[id_]}. The policy said: {reason}"
        found.append(Decision(id_, seen.now, where, reason))
    for id_, why in {**shown.left_out, **idle.left_out}.items():
        found.append(Decision(id_, seen.now, "not steered", why))
    return found
