"""From what Slurm shows to what a policy sees."""

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_hadar.config import Config
from slurm_hadar.controller.arrays import Groups, job_arrays, node_arrays
from slurm_hadar.controller.observed import Observed
from slurm_hadar.controller.targets import Place, Target, targets_of
from slurm_hadar.domain.job import UNTYPED
from slurm_hadar.domain.view import View
from slurm_hadar.profiles.rates import Rates


@dataclass(frozen=True)
class Picture:
    """The view, the jobs behind its rows, and the managed jobs left out of it, with the reason."""

    view: View
    targets: Mapping[str, Target]
    left_out: Mapping[str, str]


def picture(
    seen: Observed,
    config: Config,
    rates: Rates,
    attained: Mapping[str, float],
    moving: Mapping[str, Place],
    last_moves: Mapping[str, float],
) -> Picture:
    """Build the view of this round.

    ``moving``: jobs in the middle of a move -> where they are going; they keep that place.
    ``last_moves``: job -> time of its last move, s.
    """
    targets, left_out = targets_of(seen, config, moving)
    jobs = list(targets.values())
    kinds = tuple(sorted({k for n in seen.nodes.values() for k in n.gpus if k != UNTYPED}))
    groups = Groups(seen)
    nodes = node_arrays(seen, jobs, kinds, groups)
    counts = tuple(sorted({c for t in jobs for c in t.wanted.counts} | {1}))
    arrays = job_arrays(
        seen, config, rates, attained, moving, last_moves, jobs, kinds, counts, nodes, groups
    )
    view = View(
        now=seen.now,
        round_s=config.controller.round_s,
        seed=0,
        types=kinds,
        counts=counts,
        nodes=nodes,
        jobs=arrays,
        options={"gain_over_cost": config.guards.gain_over_cost, **config.controller.options},
    )
    return Picture(view, targets, left_out)
