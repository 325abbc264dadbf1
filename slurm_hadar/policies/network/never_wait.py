"""Never wait: a baseline of the network policy.

A job takes the nearest free GPUs at once, however far apart. Order as in ``network``; no job moves.
"""

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.network.offer_loop import WHERE, RackOffer, one_round
from slurm_hadar.policies.network.settings import NetworkOptions
from slurm_hadar.policies.record import Policy, Trait


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Running jobs keep their placements. Raises UsageError for an invalid option."""
    return one_round(view, _answer), dict(state)


def _answer(job: int, offer: RackOffer) -> tuple[bool, str]:
    return True, f"{WHERE[offer.tier]}, the nearest that is free"


POLICY = Policy(
    name="network_never_wait",
    decide=decide,
    options=NetworkOptions,
    uses=frozenset({Trait.ORDER, Trait.RACKS}),
    title="takes the nearest nodes that are free",
    paper="baseline of arXiv 2401.16492",
)
