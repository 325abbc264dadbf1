"""The demand of each job as a record, from the arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.allocation import Allocation, Demand, ResourcePools
from slurm_hadar.policies.synergy.demand_grid import SAME, DemandGrid, demand_grid
from slurm_hadar.policies.synergy.order import Pick
from slurm_hadar.policies.synergy.tune_placer import JobDemand


@dataclass(frozen=True)
class DemandOptions:
    """``gain_over_cost``: a change must save so many times the restart that it costs;
    ``proportional``: the best case of a job is its share of the node."""

    gain_over_cost: float
    proportional: bool = False


def job_demands_of(
    view: View,
    pools: ResourcePools,
    picks: Sequence[Pick],
    held: Mapping[int, Allocation],
    rules: DemandOptions,
) -> tuple[list[JobDemand], DemandGrid]:
    """The demands of the picks, in order."""
    jobs = view.jobs
    rows = np.array([pick.job for pick in picks], dtype=np.int64)
    kinds = np.array([pick.kind for pick in picks], dtype=np.int64)
    gpus = np.array([pick.gpus for pick in picks], dtype=np.int64)
    grid = demand_grid(view, rows, kinds, gpus)
    best, best_factor = (
        (grid.share, grid.share_factor) if rules.proportional else (grid.best, grid.best_factor)
    )
    bests, fairs, presents = needs(best), needs(grid.fair), needs(grid.present)
    factors = np.stack([best_factor, grid.floor, grid.present_factor], axis=1).tolist()
    cost = (rules.gain_over_cost * jobs.restart_s[rows]).tolist()
    most = jobs.max_nodes[rows].tolist()
    found = []
    for at, pick in enumerate(picks):
        own = held.get(pick.job, ())
        stays = bool(own) and own_kind(pools, own) == pick.kind
        found.append(
            JobDemand(
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
    return found, grid


def pools_of(view: View, pools: ResourcePools, job: int, kind: int) -> tuple[int, ...]:
    """The pools of a type that are open to a job."""
    allowed = view.jobs.groups[job]
    return tuple(p for p in pools.of_type[kind] if allowed[pools.pool_group[p]])


def own_kind(pools: ResourcePools, allocation: Allocation) -> int:
    """The GPU type of an allocation."""
    return int(pools.gpu_type[allocation[0][0]])


def needs(points: FloatArray) -> list[Demand]:
    """The points (K, 2) as records, rounded so that equal ones compare equal."""
    return [Demand(round(c, 6), round(m, 3)) for c, m in points.tolist()]


def options_of(grid: DemandGrid) -> list[FloatArray]:
    """Per job (O, 3): CPUs, MB and factor of each useful option: not slower than the floor, and
    faster than each option that is cheaper in both."""
    factor = grid.factor
    highest = np.maximum.accumulate(np.maximum.accumulate(factor, axis=1), axis=2)
    before = np.full(factor.shape, -np.inf)
    before[:, 1:] = highest[:, :-1]
    before[:, :, 1:] = np.maximum(before[:, :, 1:], highest[:, :, :-1])
    row, i, j = np.nonzero(grid.allowed & (factor > before + SAME))
    points = np.stack([grid.cpus[row, i], grid.mem[row, j], factor[row, i, j]], axis=1)
    starts = np.searchsorted(row, np.arange(len(factor) + 1))
    return [points[a:b] for a, b in pairwise(starts.tolist())]
