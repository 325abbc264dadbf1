"""Synergy for other policies: a view that tells the best speeds, a plan with CPUs and memory.

Pure functions. ``rate`` means: with what the job asks for; so a policy that knows nothing of CPUs
sees through :func:`at_best` what each job could reach, or through :func:`eased` what it has for
sure, and needs no more for it than its fair share.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import FloatArray, IntArray, State, View
from slurm_hadar.policies.allocation import (
    Allocation,
    ResourcePools,
    held_allocations,
    resource_pools,
)
from slurm_hadar.policies.synergy.balance import balance
from slurm_hadar.policies.synergy.demands import Demands, counted, demands, shares
from slurm_hadar.policies.synergy.order import Pick
from slurm_hadar.policies.synergy.placing import Given, Placing
from slurm_hadar.policies.synergy.reasons import reason
from slurm_hadar.policies.synergy.rounds import keep_pinned, needed
from slurm_hadar.policies.synergy.settings import SynergyOptions
from slurm_hadar.policies.synergy.wishes import options_of, wishes_of


def at_best(view: View) -> View:
    """The same with every rate as high as the job's CPUs and memory may make it."""
    if not counted(view):
        return view
    return _with_factor(view, _of_all(view).best_factor)


def eased(view: View) -> View:
    """The same with the rates of the fair shares; jobs need what these take at the least.

    A place of a view like this always has enough for the least that the job needs.
    """
    if not counted(view):
        return view
    asks = _of_all(view)
    rated = _with_factor(view, asks.floor)
    fixed = view.jobs.running & ~view.jobs.movable & (asks.present[:, 0] > 0)
    cpus, mem = np.where(fixed[:, None], asks.present, asks.fair).T
    return replace(rated, jobs=replace(rated.jobs, cpus_per_gpu=cpus, mem_per_gpu_mb=mem))


def completed(
    view: View, plan: Plan, settings: SynergyOptions | None = None, proportional: bool = False
) -> Plan:
    """The plan with CPUs and memory of each placement; GPUs and nodes stand.

    Jobs in the order of the plan's placements: best case where the node has it, else the fair
    share, for which others there go back to theirs; what is left goes to those who gain most. A job
    in whose place not even its fair share is free waits. A placement that names no nodes stays as
    it is. Jobs that may not be moved keep what they have.
    """
    settings = settings or SynergyOptions()
    if not counted(view) or not plan.placements:
        return plan
    pools, row = resource_pools(view), {id_: at for at, id_ in enumerate(view.jobs.ids)}
    placing = Placing(view, pools, needed(view, True))
    held = held_allocations(view, pools)
    places: dict[int, Allocation] = {}
    for id_, placement in plan.placements.items():
        parts = _parts(view, pools.slot_of, placement)
        if parts:
            places[row[id_]] = parts
    still = [j for j in places if j in held and not view.jobs.movable[j]]
    keep_pinned(view, placing, still, held)
    picks = [_pick(view, pools, job, parts) for job, parts in places.items() if job not in still]
    wishes, asks = wishes_of(view, pools, picks, held, settings, proportional)
    for wish in wishes:
        stays = set(wish.own) == set(places[wish.job])
        wish.own, wish.only_own = places[wish.job], True
        if not stays:
            wish.restart_s, wish.present_factor = 0.0, 0.0
        placing.reserve(wish)
    for wish in wishes:
        placing.place(wish)
    if settings.leftover and not proportional:
        options = dict(zip((wish.job for wish in wishes), options_of(asks), strict=True))
        unit = shares(view).max(axis=0, initial=1.0)
        balance(placing, options, unit)
    placements: dict[str, Placement] = {}
    waiting = dict(plan.waiting)
    for id_, placement in plan.placements.items():
        if row[id_] in places and row[id_] not in placing.given:
            waiting[id_] = "the CPUs or memory of its fair share are not free beside its GPUs"
        else:
            placements[id_] = _filled(placement, placing.given.get(row[id_]))
    return replace(plan, placements=placements, waiting=waiting)


def _of_all(view: View) -> Demands:
    """Every job on the type where it is fastest, at its least count."""
    jobs = view.jobs
    column = (jobs.rate > 0).any(axis=1).argmax(axis=1)
    rows = np.arange(len(jobs.ids))
    kind = jobs.rate[rows, :, column].argmax(axis=1)
    gpus: IntArray = np.asarray(view.counts, dtype=np.int64)[column]
    return demands(view, rows, kind, gpus)


def _with_factor(view: View, factor: FloatArray) -> View:
    rate = view.jobs.rate * factor[:, None, None]
    return replace(view, jobs=replace(view.jobs, rate=rate))


def _parts(view: View, slot_of: Mapping[tuple[int, int], int], placement: Placement) -> Allocation:
    node_at = {name: at for at, name in enumerate(view.nodes.names)}
    kind_at = {name: at for at, name in enumerate(view.types)}
    return tuple(
        (slot_of[node_at[node], kind_at[kind]], count)
        for node, gpus in placement.nodes.items()
        for kind, count in gpus.items()
    )


def _pick(view: View, pools: ResourcePools, job: int, parts: Allocation) -> Pick:
    gpus = sum(count for _, count in parts)
    kind = int(pools.gpu_type[parts[0][0]])
    rates = view.jobs.rate[job, kind]
    known = [rates[at] for at, count in enumerate(view.counts) if count <= gpus and rates[at] > 0]
    seconds = float(view.jobs.left[job]) / float(known[-1]) if known else 0.0
    return Pick(job, kind, gpus, seconds)


def _filled(placement: Placement, given: Given | None) -> Placement:
    if given is None or given.fixed:
        return placement
    return replace(
        placement,
        cpus_per_gpu=given.need.cpus,
        mem_per_gpu_mb=round(given.need.mem_mb),
        reason=f"{placement.reason}; {reason(given, True)}",
    )


def wrapped(
    view: View, state: State, settings: SynergyOptions, proportional: bool = False
) -> tuple[Plan, State]:
    """Another policy's GPUs with Synergy's CPUs and memory: option ``wrap``.

    The other policy sees the speeds of the fair shares; its state is kept beside ours."""
    from slurm_hadar.policies import get

    before = state.get(settings.wrap)
    inner = before if isinstance(before, dict) else {}
    plan, after = get(settings.wrap)(eased(view), inner)
    return completed(view, plan, settings, proportional), {settings.wrap: after}
