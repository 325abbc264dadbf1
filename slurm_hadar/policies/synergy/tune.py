"""Synergy-TUNE: jobs in turn, best case first, fair share if that does not fit.

Mohan et al., arXiv 2110.06073; verified in its code (``_tune`` of its cluster). Ours: any order
(option ``order``), and the GPUs of any other policy (option ``wrap``). No job is slower than with
its fair share. Options: :class:`.settings.SynergyOptions`.
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
        return decide_wrapped(view, state, settings)
    return decide_round(view, settings), dict(state)


POLICY = Policy(
    name="synergy_tune",
    decide=decide,
    options=SynergyOptions,
    uses=frozenset({Trait.MOVES, Trait.ORDER, Trait.CPUS}),
    preempts=True,
    title="CPUs and memory: best case first, else the fair share",
    paper="Synergy, arXiv 2110.06073",
)
