"""List scheduling for the baselines: jobs in turn, each on the best free place, no job moves."""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.allocation import (
    Allocation,
    Demand,
    FreeCapacity,
    demands_of,
    held_allocations,
    placement_of,
    resource_pools,
)
from slurm_hadar.policies.ends import ends


def seconds_left(view: View) -> FloatArray:
    """(J, R, C) time left on each type and count, s; inf where the job cannot run so."""
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = view.jobs.left[:, None, None] / view.jobs.rate
    return np.where(view.jobs.rate > 0, seconds, np.inf)


def serve(view: View, order: Sequence[int], *, strict: bool) -> Plan:
    """Place the jobs in this order on the type where they end first, at their least count.

    Running jobs keep what they hold. ``strict``: no job overtakes one that does not fit.
    """
    if not view.jobs.ids:
        return Plan(notes=("no managed job waits or runs",))
    jobs, pools = view.jobs, resource_pools(view)
    room = FreeCapacity(view, pools)
    needs, held = demands_of(view), held_allocations(view, pools)
    for job, parts in held.items():
        room.take(parts, needs[job])
    seconds = seconds_left(view)
    placements: dict[str, Placement] = {}
    waiting: dict[str, str] = {}
    blocked = ""
    for place, job in enumerate(order):
        id_ = jobs.ids[job]
        if job in held:
            placements[id_] = placement_of(view, pools, held[job], "keeps what it holds")
            continue
        if blocked:
            waiting[id_] = f"waits behind job {blocked}, which comes first"
            continue
        parts, time, short = _find(view, room, job, seconds[job], needs[job])
        if parts:
            room.take(parts, needs[job])
            why = f"{place + 1} of {len(order)} in turn, {ends(view, job, time)}"
            placements[id_] = placement_of(view, pools, parts, why)
        else:
            waiting[id_] = short
            blocked = id_ if strict and np.isfinite(seconds[job]).any() else ""
    return Plan(placements, waiting)


def _find(
    view: View, room: FreeCapacity, job: int, seconds: FloatArray, need: Demand
) -> tuple[Allocation, float, str]:
    jobs, pools = view.jobs, room.pools
    columns = np.isfinite(seconds).any(axis=0)
    if not columns.any():
        return (), 0.0, "no GPU type and count that it can run with"
    column = int(columns.argmax())
    count, most = view.counts[column], int(jobs.max_nodes[job])
    open_: list[int] = []
    for kind in np.argsort(seconds[:, column], kind="stable").tolist():
        if not np.isfinite(seconds[kind, column]):
            continue
        usable = [p for p in pools.of_type[kind] if jobs.groups[job, pools.pool_group[p]]]
        open_ += usable
        found = (room.one_node(pool, count, need) for pool in usable)
        parts = next((p for p in found if p is not None), None)
        if parts is None and most > 1 and usable:
            parts = room.several_nodes(tuple(usable), count, need, most)
        if parts is not None:
            return parts, float(seconds[kind, column]), ""
    return (), 0.0, f"short of {room.shortage(open_, count, need, most)}"
