"""GPU-proportional: each job has its GPUs' share of the node's CPUs and memory; the baseline.

Otherwise as Synergy's TUNE, with the same options.
"""

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.record import Policy, Trait
from slurm_hadar.policies.synergy.completion import decide_wrapped
from slurm_hadar.policies.synergy.rounds import decide_round
from slurm_hadar.policies.synergy.settings import SynergyOptions


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an invalid option."""
    settings = SynergyOptions.read(view.options)
    if settings.wrap:
        return decide_wrapped(view, state, settings, proportional=True)
    return decide_round(view, settings, proportional=True), dict(state)


POLICY = Policy(
    name="gpu_proportional",
    decide=decide,
    options=SynergyOptions,
    uses=frozenset({Trait.MOVES, Trait.ORDER, Trait.CPUS}),
    preempts=True,
    title="CPUs and memory in proportion to GPUs",
    paper="baseline of arXiv 2110.06073",
)
