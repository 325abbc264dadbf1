"""The network for policies that ignore it: rates that include it, and near nodes.

Pure functions over views and plans. A view without racks or without network traits is returned
unchanged, and so is a plan that cannot be placed nearer.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.traits import TIERS
from slurm_hadar.domain.view import BoolArray, IntArray, View
from slurm_hadar.policies.allocation import Allocation
from slurm_hadar.policies.network.defragmentation import Defragmenter, Moved
from slurm_hadar.policies.network.expected_slowdown import ExpectedSlowdown
from slurm_hadar.policies.network.rack_capacity import ANYWHERE, GangRequest, RackCapacity
from slurm_hadar.policies.network.settings import NetworkOptions


def near_rates(view: View) -> View:
    """The view with each rate at the nearest tier that could ever hold that many GPUs."""
    jobs, network = view.jobs, view.jobs.network
    if network is None or not jobs.rate.size:
        return view
    tier = np.broadcast_to(_nearest(view)[None, :, :], jobs.rate.shape)
    # A job with a limit of GPUs per node is on several nodes even if one has enough.
    split = (network.per_node > 0)[:, None] & (
        np.asarray(view.counts)[None, :] > network.per_node[:, None]
    )
    tier = np.where(split[:, None, :], np.maximum(tier, 1), tier)
    rows = np.arange(len(jobs.ids))[:, None, None]
    exchange = 1.0 / np.clip(network.factor, 1e-3, 1.0) - 1.0
    fastest = jobs.rate.max(axis=1, keepdims=True, initial=0.0)
    relative_speed = np.where(jobs.rate > 0, jobs.rate / np.maximum(fastest, 1e-300), 0.0)
    rate = jobs.rate / (1.0 + exchange[rows, tier] * relative_speed)
    return replace(view, jobs=replace(jobs, rate=rate))


def spread_too_far(view: View) -> BoolArray:
    """(J,) jobs that run on more racks, or nodes, than their GPUs of the type need."""
    jobs, network = view.jobs, view.jobs.network
    apart: BoolArray = np.zeros(len(jobs.ids), dtype=bool)
    if network is None or not len(jobs.held):
        return apart
    nearest, rack, split = _nearest(view), view.nodes.rack.tolist(), network.per_node.tolist()
    nodes: dict[int, set[int]] = {}
    gpus: dict[int, tuple[int, int]] = {}
    for job, node, kind, count in jobs.held.tolist():
        nodes.setdefault(job, set()).add(node)
        gpus[job] = (kind, gpus.get(job, (kind, 0))[1] + count)
    for job, (kind, count) in gpus.items():
        if count in view.counts:
            best = int(nearest[kind, view.counts.index(count)])
            best = max(best, int(0 < split[job] < count))
            tier = 2 if len({rack[node] for node in nodes[job]}) > 1 else int(len(nodes[job]) > 1)
            apart[job] = tier > best
    return apart


def _nearest(view: View) -> IntArray:
    """(R, C) the nearest tier that has so many GPUs of a type on an empty cluster."""
    nodes = view.nodes.whole or view.nodes
    in_rack = np.zeros((int(nodes.rack.max(initial=0)) + 1, len(view.types)), dtype=np.int64)
    np.add.at(in_rack, nodes.rack, nodes.gpus)
    counts = np.asarray(view.counts)[None, :]
    on_node = nodes.gpus.max(axis=0, initial=0)[:, None]
    there = in_rack.max(axis=0, initial=0)[:, None]
    found: IntArray = np.where(counts <= on_node, 0, np.where(counts <= there, 1, 2))
    return found.astype(np.int64)


def placed_near(view: View, plan: Plan, worth: float = 2.0) -> Plan:
    """The plan with starting and moving jobs placed as near as their types and counts allow.

    Whom the network hurts most chooses first. Where a job would be apart, smaller ones that stay
    move to other nodes for it if that saves ``worth`` times what their restarts cost. All others
    that stay, mix types or run as copies keep their nodes. Where a job would be left without a
    place the plan stays as it was.
    """
    jobs = view.jobs
    if not plan.placements or (jobs.network is None and not view.nodes.rack.any()):
        return plan
    rack_capacity, slowdown = RackCapacity(view), ExpectedSlowdown(view, NetworkOptions(), {})
    row = {id_: at for at, id_ in enumerate(jobs.ids)}
    parts = _free_and_staying(view, plan, rack_capacity, row)
    if parts is None:
        return plan
    free, stay = parts
    free.sort(key=lambda one: (slowdown.speed_kept_over_racks(row[one[0]]), -one[1].gpu_count))
    placements = dict(plan.placements)
    maker = Defragmenter(view, rack_capacity, stay)
    for id_, placement in free:
        job, (kind_name, count) = row[id_], next(iter(placement.gpus.items()))
        request = rack_capacity.request(job, view.types.index(kind_name), count)
        best = rack_capacity.best_tier(request)
        tiers = range(best, ANYWHERE + 1)
        tier = next((tier for tier in tiers if rack_capacity.find(request, tier) is not None), None)
        if tier is None:
            return plan
        near = rack_capacity.find(request, tier)
        for nearer in range(best, tier):
            saved = _saved_s(view, job, request, (tier, nearer), running=False)
            made = maker.make(request, nearer, saved / worth)
            if made is not None:
                near = made[0]
                _give_way(view, rack_capacity, placements, made[1], id_)
                break
        else:
            assert near is not None
            rack_capacity.free_capacity.take(near, rack_capacity.needs[job])
        placements[id_] = _placement_on(view, rack_capacity, placement, kind_name, near)
    return replace(plan, placements=placements)


def _free_and_staying(
    view: View, plan: Plan, rack_capacity: RackCapacity, row: Mapping[str, int]
) -> tuple[list[tuple[str, Placement]], dict[int, Allocation]] | None:
    """The placements whose nodes may be chosen anew, and the jobs that stay where they are and
    could move for another one. What these and all others have is taken from the capacity. None
    where one of them does not name its nodes."""
    node = {name: at for at, name in enumerate(view.nodes.names)}
    held: dict[int, dict[tuple[int, int], int]] = {}
    for job, at, kind, count in view.jobs.held.tolist():
        held.setdefault(job, {})[at, kind] = count
    free: list[tuple[str, Placement]] = []
    stay: dict[int, Allocation] = {}
    for id_, placement in plan.placements.items():
        place = {
            (node[name], view.types.index(kind)): count
            for name, gpus in placement.nodes.items()
            for kind, count in gpus.items()
        }
        stays = place == held.get(row[id_])
        fixed = len(placement.gpus) > 1 or placement.copies > 1 or stays
        if not fixed and placement.gpu_count in view.counts:
            free.append((id_, placement))
        elif place:
            allocation = tuple(
                (rack_capacity.pools.slot_of[at], count) for at, count in place.items()
            )
            rack_capacity.free_capacity.take(allocation, rack_capacity.needs[row[id_]])
            if stays and placement.copies == 1 and len(placement.gpus) == 1:
                stay[row[id_]] = allocation
        else:
            return None
    return free, stay


def moved_nearer(view: View, plan: Plan, worth: float = 2.0) -> Plan:
    """The plan with running jobs that would stay where they are on nodes nearer to each other,
    where these are free, or smaller jobs can leave them, and the moves save ``worth`` times what
    they cost."""
    jobs, network = view.jobs, view.jobs.network
    if network is None or not len(jobs.held):
        return plan
    rack_capacity, row = RackCapacity(view), {id_: at for at, id_ in enumerate(jobs.ids)}
    node = {name: at for at, name in enumerate(view.nodes.names)}
    held: dict[int, set[tuple[int, int]]] = {}
    for job, at, kind, count in jobs.held.tolist():
        held.setdefault(job, set()).add((rack_capacity.pools.slot_of[at, kind], count))
    apart: list[tuple[int, Allocation]] = []
    stay: dict[int, Allocation] = {}
    for id_, placement in plan.placements.items():
        if not placement.nodes:
            return plan
        job = row[id_]
        allocation = tuple(
            (rack_capacity.pools.slot_of[node[name], view.types.index(kind)], count)
            for name, gpus in placement.nodes.items()
            for kind, count in gpus.items()
        )
        rack_capacity.free_capacity.take(allocation, rack_capacity.needs[job])
        if set(allocation) != held.get(job) or not jobs.movable[job] or placement.copies > 1:
            continue
        if len(placement.gpus) == 1:
            stay[job] = allocation
            if len(allocation) > 1:
                apart.append((job, allocation))
    placements = dict(plan.placements)
    apart.sort(key=lambda one: (float(network.slowed[one[0]]), one[0]))
    maker = Defragmenter(view, rack_capacity, stay)
    gone: set[int] = set()
    for job, allocation in apart:
        better = (
            _closer(view, rack_capacity, maker, (job, allocation), worth)
            if job not in gone
            else None
        )
        if better is not None:
            id_ = jobs.ids[job]
            maker.keep(job)
            gone |= better[1].keys()
            kind_name = next(iter(placements[id_].gpus))
            near = _placement_on(view, rack_capacity, placements[id_], kind_name, better[0])
            placements[id_] = replace(near, reason=f"{near.reason}; goes nearer together")
            _give_way(view, rack_capacity, placements, better[1], id_)
    return replace(plan, placements=placements)


def _closer(
    view: View,
    rack_capacity: RackCapacity,
    maker: Defragmenter,
    gang: tuple[int, Allocation],
    worth: float,
) -> tuple[Allocation, Moved] | None:
    """A nearer place that pays, and who moves for it; it is taken, and the old one given back."""
    job, allocation = gang
    tier, need = rack_capacity.tier_of(allocation), rack_capacity.needs[job]
    count = sum(number for _, number in allocation)
    if count not in view.counts:
        return None
    kind = int(rack_capacity.pools.gpu_type[allocation[0][0]])
    request = rack_capacity.request(job, kind, count)
    rack_capacity.free_capacity.give(allocation, need)
    for nearer in range(tier):
        saved = _saved_s(view, job, request, (tier, nearer), running=True)
        least = worth * float(view.jobs.restart_s[job])
        if saved <= least:
            continue
        found = rack_capacity.find(request, nearer)
        if found is not None:
            rack_capacity.free_capacity.take(found, need)
            return found, {}
        made = maker.make(request, nearer, (saved - least) / worth)
        if made is not None:
            return made
    rack_capacity.free_capacity.take(allocation, need)
    return None


def _saved_s(
    view: View, job: int, request: GangRequest, tiers: tuple[int, int], running: bool
) -> float:
    """Seconds by which a job ends sooner at the second tier than at the first, where it runs
    already or would start; restarts are not counted."""
    jobs, network = view.jobs, view.jobs.network
    if network is None:
        return 0.0
    rate = float(jobs.rate[job, request.kind, view.counts.index(request.count)])
    here = float(network.factor[job, tiers[0]])
    now = rate * (min(float(network.slowed[job]), here) if running else here)
    then = rate * float(network.factor[job, tiers[1]])
    if min(now, then) <= 0:
        return 0.0
    return float(jobs.left[job]) * (1.0 / now - 1.0 / then)


def _give_way(
    view: View,
    rack_capacity: RackCapacity,
    placements: dict[str, Placement],
    moved: Moved,
    gang: str,
) -> None:
    """Change ``placements``: jobs that move so that a gang is near."""
    for job, allocation in moved.items():
        id_ = view.jobs.ids[job]
        kind_name = next(iter(placements[id_].gpus))
        place = _placement_on(view, rack_capacity, placements[id_], kind_name, allocation)
        why = f"goes to another node so that the GPUs of job {gang} are near each other"
        placements[id_] = replace(place, reason=f"{place.reason}; {why}")


def _placement_on(
    view: View, rack_capacity: RackCapacity, old: Placement, kind: str, allocation: Allocation
) -> Placement:
    nodes = {
        view.nodes.names[rack_capacity.pools.node_of[slot]]: {kind: n} for slot, n in allocation
    }
    return replace(old, nodes=nodes, tier=TIERS[rack_capacity.tier_of(allocation)])
