"""One round of Synergy: the queue, what each would have, the places, and what is left over."""

from collections.abc import Callable, Mapping, Sequence

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
from slurm_hadar.policies.synergy.demands import Demands, counted, shares
from slurm_hadar.policies.synergy.order import OrderedJobs, Pick, queue_of
from slurm_hadar.policies.synergy.placing import Placing, ResourceWish
from slurm_hadar.policies.synergy.reasons import plan
from slurm_hadar.policies.synergy.settings import SynergyOptions
from slurm_hadar.policies.synergy.wishes import options_of, wishes_of

_UNKNOWN = "the dependence of speed on CPUs and memory is unknown: each job gets what it asks for"

Prepare = Callable[[View, ResourcePools, list[ResourceWish], Demands], tuple[str, ...]]
"""Changes the best cases before a job is placed; returns notes."""


def decide_round(
    view: View,
    settings: SynergyOptions,
    prepare: Prepare | None = None,
    proportional: bool = False,
) -> Plan:
    """The plan of a round. ``proportional``: each job has its share of the node, no more."""
    if not view.jobs.ids:
        return Plan(notes=("no managed job waits or runs",))
    pools, known = resource_pools(view), counted(view)
    queue = queue_of(view, settings)
    held = held_allocations(view, pools)
    wishes, asks = wishes_of(view, pools, queue.picks, held, settings, proportional)
    notes: tuple[str, ...] = () if known else (_UNKNOWN,)
    if prepare is not None and known and wishes:
        notes = prepare(view, pools, wishes, asks)
    placing = Placing(view, pools, needed(view, known))
    keep_pinned(view, placing, queue.pinned, held)
    running = [wish for wish in wishes if wish.own]
    for wish in running:
        placing.reserve(wish)
    failed = [wish.job for wish in wishes if not placing.place(wish)]
    options = dict(zip((w.job for w in wishes), options_of(asks), strict=True))
    rest = _in_order(queue, [*queue.others, *failed])
    options |= _fill(view, placing, rest, held, settings, proportional)
    if known and settings.leftover and not proportional:
        unit = shares(view).max(axis=0, initial=1.0)
        balance(placing, options, unit)
    waiting = _waiting(view, placing, queue, held)
    return plan(view, placing, queue.order.tolist(), known, waiting, notes, settings.order)


def needed(view: View, known: bool) -> FloatArray:
    """(J, 2) what makes free capacity count CPUs and memory, or not."""
    if known:
        return np.ones((len(view.jobs.ids), 2))
    return np.stack([view.jobs.cpus_per_gpu, view.jobs.mem_per_gpu_mb], axis=1)


def keep_pinned(
    view: View, placing: Placing, jobs: Sequence[int], held: Mapping[int, Allocation]
) -> None:
    """Set aside what the jobs hold that keep it: what they have now, else what they ask for."""
    trait = view.jobs.cpu_sensitivity
    for job in jobs:
        cpus, mem = float(view.jobs.cpus_per_gpu[job]), float(view.jobs.mem_per_gpu_mb[job])
        if trait is not None and trait.present_cpus[job] > 0:
            cpus, mem = float(trait.present_cpus[job]), float(trait.present_mem_mb[job])
        need = Demand(cpus, mem)
        wish = ResourceWish(job, 0, (), 1, need, 1.0, need, 1.0, need, 1.0)
        placing.keep(wish, held[job], need, 1.0)


def _in_order(queue: OrderedJobs, jobs: Sequence[int]) -> list[int]:
    wanted = set(jobs)
    return [job for job in queue.order.tolist() if job in wanted]


def _fill(
    view: View,
    placing: Placing,
    jobs: Sequence[int],
    held: Mapping[int, Allocation],
    settings: SynergyOptions,
    proportional: bool,
) -> dict[int, FloatArray]:
    """GPUs that are still free, on any type, to the others in turn."""
    options: dict[int, FloatArray] = {}
    rate = view.jobs.rate
    for kind in np.argsort(-rate.max(axis=(0, 2), initial=0.0), kind="stable").tolist():
        left = sum(placing.room.left[p] for p in placing.pools.of_type[kind])
        if left <= 0:
            continue
        picks = []
        for job in jobs:
            columns = np.flatnonzero(rate[job, kind] > 0)
            if job in placing.given or not len(columns) or view.counts[columns[0]] > left:
                continue
            gpus = view.counts[columns[0]]
            seconds = float(view.jobs.left[job] / rate[job, kind, columns[0]])
            picks.append(Pick(job, kind, gpus, seconds))
        if not picks:
            continue
        wishes, asks = wishes_of(view, placing.pools, picks, {}, settings, proportional)
        found = options_of(asks)
        for wish, points in zip(wishes, found, strict=True):
            if left <= 0:
                break
            if wish.gpus <= left and placing.place(wish):
                options[wish.job] = points
                left -= wish.gpus
    return options


def _waiting(
    view: View, placing: Placing, queue: OrderedJobs, held: Mapping[int, Allocation]
) -> dict[int, str]:
    """Why each job without a place waits; alike ones share their sentence."""
    jobs, room = view.jobs, placing.room
    found: dict[int, str] = {}
    words: dict[tuple[object, ...], str] = {}
    for job in queue.order.tolist():
        if job in placing.given:
            continue
        able = jobs.rate[job] > 0
        if not able.any():
            found[job] = "no GPU type and count that it can run with"
            continue
        key = (able.tobytes(), jobs.groups[job].tobytes(), int(jobs.max_nodes[job]))
        if key not in words:
            column = int(able.any(axis=0).argmax())
            pools = [
                p
                for kind in np.flatnonzero(able[:, column]).tolist()
                for p in placing.pools.of_type[kind]
                if jobs.groups[job, placing.pools.pool_group[p]]
            ]
            short = room.shortage(pools, view.counts[column], Demand(), int(jobs.max_nodes[job]))
            words[key] = f"short of {short}"
        stopped = "stopped for jobs that come first; " if job in held else ""
        found[job] = stopped + words[key]
    return found
