"""The network for policies that know nothing of it: rates that count it in, places that are near.

Pure functions over views and plans; a view without racks or without knowledge of the network comes
back as it is, and so does a plan that cannot be laid nearer.
"""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.traits import TIERS
from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import Parts
from slurm_hadar.policies.network_outlook import Outlook
from slurm_hadar.policies.network_places import ANYWHERE, Ground
from slurm_hadar.policies.network_settings import Settings


def near_rates(view: View) -> View:
    """The view with each rate as it is at the nearest tier that could ever hold that many GPUs."""
    jobs = view.jobs
    if jobs.network is None or not jobs.rate.size:
        return view
    ground, outlook = Ground(view), Outlook(view, Settings(), {})
    rate = jobs.rate.copy()
    for job, kind, column in zip(*(at.tolist() for at in np.nonzero(rate > 0)), strict=True):
        if view.counts[column] < 2:
            continue
        tier = ground.best_tier(ground.ask(job, kind, view.counts[column]))
        rate[job, kind, column] *= outlook.factor(job, kind, column, min(tier, ANYWHERE))
    return replace(view, jobs=replace(jobs, rate=rate))


def placed_near(view: View, plan: Plan) -> Plan:
    """The plan with those who start or move laid as near as their types and counts allow.

    Whom the network hurts most chooses first. Who stays, mixes types or runs as copies keeps his
    nodes. Where somebody would be left without a place the plan stays as it was.
    """
    jobs = view.jobs
    if not plan.placements or (jobs.network is None and not view.nodes.rack.any()):
        return plan
    ground, outlook = Ground(view), Outlook(view, Settings(), {})
    row = {id_: at for at, id_ in enumerate(jobs.ids)}
    node = {name: at for at, name in enumerate(view.nodes.names)}
    held: dict[int, dict[tuple[int, int], int]] = {}
    for job, at, kind, count in jobs.held.tolist():
        held.setdefault(job, {})[at, kind] = count
    free: list[tuple[str, Placement]] = []
    for id_, placement in plan.placements.items():
        place = {
            (node[name], view.types.index(kind)): count
            for name, gpus in placement.nodes.items()
            for kind, count in gpus.items()
        }
        fixed = len(placement.gpus) > 1 or placement.copies > 1 or place == held.get(row[id_])
        if not fixed and placement.gpu_count in view.counts:
            free.append((id_, placement))
        elif place:
            parts = tuple((ground.floor.slot_of[at], count) for at, count in place.items())
            ground.room.take(parts, ground.needs[row[id_]])
        else:
            return plan
    free.sort(key=lambda one: (outlook.hurt(row[one[0]]), -one[1].gpu_count))
    laid = dict(plan.placements)
    for id_, placement in free:
        job, (kind_name, count) = row[id_], next(iter(placement.gpus.items()))
        ask = ground.ask(job, view.types.index(kind_name), count)
        tiers = range(ground.best_tier(ask), ANYWHERE + 1)
        parts_ = next((p for tier in tiers if (p := ground.find(ask, tier)) is not None), None)
        if parts_ is None:
            return plan
        ground.room.take(parts_, ground.needs[job])
        laid[id_] = _laid(view, ground, placement, kind_name, parts_)
    return replace(plan, placements=laid)


def _laid(view: View, ground: Ground, old: Placement, kind: str, parts: Parts) -> Placement:
    nodes = {view.nodes.names[ground.floor.node_of[slot]]: {kind: n} for slot, n in parts}
    return replace(old, nodes=nodes, tier=TIERS[ground.tier_of(parts)])
