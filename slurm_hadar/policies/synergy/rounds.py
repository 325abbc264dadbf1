"""One round of Synergy: the queue, the demands, the placements, and what is left over."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.allocation import (
    Allocation,
    Demand,
    ResourcePools,
    held_allocations,
    resource_pools,
)
from slurm_hadar.policies.synergy.balance import balance
from slurm_hadar.policies.synergy.demand_grid import DemandGrid, has_cpu_sensitivity, shares
from slurm_hadar.policies.synergy.job_demands import DemandOptions, job_demands_of, options_of
from slurm_hadar.policies.synergy.order import OrderedJobs, Pick, queue_of
from slurm_hadar.policies.synergy.reasons import plan
from slurm_hadar.policies.synergy.settings import SynergyOptions
from slurm_hadar.policies.synergy.tune_placer import JobDemand, TunePlacer

_UNKNOWN = "the dependence of speed on CPUs and memory is unknown: each job gets what it asks for"

Prepare = Callable[[View, ResourcePools, list[JobDemand], DemandGrid], tuple[str, ...]]
"""Changes the best cases before jobs are placed; returns notes."""


def decide_round(
    view: View,
    settings: SynergyOptions,
    prepare: Prepare | None = None,
    proportional: bool = False,
) -> Plan:
    """The plan of a round. ``proportional``: each job gets its share of the node, no more."""
    if not view.jobs.ids:
        return Plan(notes=("no managed job waits or runs",))
    pools, known = resource_pools(view), has_cpu_sensitivity(view)
    queue = queue_of(view, settings)
    held = held_allocations(view, pools)
    rules = DemandOptions(settings.gain_over_cost, proportional)
    demands, grid = job_demands_of(view, pools, queue.picks, held, rules)
    notes: tuple[str, ...] = () if known else (_UNKNOWN,)
    if prepare is not None and known and demands:
        notes = prepare(view, pools, demands, grid)
    placer = TunePlacer(view, pools, needed(view, known))
    keep_pinned(view, placer, queue.pinned, held)
    running = [demand for demand in demands if demand.own]
    for demand in running:
        placer.reserve(demand)
    failed = [demand.job for demand in demands if not placer.place(demand)]
    options = dict(zip((w.job for w in demands), options_of(grid), strict=True))
    rest = _in_order(queue, [*queue.others, *failed])
    options |= _fill(view, placer, rest, rules)
    if known and settings.leftover and not proportional:
        unit = shares(view).max(axis=0, initial=1.0)
        balance(placer, options, unit)
    waiting = _waiting(view, placer, queue, held)
    found = plan(view, placer, queue.order.tolist(), waiting, settings.order)
    return replace(found, notes=notes)


def needed(view: View, known: bool) -> FloatArray:
    """(J, 2) demands with which free capacity counts CPUs and memory, or does not."""
    if known:
        return np.ones((len(view.jobs.ids), 2))
    return np.stack([view.jobs.cpus_per_gpu, view.jobs.mem_per_gpu_mb], axis=1)


def keep_pinned(
    view: View, placer: TunePlacer, jobs: Sequence[int], held: Mapping[int, Allocation]
) -> None:
    """Reserve what these jobs hold: what they have now or, if unknown, what they request."""
    trait = view.jobs.cpu_sensitivity
    for job in jobs:
        cpus, mem = float(view.jobs.cpus_per_gpu[job]), float(view.jobs.mem_per_gpu_mb[job])
        if trait is not None and trait.present_cpus[job] > 0:
            cpus, mem = float(trait.present_cpus[job]), float(trait.present_mem_mb[job])
        need = Demand(cpus, mem)
        demand = JobDemand(job, 0, (), 1, need, 1.0, need, 1.0, need, 1.0)
        placer.keep(demand, held[job], need, 1.0)


def _in_order(queue: OrderedJobs, jobs: Sequence[int]) -> list[int]:
    wanted = set(jobs)
    return [job for job in queue.order.tolist() if job in wanted]


def _fill(
    view: View,
    placer: TunePlacer,
    jobs: Sequence[int],
    rules: DemandOptions,
) -> dict[int, FloatArray]:
    """Give GPUs that are still free, of any type, to the other jobs in turn."""
    options: dict[int, FloatArray] = {}
    rate = view.jobs.rate
    for kind in np.argsort(-rate.max(axis=(0, 2), initial=0.0), kind="stable").tolist():
        left = sum(placer.free_capacity.left[p] for p in placer.pools.of_type[kind])
        if left <= 0:
            continue
        picks = []
        for job in jobs:
            columns = np.flatnonzero(rate[job, kind] > 0)
            if job in placer.assigned or not len(columns) or view.counts[columns[0]] > left:
                continue
            gpus = view.counts[columns[0]]
            seconds = float(view.jobs.left[job] / rate[job, kind, columns[0]])
            picks.append(Pick(job, kind, gpus, seconds))
        if not picks:
            continue
        demands, grid = job_demands_of(view, placer.pools, picks, {}, rules)
        found = options_of(grid)
        for demand, points in zip(demands, found, strict=True):
            if left <= 0:
                break
            if demand.gpus <= left and placer.place(demand):
                options[demand.job] = points
                left -= demand.gpus
    return options


def _waiting(
    view: View, placer: TunePlacer, queue: OrderedJobs, held: Mapping[int, Allocation]
) -> dict[int, str]:
    """Why each unplaced job waits; similar jobs share a sentence."""
    jobs, free_capacity = view.jobs, placer.free_capacity
    found: dict[int, str] = {}
    texts: dict[tuple[object, ...], str] = {}
    for job in queue.order.tolist():
        if job in placer.assigned:
            continue
        able = jobs.rate[job] > 0
        if not able.any():
            found[job] = "no GPU type and count that it can run with"
            continue
        key = (able.tobytes(), jobs.groups[job].tobytes(), int(jobs.max_nodes[job]))
        if key not in texts:
            column = int(able.any(axis=0).argmax())
            pools = [
                p
                for kind in np.flatnonzero(able[:, column]).tolist()
                for p in placer.pools.of_type[kind]
                if jobs.groups[job, placer.pools.pool_group[p]]
            ]
            short = free_capacity.shortage(
                pools, view.counts[column], Demand(), int(jobs.max_nodes[job])
            )
            texts[key] = f"short of {short}"
        stopped = "stopped for jobs that come first; " if job in held else ""
        found[job] = stopped + texts[key]
    return found
