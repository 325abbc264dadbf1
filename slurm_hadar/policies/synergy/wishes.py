"""From the arrays of demands to what each job would have, one by one."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.allocation import Allocation, Demand, ResourcePools
from slurm_hadar.policies.synergy.demands import SAME, Demands, demands
from slurm_hadar.policies.synergy.order import Pick
from slurm_hadar.policies.synergy.placing import ResourceWish
from slurm_hadar.policies.synergy.settings import SynergyOptions


def wishes_of(
    view: View,
    pools: ResourcePools,
    picks: Sequence[Pick],
    held: Mapping[int, Allocation],
    settings: SynergyOptions,
    proportional: bool = False,
) -> tuple[list[ResourceWish], Demands]:
    """Of each pick, in order. ``proportional``: each job's best case is its share of the node."""
    jobs = view.jobs
    rows = np.array([pick.job for pick in picks], dtype=np.int64)
    kinds = np.array([pick.kind for pick in picks], dtype=np.int64)
    gpus = np.array([pick.gpus for pick in picks], dtype=np.int64)
    asks = demands(view, rows, kinds, gpus)
    best, best_factor = (
        (asks.share, asks.share_factor) if proportional else (asks.best, asks.best_factor)
    )
    bests, fairs, presents = needs(best), needs(asks.fair), needs(asks.present)
    factors = np.stack([best_factor, asks.floor, asks.present_factor], axis=1).tolist()
    cost = (settings.gain_over_cost * jobs.restart_s[rows]).tolist()
    most = jobs.max_nodes[rows].tolist()
    found = []
    for at, pick in enumerate(picks):
        own = held.get(pick.job, ())
        stays = bool(own) and own_kind(pools, own) == pick.kind
        found.append(
            ResourceWish(
                pick.job,
                pick.gpus,
                pools_of(view, pools, pick.job, pick.kind),
                most[at],
                best=bests[at],
                best_factor=factors[at][0],
                fair=fairs[at],
                floor=factors[at][1],
                present=presents[at],
                present_factor=factors[at][2],
                own=own if stays else (),
                seconds=pick.seconds,
                restart_s=cost[at] if stays else 0.0,
            )
        )
    return found, asks


def pools_of(view: View, pools: ResourcePools, job: int, kind: int) -> tuple[int, ...]:
    """The pools of a type that are open to a job."""
    allowed = view.jobs.groups[job]
    return tuple(p for p in pools.of_type[kind] if allowed[pools.pool_group[p]])


def own_kind(pools: ResourcePools, parts: Allocation) -> int:
    """The type of a place's GPUs."""
    return int(pools.gpu_type[parts[0][0]])


def needs(points: FloatArray) -> list[Demand]:
    """Points (K, 2) one by one, rounded so that equal ones are equal."""
    return [Demand(round(c, 6), round(m, 3)) for c, m in points.tolist()]


def options_of(asks: Demands) -> list[FloatArray]:
    """Per job (O, 3): CPUs, MB and factor of all that it may have: no slower than its floor, and
    faster than everything that is cheaper in both."""
    factor = asks.factor
    highest = np.maximum.accumulate(np.maximum.accumulate(factor, axis=1), axis=2)
    before = np.full(factor.shape, -np.inf)
    before[:, 1:] = highest[:, :-1]
    before[:, :, 1:] = np.maximum(before[:, :, 1:], highest[:, :, :-1])
    row, i, j = np.nonzero(asks.allowed & (factor > before + SAME))
    points = np.stack([asks.cpus[row, i], asks.mem[row, j], factor[row, i, j]], axis=1)
    starts = np.searchsorted(row, np.arange(len(factor) + 1))
    return [points[a:b] for a, b in pairwise(starts.tolist())]
