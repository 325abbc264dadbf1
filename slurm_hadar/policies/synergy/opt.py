"""Synergy-OPT: CPUs and memory of all jobs of a round at once, by two linear programmes.

Mohan et al., arXiv 2110.06073; verified in its code: the first chooses (CPUs, memory) of each job
for the largest sum of normalised rates, no job below its fair share; the second places them. Its
own simulator accepts a solution that splits a job over servers. Here nodes are real: a job that the
second programme splits, or that may be on several nodes, gets its (CPUs, memory) where that fits,
else it is placed as in :mod:`.tune`. Options: as there.
"""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, State, View
from slurm_hadar.policies.allocation import Demand, ResourcePools
from slurm_hadar.policies.record import Policy, Trait
from slurm_hadar.policies.synergy.completion import decide_wrapped
from slurm_hadar.policies.synergy.demand_grid import SAME, DemandGrid
from slurm_hadar.policies.synergy.job_demands import options_of
from slurm_hadar.policies.synergy.rounds import decide_round
from slurm_hadar.policies.synergy.settings import SynergyOptions
from slurm_hadar.policies.synergy.tune_placer import JobDemand
from slurm_hadar.solvers.synergy_programmes import choose, places

_MOST_CELLS = 40_000
"""Most (job, node) pairs of the second programme; above, jobs are placed in turn."""


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an invalid option."""
    settings = SynergyOptions.read(view.options)
    if settings.wrap:
        return decide_wrapped(view, state, settings)
    return decide_round(view, settings, prepare), dict(state)


def prepare(
    view: View, pools: ResourcePools, demands: list[JobDemand], grid: DemandGrid
) -> tuple[str, ...]:
    """Write the solutions into the demands: the best case, and the node to try first."""
    points = _options(demands, options_of(grid))
    gpus = np.array([demand.gpus for demand in demands], dtype=np.float64)
    use = [one[:, :2] * count for one, count in zip(points, gpus, strict=True)]
    chosen = choose([one[:, 2] for one in points], use, _left(view))
    for demand, one, at in zip(demands, points, chosen.option.tolist(), strict=True):
        cpus, mem, factor = one[at].tolist()
        demand.best, demand.best_factor = Demand(round(cpus, 6), round(mem, 3)), factor
    notes: tuple[str, ...] = (
        () if chosen.optimal else ("the programme of CPUs and memory was not solved",)
    )
    if len(demands) * len(view.nodes.names) <= _MOST_CELLS:
        _place(view, pools, demands)
    else:
        notes += ("too many jobs and nodes for the programme of places: placed in turn",)
    return notes


def _options(demands: Sequence[JobDemand], found: Sequence[FloatArray]) -> list[FloatArray]:
    """Per job (O, 3), the fair share first; for a running job only what pays for its restart."""
    options = []
    for demand, points in zip(demands, found, strict=True):
        first = [(demand.fair.cpus, demand.fair.mem_mb, demand.floor)]
        if demand.own and demand.present_factor > 0:
            has = (demand.present.cpus, demand.present.mem_mb, demand.present_factor)
            if demand.present_factor >= demand.floor - SAME:
                first.append(has)
            points = points[[demand.pays(float(factor)) for factor in points[:, 2]]]
        options.append(np.concatenate([np.array(first), points]))
    return options


def _left(view: View) -> FloatArray:
    """(2,) CPUs and MB of all nodes, less those of jobs that keep theirs."""
    total = np.array([view.nodes.cpus.sum(), view.nodes.mem_mb.sum()], dtype=np.float64)
    jobs = view.jobs
    if jobs.cpu_sensitivity is None:
        return total
    for job, _, _, count in jobs.held.tolist():
        if not jobs.movable[job]:
            cpus, mem = (
                jobs.cpu_sensitivity.present_cpus[job],
                jobs.cpu_sensitivity.present_mem_mb[job],
            )
            total -= count * np.array([cpus, mem])
    return np.maximum(total, 0.0)


def _place(view: View, pools: ResourcePools, demands: Sequence[JobDemand]) -> None:
    nodes = view.nodes
    use = np.array([(1.0, w.best.cpus, w.best.mem_mb) for w in demands])
    use *= np.array([w.gpus for w in demands])[:, None]
    kinds = nodes.gpus.sum(axis=1)
    capacity = np.stack([kinds, nodes.cpus, nodes.mem_mb], axis=1).astype(np.float64)
    open_ = np.zeros((len(demands), len(nodes.names)), dtype=bool)
    slot: list[dict[int, int]] = []
    for row, demand in enumerate(demands):
        slots = [s for pool in demand.pools for s in range(*pools.spans[pool])]
        slot.append({pools.node_of[s]: s for s in slots})
        open_[row, list(slot[-1])] = True
    # The programme does not include pinned jobs, so their nodes have less than it assumes; its
    # solution is a hint.
    now = np.array([pools.node_of[w.own[0][0]] if len(w.own) == 1 else -1 for w in demands])
    for row, node in enumerate(places(use, capacity, open_, now).tolist()):
        if node >= 0:
            demands[row].hint = ((slot[row][node], demands[row].gpus),)


POLICY = Policy(
    name="synergy_opt",
    decide=decide,
    options=SynergyOptions,
    uses=frozenset({Trait.MOVES, Trait.ORDER, Trait.CPUS}),
    preempts=True,
    title="CPUs and memory of all jobs by two linear programmes",
    paper="Synergy, arXiv 2110.06073",
)
