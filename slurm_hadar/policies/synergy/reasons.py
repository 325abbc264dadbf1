"""Reasons of Synergy's plans."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import Demand, placement_of
from slurm_hadar.policies.synergy.demands import SAME
from slurm_hadar.policies.synergy.placing import Given, Placing


def placement(view: View, placing: Placing, given: Given, known: bool, turn: str) -> Placement:
    """A place with its reason. ``known`` False: CPUs and memory stay as the job asks."""
    placed = placement_of(view, placing.pools, given.parts, "keeps what it holds")
    if given.fixed:
        return placed
    return replace(
        placed,
        cpus_per_gpu=given.need.cpus if known else None,
        mem_per_gpu_mb=round(given.need.mem_mb) if known else None,
        reason=reason(given, known) + turn,
    )


def reason(given: Given, known: bool) -> str:
    """Why it has these CPUs and this memory."""
    wish, need = given.wish, given.need
    if not known:
        return "CPUs and memory as it asks"
    what = f"{need.cpus:g} CPUs and {need.mem_mb / 1024:.0f} GB per GPU"
    if given.factor >= wish.best_factor - SAME:
        why = "no faster with more"
    elif given.factor > wish.floor + SAME:
        times = wish.best_factor / max(given.factor, SAME)
        why = f"it would be {times:.2f} times as fast with {reasons_of(wish.best)}"
    else:
        why = f"its fair share; {reasons_of(wish.best)} would do more, but others need them"
    if wish.own and given.parts == wish.own and need == wish.present:
        return f"stays with {what}: {why}"
    times = given.factor / max(wish.floor, SAME)
    return f"{what}, {times:.2f} times its fair share's speed: {why}"


def reasons_of(need: Demand) -> str:
    """CPUs and memory for people."""
    return f"{need.cpus:g} CPUs and {need.mem_mb / 1024:.0f} GB"


def plan(
    view: View,
    placing: Placing,
    order: Iterable[int],
    known: bool,
    waiting: Mapping[int, str],
    notes: tuple[str, ...],
    name: str,
) -> Plan:
    """The decision on every job, in the order of the queue."""
    placements: dict[str, Placement] = {}
    waits: dict[str, str] = {}
    ids = view.jobs.ids
    for place, job in enumerate(order):
        given = placing.given.get(job)
        if given is not None:
            turn = f"; {place + 1} of {len(ids)} in the order {name}"
            placements[ids[job]] = placement(view, placing, given, known, turn)
        else:
            waits[ids[job]] = waiting[job]
    return Plan(placements, waits, notes)
