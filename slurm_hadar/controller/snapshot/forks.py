"""Plans that fork jobs into copies, cut to what may be carried out."""

from dataclasses import replace

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import gpus_and_nodes


def within_allowed_copies(plan: Plan, view: View) -> Plan:
    """The plan without more copies than a job's declaration allows (``fork``).

    A job that is forked beyond that is left as it is: waiting, or running where it runs.
    """
    if all(placement.copies <= 1 for placement in plan.placements.values()):
        return plan
    allowed = dict(zip(view.jobs.ids, view.jobs.copies.tolist(), strict=True))
    held = held_placements(view)
    placements: dict[str, Placement] = {}
    waiting = dict(plan.waiting)
    for id_, placement in plan.placements.items():
        most = allowed.get(id_, 1)
        named = len(placement.shares) == len(placement.nodes) == placement.copies
        if placement.copies <= 1 or (placement.copies <= most and named):
            placements[id_] = placement
        else:
            why = f"the plan forks it into {placement.copies} copies, it may have {most}"
            if placement.copies <= most:
                why = "the plan does not say where its copies are"
            if id_ in held:
                # Without a placement it would be stopped.
                placements[id_] = replace(held[id_], reason=f"stays: {why}")
            else:
                waiting[id_] = why
    return replace(plan, placements=placements, waiting=waiting)


def held_placements(view: View) -> dict[str, Placement]:
    """What running jobs hold, by job."""
    rows: dict[int, list[tuple[int, int, int]]] = {}
    for job, node, kind, count in view.jobs.held.tolist():
        rows.setdefault(job, []).append((node, kind, count))
    return {
        view.jobs.ids[job]: Placement(*gpus_and_nodes(view, held)) for job, held in rows.items()
    }
