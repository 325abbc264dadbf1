"""Nodes for the jobs that Gavel's mechanism has chosen, where any node will not do."""

from collections.abc import Mapping

import numpy as np

from slurm_hadar.domain.view import IntArray, View
from slurm_hadar.policies.allocation import (
    Allocation,
    Demand,
    FreeCapacity,
    ResourcePools,
    resource_pools,
)

Nodes = dict[str, dict[str, int]]


def seat(
    view: View, chosen: Mapping[int, int], gpus: IntArray
) -> tuple[dict[int, Nodes], dict[int, str]]:
    """Nodes by job, and the reason of each chosen job that finds no place.

    ``chosen``: job -> type. Nodes are left open where every job may be spread over all of them.
    As in Gavel's code, a job that stays on a type stays where it is, the others follow by size;
    locality is looked at only as far as the jobs' limits ask for it.
    """
    if _any_node_will_do(view):
        return {}, {}
    jobs, pools = view.jobs, resource_pools(view)
    room = FreeCapacity(view, pools)
    needs = {job: Demand(jobs.cpus_per_gpu[job], jobs.mem_per_gpu_mb[job]) for job in chosen}
    held: dict[int, Allocation] = {}
    for job, node, kind, count in jobs.held.tolist():
        if count <= 0:
            continue
        held[job] = (*held.get(job, ()), (pools.slot_of[node, kind], count))
    stuck = {job: held[job] for job in held if not jobs.movable[job] and job in chosen}
    seated: dict[int, Allocation] = {}
    for job in stuck:
        room.take(stuck[job], needs[job])
        seated[job] = stuck[job]
    for job, kind in chosen.items():
        old = held.get(job, ())
        stays = all(pools.gpu_type[slot] == kind for slot, _ in old)
        fits = sum(n for _, n in old) == gpus[job]
        if job not in seated and old and stays and fits and room.holds(old, needs[job]):
            room.take(old, needs[job])
            seated[job] = old
    unseated: dict[int, str] = {}
    rest = [job for job in chosen if job not in seated]
    for job in sorted(rest, key=lambda job: (-int(gpus[job]), job)):
        usable = [p for p in pools.of_type[chosen[job]] if jobs.groups[job, pools.pool_group[p]]]
        count, most = int(gpus[job]), int(jobs.max_nodes[job])
        found = (room.one_node(pool, count, needs[job]) for pool in usable)
        parts = next((p for p in found if p is not None), None)
        if parts is None and most > 1 and usable:
            parts = room.several_nodes(tuple(usable), count, needs[job], most)
        if parts is None:
            unseated[job] = f"short of {room.shortage(usable, count, needs[job], most)}"
        else:
            room.take(parts, needs[job])
            seated[job] = parts
    return {job: _nodes(view, pools, parts) for job, parts in seated.items()}, unseated


def _any_node_will_do(view: View) -> bool:
    jobs, nodes = view.jobs, view.nodes
    one_group = not len(nodes.group) or bool((nodes.group == nodes.group[0]).all())
    return (
        one_group
        and bool(jobs.groups.all())
        and bool((jobs.max_nodes >= len(nodes.names)).all())
        and not jobs.cpus_per_gpu.any()
        and not jobs.mem_per_gpu_mb.any()
        and bool(np.asarray(jobs.movable | ~jobs.running).all())
    )


def _nodes(view: View, pools: ResourcePools, parts: Allocation) -> Nodes:
    found: Nodes = {}
    for slot, count in parts:
        on = found.setdefault(view.nodes.names[int(pools.node[slot])], {})
        kind = view.types[int(pools.gpu_type[slot])]
        on[kind] = on.get(kind, 0) + count
    return found
