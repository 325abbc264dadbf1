"""The reasons in Synergy's plans."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import Demand, placement_of
from slurm_hadar.policies.synergy.demand_grid import SAME, has_cpu_sensitivity
from slurm_hadar.policies.synergy.tune_placer import Assignment, TunePlacer


def placement(
    view: View, placer: TunePlacer, assignment: Assignment, known: bool, turn: str
) -> Placement:
    """A placement with its reason. ``known`` False: CPUs and memory as the job requests."""
    placed = placement_of(view, placer.pools, assignment.allocation, "keeps what it holds")
    if assignment.fixed:
        return placed
    return replace(
        placed,
        cpus_per_gpu=assignment.need.cpus if known else None,
        mem_per_gpu_mb=round(assignment.need.mem_mb) if known else None,
        reason=reason(assignment, known) + turn,
    )


def reason(assignment: Assignment, known: bool) -> str:
    """Why the job has these CPUs and this memory."""
    demand, need = assignment.demand, assignment.need
    if not known:
        return "CPUs and memory as it asks"
    what = f"{need.cpus:g} CPUs and {need.mem_mb / 1024:.0f} GB per GPU"
    if assignment.factor >= demand.best_factor - SAME:
        comparison = "no faster with more"
    elif assignment.factor > demand.floor + SAME:
        times = demand.best_factor / max(assignment.factor, SAME)
        comparison = f"it would be {times:.2f} times as fast with {demand_text(demand.best)}"
    else:
        comparison = (
            f"its fair share; {demand_text(demand.best)} would do more, but others need them"
        )
    if demand.own and assignment.allocation == demand.own and need == demand.present:
        return f"stays with {what}: {comparison}"
    times = assignment.factor / max(demand.floor, SAME)
    return f"{what}, {times:.2f} times its fair share's speed: {comparison}"


def demand_text(need: Demand) -> str:
    """CPUs and memory as text."""
    return f"{need.cpus:g} CPUs and {need.mem_mb / 1024:.0f} GB"


def plan(
    view: View,
    placer: TunePlacer,
    order: Iterable[int],
    waiting: Mapping[int, str],
    name: str,
) -> Plan:
    """The plan for all jobs, in the ``order`` of this ``name``."""
    known = has_cpu_sensitivity(view)
    placements: dict[str, Placement] = {}
    waits: dict[str, str] = {}
    ids = view.jobs.ids
    for place, job in enumerate(order):
        assignment = placer.assigned.get(job)
        if assignment is not None:
            turn = f"; {place + 1} of {len(ids)} in the order {name}"
            placements[ids[job]] = placement(view, placer, assignment, known, turn)
        else:
            waits[ids[job]] = waiting[job]
    return Plan(placements, waits)
