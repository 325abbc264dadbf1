"""Synergy-OPT: CPUs and memory of all jobs of a round at once, by two linear programmes.

Mohan et al., arXiv 2110.06073; verified in its code: the first one chooses (CPUs, memory) of each
job for the largest sum of normalised rates, no job below its fair share; the second one places
them. Its own simulator runs what the programmes say even where a job is cut over servers. Here
places are real: a job that the second programme cuts, or that may be on several nodes, gets what it
was given where that fits, else as in :mod:`.tune`. Options: as there.
"""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, State, View
from slurm_hadar.policies.allocation import Demand, ResourcePools
from slurm_hadar.policies.record import Policy, Trait
from slurm_hadar.policies.synergy.completing import wrapped
from slurm_hadar.policies.synergy.demands import SAME, Demands
from slurm_hadar.policies.synergy.placing import ResourceWish
from slurm_hadar.policies.synergy.rounds import decide_round
from slurm_hadar.policies.synergy.settings import SynergyOptions
from slurm_hadar.policies.synergy.wishes import options_of
from slurm_hadar.solvers.gang_places import places
from slurm_hadar.solvers.share_choice import choose

_MOST_CELLS = 40_000
"""Most (job, node) pairs of the second programme; beyond it jobs are placed in turn."""


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an option that cannot be understood."""
    settings = SynergyOptions.read(view.options)
    if settings.wrap:
        return wrapped(view, state, settings)
    return decide_round(view, settings, prepare), dict(state)


def prepare(
    view: View, pools: ResourcePools, wishes: list[ResourceWish], asks: Demands
) -> tuple[str, ...]:
    """Put what the programmes say into the wishes: the best case, and where to try it."""
    points = _options(wishes, options_of(asks))
    gpus = np.array([wish.gpus for wish in wishes], dtype=np.float64)
    use = [one[:, :2] * count for one, count in zip(points, gpus, strict=True)]
    chosen = choose([one[:, 2] for one in points], use, _left(view))
    for wish, one, at in zip(wishes, points, chosen.option.tolist(), strict=True):
        cpus, mem, factor = one[at].tolist()
        wish.best, wish.best_factor = Demand(round(cpus, 6), round(mem, 3)), factor
    notes: tuple[str, ...] = (
        () if chosen.optimal else ("the programme of CPUs and memory was not solved",)
    )
    if len(wishes) * len(view.nodes.names) <= _MOST_CELLS:
        _place(view, pools, wishes)
    else:
        notes += ("too many jobs and nodes for the programme of places: placed in turn",)
    return notes


def _options(wishes: Sequence[ResourceWish], found: Sequence[FloatArray]) -> list[FloatArray]:
    """Per job (O, 3), the fair share first; of a running job only what pays for its restart."""
    options = []
    for wish, points in zip(wishes, found, strict=True):
        first = [(wish.fair.cpus, wish.fair.mem_mb, wish.floor)]
        if wish.own and wish.present_factor > 0:
            has = (wish.present.cpus, wish.present.mem_mb, wish.present_factor)
            if wish.present_factor >= wish.floor - SAME:
                first.append(has)
            points = points[[wish.pays(float(factor)) for factor in points[:, 2]]]
        options.append(np.concatenate([np.array(first), points]))
    return options


def _left(view: View) -> FloatArray:
    """(2,) CPUs and MB of all nodes, less what jobs hold that keep it."""
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


def _place(view: View, pools: ResourcePools, wishes: Sequence[ResourceWish]) -> None:
    nodes = view.nodes
    use = np.array([(1.0, w.best.cpus, w.best.mem_mb) for w in wishes])
    use *= np.array([w.gpus for w in wishes])[:, None]
    kinds = nodes.gpus.sum(axis=1)
    capacity = np.stack([kinds, nodes.cpus, nodes.mem_mb], axis=1).astype(np.float64)
    open_ = np.zeros((len(wishes), len(nodes.names)), dtype=bool)
    slot: list[dict[int, int]] = []
    for row, wish in enumerate(wishes):
        slots = [s for pool in wish.pools for s in range(*pools.spans[pool])]
        slot.append({pools.node_of[s]: s for s in slots})
        open_[row, list(slot[-1])] = True
    # Pinned jobs are not known to the programme: their nodes have less than it believes, and what
    # it says is tried, not trusted.
    now = np.array([pools.node_of[w.own[0][0]] if len(w.own) == 1 else -1 for w in wishes])
    for row, node in enumerate(places(use, capacity, open_, now).tolist()):
        if node >= 0:
            wishes[row].hint = ((slot[row][node], wishes[row].gpus),)


POLICY = Policy(
    name="synergy_opt",
    decide=decide,
    options=SynergyOptions,
    uses=frozenset({Trait.MOVES, Trait.ORDER, Trait.CPUS}),
    preempts=True,
    title="CPUs and memory of all jobs by two linear programmes",
    paper="Synergy, arXiv 2110.06073",
)
