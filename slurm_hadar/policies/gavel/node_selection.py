"""The nodes of the jobs that Gavel's mechanism has chosen, where some nodes do not fit."""

from collections.abc import Mapping

import numpy as np

from slurm_hadar.domain.view import IntArray, View
from slurm_hadar.policies.allocation import (
    Allocation,
    Demand,
    FreeCapacity,
    gpus_and_nodes,
    resource_pools,
    rows_of,
)

Nodes = dict[str, dict[str, int]]


def select_nodes(
    view: View, chosen: Mapping[int, int], gpus: IntArray
) -> tuple[dict[int, Nodes], dict[int, str]]:
    """Nodes by job, and the reason of each chosen job that fits nowhere.

    ``chosen``: job -> type. No nodes are named if every job may spread over all of them. As in
    Gavel's code, a job that stays on its type keeps its nodes and the others follow by size;
    locality matters only as far as limits of the jobs demand.
    """
    if _any_node_will_do(view):
        return {}, {}
    jobs, pools = view.jobs, resource_pools(view)
    free_capacity = FreeCapacity(view, pools)
    needs = {job: Demand(jobs.cpus_per_gpu[job], jobs.mem_per_gpu_mb[job]) for job in chosen}
    held: dict[int, Allocation] = {}
    for job, node, kind, count in jobs.held.tolist():
        if count <= 0:
            continue
        held[job] = (*held.get(job, ()), (pools.slot_of[node, kind], count))
    immovable = {job: held[job] for job in held if not jobs.movable[job] and job in chosen}
    placed: dict[int, Allocation] = {}
    for job in immovable:
        free_capacity.take(immovable[job], needs[job])
        placed[job] = immovable[job]
    for job, kind in chosen.items():
        old = held.get(job, ())
        stays = all(pools.gpu_type[slot] == kind for slot, _ in old)
        fits = sum(n for _, n in old) == gpus[job]
        if job not in placed and old and stays and fits and free_capacity.holds(old, needs[job]):
            free_capacity.take(old, needs[job])
            placed[job] = old
    unplaced: dict[int, str] = {}
    rest = [job for job in chosen if job not in placed]
    for job in sorted(rest, key=lambda job: (-int(gpus[job]), job)):
        usable = [p for p in pools.of_type[chosen[job]] if jobs.groups[job, pools.pool_group[p]]]
        count, most = int(gpus[job]), int(jobs.max_nodes[job])
        found = (free_capacity.one_node(pool, count, needs[job]) for pool in usable)
        allocation = next((p for p in found if p is not None), None)
        if allocation is None and most > 1 and usable:
            allocation = free_capacity.several_nodes(tuple(usable), count, needs[job], most)
        if allocation is None:
            unplaced[job] = f"short of {free_capacity.shortage(usable, count, needs[job], most)}"
        else:
            free_capacity.take(allocation, needs[job])
            placed[job] = allocation
    nodes = {
        job: gpus_and_nodes(view, rows_of(pools, allocation))[1]
        for job, allocation in placed.items()
    }
    return nodes, unplaced


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
