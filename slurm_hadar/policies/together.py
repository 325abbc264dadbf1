"""What a policy that plans with rates alone takes in from the others, before and after it decides.

Before: the rate of every type and count is that of the best batch (ONES), with the job's fair share
of CPUs and memory (Synergy), at the nearest tier that could hold it (network). After: each
placement gets its batch, its CPUs and memory, near nodes, and rounds dealt over GPUs that nobody
else has (Hare). What a view does not tell of is left as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import FloatArray, IntArray, State, View
from slurm_hadar.policies.allocation import Parts
from slurm_hadar.policies.hadare_mains import Running, running
from slurm_hadar.policies.hare_completion import completed as with_dealt_rounds
from slurm_hadar.policies.hare_deal import over
from slurm_hadar.policies.hare_deal import placement as laid
from slurm_hadar.policies.network_places import ANYWHERE, MACHINE, Ground
from slurm_hadar.policies.ones.batches import best_batches, with_batches
from slurm_hadar.policies.synergy.completing import completed as with_cpus
from slurm_hadar.policies.synergy.completing import eased

Decide = Callable[[View, State], tuple[Plan, State]]

_FORKED = "forked"
_WORTH = 2.0
"""A running job goes nearer when that saves it so many times its restart."""


def wrapped(inner: Decide, view: View, state: State) -> tuple[Plan, State]:
    """Another policy's decision with all of this around it; its state is kept beside ours."""
    before = state.get(_FORKED)
    memory = {key: value for key, value in state.items() if key != _FORKED}
    if not (view.jobs.copies > 1).any():
        plan, after = inner(widened(view), memory)
        return completed(view, plan), after
    forked = before if isinstance(before, dict) else {}
    now = running(view, forked, 0.0)
    plan, after = inner(widened(_mains(view, now)), memory)
    plan = completed(view, _bound(view, now, plan))
    copies = {id_: one.copies for id_, one in plan.placements.items() if one.copies > 1}
    return plan, {**after, _FORKED: copies}


def widened(view: View) -> View:
    """The view with the rates that a job may count on."""
    return _near(eased(best_batches(view)))


def completed(view: View, plan: Plan) -> Plan:
    """The plan with all that the view tells of beside type and count. Pure."""
    found = with_batches(view, nearer(eased(view), plan))
    # CPUs last: whoever gets a node here also needs what stands beside its GPUs.
    return with_cpus(view, with_dealt_rounds(view, found))


def _mains(view: View, now: Running) -> View:
    """Jobs that run dealt are shown with their fastest seat; the rest is free, or out of sight
    where the job may not be moved."""
    if not now.mains:
        return view
    rows = [(job, *seat) for job, seat in now.mains.items()]
    rows += [(job, *seat) for job, seats in now.seats.items() for seat in seats]
    gpus = view.nodes.gpus.copy()
    for job in now.mains:
        if not view.jobs.movable[job]:
            for node, kind, count in now.others[job]:
                gpus[node, kind] -= count
    held = np.array(sorted(rows), dtype=np.int64).reshape(-1, 4)
    nodes = replace(view.nodes, gpus=np.maximum(gpus, 0))
    return replace(view, nodes=nodes, jobs=replace(view.jobs, held=held))


def _bound(view: View, now: Running, plan: Plan) -> Plan:
    """Who may not be moved keeps all that it runs on."""
    placements = dict(plan.placements)
    for job, seat in now.mains.items():
        if not view.jobs.movable[job]:
            seats = (seat, *now.others[job])
            dealt = over(view, job, seats, 0.0)
            if dealt is not None:
                placements[view.jobs.ids[job]] = laid(view, job, dealt, True, "may not be moved")
    return replace(plan, placements=placements)


def _near(view: View) -> View:
    network = view.jobs.network
    if network is None:
        return view
    tier = nearest(view)
    rows = np.arange(len(view.jobs.ids))[:, None, None]
    apart: FloatArray = network.factor[rows, tier[None, :, :]]
    split = (network.per_node > 0)[:, None] & (
        np.asarray(view.counts)[None, :] > network.per_node[:, None]
    )
    # A job that wants few GPUs on each of its nodes is apart even where one node has enough.
    least = network.factor[rows, np.maximum(tier, 1)[None, :, :]]
    factor = np.where(split[:, None, :], least, apart)
    return replace(view, jobs=replace(view.jobs, rate=view.jobs.rate * factor))


