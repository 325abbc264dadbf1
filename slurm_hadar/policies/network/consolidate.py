"""Always consolidate: a baseline of the network policy.

A job waits without limit for the nearest tier that could hold it. Order as in ``network``; other
jobs overtake it; no job moves.
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
    if offer.tier > offer.best:
        return False, f"waits for {offer.count} GPUs {WHERE[offer.best]}"
    return True, f"{WHERE[offer.tier]}, the nearest that could hold it"


POLICY = Policy(
    name="network_consolidate",
    decide=decide,
    options=NetworkOptions,
    uses=frozenset({Trait.ORDER, Trait.RACKS}),
    title="waits for the nearest nodes that could hold the job",
    paper="baseline of arXiv 2401.16492",
)
