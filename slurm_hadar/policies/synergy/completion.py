"""Synergy for other policies: a view with the speeds by CPUs and memory, and plans completed with
them.

Pure functions. ``rate`` in a view means: with what the job requests. A policy that ignores CPUs
sees through :func:`at_best` the speed that each job could reach, or through :func:`at_fair_share`
the speed that it has for certain, at the demand of its fair share.
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
from slurm_hadar.policies.synergy.demand_grid import (
    DemandGrid,
    demand_grid,
    has_cpu_sensitivity,
    shares,
)
from slurm_hadar.policies.synergy.job_demands import DemandOptions, job_demands_of, options_of
from slurm_hadar.policies.synergy.order import Pick
from slurm_hadar.policies.synergy.reasons import reason
from slurm_hadar.policies.synergy.rounds import keep_pinned, needed
from slurm_hadar.policies.synergy.settings import SynergyOptions
from slurm_hadar.policies.synergy.tune_placer import Assignment, TunePlacer


def at_best(view: View) -> View:
    """The view with each rate as high as CPUs and memory can make it."""
    if not has_cpu_sensitivity(view):
        return view
    return _with_factor(view, _grid_of_all(view).best_factor)


def at_fair_share(view: View) -> View:
    """The view with the rates of the fair shares, and the least CPUs and memory for these as
    demands.

    In such a view each placement has enough for the least that the job needs.
    """
    if not has_cpu_sensitivity(view):
        return view
    grid = _grid_of_all(view)
    rated = _with_factor(view, grid.floor)
    fixed = view.jobs.running & ~view.jobs.movable & (grid.present[:, 0] > 0)
    cpus, mem = np.where(fixed[:, None], grid.present, grid.fair).T
    return replace(rated, jobs=replace(rated.jobs, cpus_per_gpu=cpus, mem_per_gpu_mb=mem))


def with_cpus_and_memory(
    view: View, plan: Plan, settings: SynergyOptions | None = None, proportional: bool = False
) -> Plan:
    """The plan with CPUs and memory for each placement; GPUs and nodes are unchanged.

    Jobs in the order of the placements: best case if the node has it, else the fair share, for
    which other jobs there are reset to theirs; what is left goes to the jobs that gain most. A job
    waits if not even its fair share is free beside its GPUs. A placement without node names is
    unchanged. Jobs that may not be moved keep what they have.
    """
    settings = settings or SynergyOptions()
    if not has_cpu_sensitivity(view) or not plan.placements:
        return plan
    pools, row = resource_pools(view), {id_: at for at, id_ in enumerate(view.jobs.ids)}
    placer = TunePlacer(view, pools, needed(view, True))
    held = held_allocations(view, pools)
    places: dict[int, Allocation] = {}
    for id_, placement in plan.placements.items():
        allocation = _parts(view, pools.slot_of, placement)
        if allocation:
            places[row[id_]] = allocation
    still = [j for j in places if j in held and not view.jobs.movable[j]]
    keep_pinned(view, placer, still, held)
    picks = [
        _pick(view, pools, job, allocation)
        for job, allocation in places.items()
        if job not in still
    ]
    rules = DemandOptions(settings.gain_over_cost, proportional)
    demands, grid = job_demands_of(view, pools, picks, held, rules)
    for demand in demands:
        stays = set(demand.own) == set(places[demand.job])
        demand.own, demand.only_own = places[demand.job], True
        if not stays:
            demand.restart_s, demand.present_factor = 0.0, 0.0
        placer.reserve(demand)
    for demand in demands:
        placer.place(demand)
    if settings.leftover and not proportional:
        options = dict(zip((demand.job for demand in demands), options_of(grid), strict=True))
        unit = shares(view).max(axis=0, initial=1.0)
        balance(placer, options, unit)
    placements: dict[str, Placement] = {}
    waiting = dict(plan.waiting)
    for id_, placement in plan.placements.items():
        if row[id_] in places and row[id_] not in placer.assigned:
            waiting[id_] = "the CPUs or memory of its fair share are not free beside its GPUs"
        else:
            placements[id_] = _filled(placement, placer.assigned.get(row[id_]))
    return replace(plan, placements=placements, waiting=waiting)


def _grid_of_all(view: View) -> DemandGrid:
    """Each job on its fastest type, with its least count."""
    jobs = view.jobs
    column = (jobs.rate > 0).any(axis=1).argmax(axis=1)
    rows = np.arange(len(jobs.ids))
    kind = jobs.rate[rows, :, column].argmax(axis=1)
    gpus: IntArray = np.asarray(view.counts, dtype=np.int64)[column]
    return demand_grid(view, rows, kind, gpus)


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


def _pick(view: View, pools: ResourcePools, job: int, allocation: Allocation) -> Pick:
    gpus = sum(count for _, count in allocation)
    kind = int(pools.gpu_type[allocation[0][0]])
    rates = view.jobs.rate[job, kind]
    known = [rates[at] for at, count in enumerate(view.counts) if count <= gpus and rates[at] > 0]
    seconds = float(view.jobs.left[job]) / float(known[-1]) if known else 0.0
    return Pick(job, kind, gpus, seconds)


def _filled(placement: Placement, assignment: Assignment | None) -> Placement:
    if assignment is None or assignment.fixed:
        return placement
    return replace(
        placement,
        cpus_per_gpu=assignment.need.cpus,
        mem_per_gpu_mb=round(assignment.need.mem_mb),
        reason=f"{placement.reason}; {reason(assignment, True)}",
    )


def decide_wrapped(
    view: View, state: State, settings: SynergyOptions, proportional: bool = False
) -> tuple[Plan, State]:
    """The GPUs of another policy with Synergy's CPUs and memory (option ``wrap``).

    The other policy sees the speeds of the fair shares; its state is kept beside ours.
    """
    from slurm_hadar.policies import get

    before = state.get(settings.wrap)
    inner = before if isinstance(before, dict) else {}
    plan, after = get(settings.wrap)(at_fair_share(view), inner)
    return with_cpus_and_memory(view, plan, settings, proportional), {settings.wrap: after}
