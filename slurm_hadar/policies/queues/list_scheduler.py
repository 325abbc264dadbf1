"""List scheduling for the baselines: jobs in turn, each on its best free nodes; no job moves."""

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
from slurm_hadar.policies.reason_text import end_text


def seconds_left(view: View) -> FloatArray:
    """(J, R, C) seconds left on each type and count; inf if the job cannot run there."""
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = view.jobs.left[:, None, None] / view.jobs.rate
    return np.where(view.jobs.rate > 0, seconds, np.inf)


def serve(view: View, order: Sequence[int], *, strict: bool) -> Plan:
    """Place the jobs in this order, each with its least count on the type where it ends first.

    Running jobs keep what they hold. ``strict``: no job overtakes one that does not fit.
    """
    if not view.jobs.ids:
        return Plan(notes=("no managed job waits or runs",))
    jobs, pools = view.jobs, resource_pools(view)
    free_capacity = FreeCapacity(view, pools)
    needs, held = demands_of(view), held_allocations(view, pools)
    for job, allocation in held.items():
        free_capacity.take(allocation, needs[job])
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
        allocation, time, shortage = _find(view, free_capacity, job, seconds[job], needs[job])
        if allocation:
            free_capacity.take(allocation, needs[job])
            reason = f"{place + 1} of {len(order)} in turn, {end_text(view, job, time)}"
            placements[id_] = placement_of(view, pools, allocation, reason)
        else:
            waiting[id_] = shortage
            blocked = id_ if strict and np.isfinite(seconds[job]).any() else ""
    return Plan(placements, waiting)


def _find(
    view: View, free_capacity: FreeCapacity, job: int, seconds: FloatArray, need: Demand
) -> tuple[Allocation, float, str]:
    jobs, pools = view.jobs, free_capacity.pools
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
        found = (free_capacity.one_node(pool, count, need) for pool in usable)
        allocation = next((p for p in found if p is not None), None)
        if allocation is None and most > 1 and usable:
            allocation = free_capacity.several_nodes(tuple(usable), count, need, most)
        if allocation is not None:
            return allocation, float(seconds[kind, column]), ""
    return (), 0.0, f"short of {free_capacity.shortage(open_, count, need, most)}"