def nearest(view: View) -> IntArray:
    """(R, C) the nearest tier that has so many GPUs of a type, were nobody else there."""
    nodes = view.nodes.whole or view.nodes
    racks = int(nodes.rack.max(initial=0)) + 1
    in_rack = np.zeros((racks, len(view.types)), dtype=np.int64)
    np.add.at(in_rack, nodes.rack, nodes.gpus)
    counts = np.asarray(view.counts)[None, :]
    on_node = nodes.gpus.max(axis=0, initial=0)[:, None]
    there = in_rack.max(axis=0, initial=0)[:, None]
    found: IntArray = np.where(counts <= on_node, 0, np.where(counts <= there, 1, 2))
    return found.astype(np.int64)


def nearer(view: View, plan: Plan) -> Plan:
    """The plan with the same GPUs of the same types on nodes nearer to each other.

    Whoever comes to a new place gets the nearest one that is free, those first whom the network
    hurts most; then running jobs go nearer where that saves more than it costs.
    """
    network = view.jobs.network
    if network is None or not plan.placements:
        return plan
    ground, row = Ground(view), {id_: at for at, id_ in enumerate(view.jobs.ids)}
    held: dict[int, list[tuple[int, int]]] = {}
    for job, node, kind, count in view.jobs.held.tolist():
        held.setdefault(job, []).append((ground.floor.slot_of[node, kind], count))
    places: dict[int, Parts] = {}
    node_at = {name: at for at, name in enumerate(view.nodes.names)}
    for id_, placement in plan.placements.items():
        parts = _parts(view, ground, placement, node_at)
        if parts:
            places[row[id_]] = parts
            ground.room.take(parts, ground.needs[row[id_]])
    hurt = network.factor[:, ANYWHERE]
    stays = {job for job, parts in places.items() if set(parts) == set(held.get(job, ()))}
    changed: dict[int, Parts] = {}
    new = sorted((job for job in places if job not in stays), key=lambda job: (hurt[job], job))
    for job in (*new, *sorted(stays, key=lambda job: (hurt[job], job))):
        if job in stays and not view.jobs.movable[job]:
            continue
        better = _better(view, ground, job, places[job], job in stays)
        if better is not None:
            changed[job] = better
    if not changed:
        return plan
    placements = dict(plan.placements)
    for job, parts in changed.items():
        id_ = view.jobs.ids[job]
        placements[id_] = _laid(view, ground, placements[id_], parts)
    return replace(plan, placements=placements)


def _better(view: View, ground: Ground, job: int, parts: Parts, stays: bool) -> Parts | None:
    """A nearer free place for what a job has or shall get; it is taken at once."""
    tier, need = ground.tier_of(parts), ground.needs[job]
    kinds = {int(ground.floor.gpu_type[slot]) for slot, _ in parts}
    if tier == MACHINE or len(kinds) > 1:
        return None
    count = sum(number for _, number in parts)
    ask = ground.ask(job, kinds.pop(), count)
    ground.room.give(parts, need)
    for nearer_ in range(MACHINE, tier):
        found = ground.find(ask, nearer_)
        if found is not None and (not stays or _pays(view, job, parts, ground, tier, nearer_)):
            ground.room.take(found, need)
            return found
    ground.room.take(parts, need)
    return None


def _pays(view: View, job: int, parts: Parts, ground: Ground, tier: int, better: int) -> bool:
    jobs, network = view.jobs, view.jobs.network
    assert network is not None
    count = sum(number for _, number in parts)
    if count not in view.counts:
        return False
    kind = int(ground.floor.gpu_type[parts[0][0]])
    rate = float(jobs.rate[job, kind, view.counts.index(count)])
    now = rate * min(float(network.slowed[job]), float(network.factor[job, tier]))
    then = rate * float(network.factor[job, better])
    if min(now, then) <= 0:
        return False
    saved = float(jobs.left[job]) * (1.0 / now - 1.0 / then)
    return saved > _WORTH * float(jobs.restart_s[job])


def _parts(view: View, ground: Ground, placement: Placement, node_at: Mapping[str, int]) -> Parts:
    if placement.copies > 1:
        return ()
    kind_at = {name: at for at, name in enumerate(view.types)}
    return tuple(
        (ground.floor.slot_of[node_at[node], kind_at[kind]], count)
        for node, gpus in placement.nodes.items()
        for kind, count in gpus.items()
    )


def _laid(
    view: View, ground: Ground, placement: Placement, parts: Sequence[tuple[int, int]]
) -> Placement:
    nodes: dict[str, dict[str, int]] = {}
    for slot, count in parts:
        name = view.nodes.names[ground.floor.node_of[slot]]
        kind = view.types[int(ground.floor.gpu_type[slot])]
        nodes.setdefault(name, {})[kind] = count
    return replace(placement, nodes=nodes, reason=f"{placement.reason}; nearer together")
