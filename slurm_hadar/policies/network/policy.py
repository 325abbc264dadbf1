"""Network-sensitive scheduling: delay scheduling by tier, moves by sensitivity, tuned timers.

arXiv 2401.16492, recalled: a job takes GPUs on one machine at once; in one rack once it has waited
for the machine's timer of its size; anywhere once it has waited for the rack's. Tiers that could
never hold it are skipped. Running jobs that the network slows most (compute-only time over actual
time) are offered better tiers before all others, ties to the least attained service, after a
minimum stay, where the gain is above twice the cost. Timers: :class:`Timers`.

Ours: no timer is longer than what the better tier would save the job, links as busy as they are
now, so a job that the network does not hurt never waits for it; near places are offered to all
before what is left goes to those who would be far apart; these give way again, see
``preempt``; jobs that decide when all the work ends go first, and racks are kept for them, see
``rack_reservation``.
"""

from math import sqrt

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.allocation import Demand
from slurm_hadar.policies.ends import ends
from slurm_hadar.policies.network.offer_loop import WHERE, OfferLoop, RackOffer
from slurm_hadar.policies.network.places import MACHINE
from slurm_hadar.policies.network.preempt import give_way
from slurm_hadar.policies.network.rack_reservation import RackReservations, keep_a_rack
from slurm_hadar.policies.network.settings import NetworkOptions
from slurm_hadar.policies.record import Policy, Trait

_BUSY = 0.1
"""Part by which a training may be longer at its nearest tier, for its place to count as near."""


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an option that cannot be understood."""
    settings = NetworkOptions.read(view.options)
    carries = state.get("carries", 0.0)
    turns = OfferLoop(view, settings, carries if isinstance(carries, float) else 0.0)
    promises = RackReservations(turns, off=settings.critical > 1)
    turns.goes_first(promises.jobs)
    patience = _Patience(turns, settings, state, promises)
    _improve(turns, settings, promises)
    order = turns.order()
    first = [job for job in order if turns.critical[job]]
    left = turns.serve(first, patience.near)
    promised = promises.set_aside()
    kept = keep_a_rack(turns, [job for job in left if job not in promises.jobs])
    left += turns.serve([job for job in order if not turns.critical[job]], patience.near)
    if settings.preempt:
        left = give_way(turns, settings, left, patience.near)
    left = turns.serve([job for job in left if not turns.critical[job]], patience.far)
    if promised:
        turns.ground.room.give(promised, Demand())
        turns.serve(left, patience.far)
    turns.ground.room.give(kept, Demand())
    turns.serve([job for job in first if turns.waits(job)], patience.far)
    notes = tuple(
        f"an exchange {WHERE[tier]} takes {longer:.1f} times as long as with the links to itself"
        for tier, longer in enumerate(turns.outlook.longer)
        if longer > 1.05
    )
    return turns.plan((*notes, *promises.notes())), patience.state(state)


class _Patience:
    """The rule by which waiting jobs take offers."""

    def __init__(
        self, turns: OfferLoop, settings: NetworkOptions, state: State, promises: RackReservations
    ) -> None:
        self._turns, self._timers = turns, Timers(state, settings)
        self._settings, self._promises = settings, promises

    def near(self, job: int, offer: RackOffer) -> tuple[bool, str]:
        """Everybody is offered the nearest places first: nobody lies there in two racks with GPUs
        on which somebody else would be near."""
        if offer.tier > offer.best or offer.lost > _BUSY:
            return False, ""
        if against := self._promises.refuses(job, offer):
            return False, against
        self._timers.accepted(offer.tier, offer.count, self._waited_s(job))
        end = ends(self._turns.view, job, offer.seconds)
        return True, f"{WHERE[offer.tier]}, the nearest that could hold it; {end}"

    def far(self, job: int, offer: RackOffer) -> tuple[bool, str]:
        """What is left then goes to those who have waited long enough, or lose little."""
        if against := self._promises.refuses(job, offer):
            return False, against
        # A near place on cards that others keep busy is as good as one that is farther.
        farther = offer.best + 1 if offer.lost > _BUSY else offer.best
        waited, tiers = self._waited_s(job), range(offer.best, max(offer.tier, farther))
        # A training that gets several times as long has reason to wait longer than the others.
        timer = max((self._timers.wait_s(tier, offer.count) for tier in tiers), default=0.0)
        timer = min(timer * max(1.0, offer.lost), self._settings.most_wait_s)
        gain = offer.seconds * offer.lost / (1.0 + offer.lost) if offer.lost > 0 else 0.0
        place = f"{offer.count} GPUs {WHERE[offer.tier]}"
        if waited < min(timer, gain):
            sooner = f"end {gain / 60:.0f} min sooner"
            if not self._turns.view.jobs.end_known[job]:
                sooner = f"be {100 * offer.lost:.0f}% faster"
            return False, (
                f"declines {place}: {WHERE[offer.best]} it would {sooner}, "
                f"for which it waits {min(timer, gain) / 60:.0f} min, {waited / 60:.0f} are over"
            )
        self._timers.accepted(offer.tier, offer.count, waited)
        why = f"its wait for a place {WHERE[offer.best]} is over"
        if offer.lost < 0.01:
            why = "a nearer place would not make it faster"
        return True, f"{WHERE[offer.tier]}: {why}; {ends(self._turns.view, job, offer.seconds)}"

    def state(self, state: State) -> State:
        """The policy's memory after this round."""
        carries = self._turns.outlook.carries
        return {**state, "waits": self._timers.plain(), "carries": carries}

    def _waited_s(self, job: int) -> float:
        """Since it came, without the time that it ran."""
        jobs, now = self._turns.view.jobs, self._turns.view.now
        ran = float(jobs.attained[job]) / self._turns.count(job)
        return max(0.0, now - float(jobs.arrival_s[job]) - ran)


def _improve(turns: OfferLoop, settings: NetworkOptions, promises: RackReservations) -> None:
    """Offer running jobs better tiers, those that the network hurts most first."""
    view, outlook = turns.view, turns.outlook
    jobs = view.jobs
    order = sorted(turns.held, key=lambda job: (outlook.slowed[job], jobs.attained[job], job))
    settled = (view.now - jobs.since_s >= settings.min_stay_s) & jobs.movable
    for job in order:
        now_s = turns.seconds_now(job)
        least = settings.gain_over_cost * float(jobs.restart_s[job])
        offer = None
        if settled[job] and turns.tier_now[job] > MACHINE and now_s < np.inf:
            turns.release(job)
            better = turns.offers(job, turns.tier_now[job])
            pays = (o for o in better if now_s - o.seconds > least)
            offer = next((o for o in pays if not promises.refuses(job, o)), None)
            if offer is None:
                turns.retake(job)
        if offer is None:
            turns.keep(job, f"stays {WHERE[turns.tier_now[job]]}")
        else:
            saved = (now_s - offer.seconds) / 60
            why = f"moves: {WHERE[offer.tier]} it ends {saved:.0f} min sooner, a restart included"
            turns.take(job, offer, why)


# How long a job waits for a better tier: tuned to the waits at which offers were accepted.
#
# Network-sensitive scheduling (arXiv 2401.16492, recalled): for each tier and number of GPUs a
# sliding window of the waits at which offers of that tier were accepted; the timer is their mean +
# k standard deviations, clamped.
_MOST_KEYS = 500


class Timers:
    """The windows, read from the policy's state and written back as plain lists."""

    def __init__(self, state: State, settings: NetworkOptions) -> None:
        self._settings = settings
        self._waits: dict[str, list[float]] = {}
        kept = state.get("waits")
        if isinstance(kept, dict):
            for key, waits in kept.items():
                if isinstance(waits, list):
                    self._waits[str(key)] = [float(w) for w in waits if isinstance(w, int | float)]

    def wait_s(self, tier: int, count: int) -> float:
        """Seconds that a gang of ``count`` GPUs waits for ``tier`` before it takes a worse one."""
        limits, waits = self._settings, self._waits.get(f"{tier}:{count}")
        if not waits:
            return min(limits.first_wait_s, limits.most_wait_s)
        mean = sum(waits) / len(waits)
        deviation = sqrt(sum((w - mean) ** 2 for w in waits) / len(waits))
        tuned = mean + limits.spread * deviation
        return min(max(tuned, limits.least_wait_s), limits.most_wait_s)

    def accepted(self, tier: int, count: int, waited_s: float) -> None:
        """Take in that an offer of ``tier`` was accepted after this wait."""
        key = f"{tier}:{count}"
        if key not in self._waits and len(self._waits) >= _MOST_KEYS:
            return
        window = [*self._waits.get(key, []), waited_s]
        self._waits[key] = window[-max(1, self._settings.window) :]

    def plain(self) -> dict[str, object]:
        """For the state."""
        return {key: list(waits) for key, waits in self._waits.items()}


POLICY = Policy(
    name="network",
    decide=decide,
    options=NetworkOptions,
    uses=frozenset({Trait.MOVES, Trait.ORDER, Trait.RACKS}),
    title="waits for near nodes as long as that pays",
    paper="arXiv 2401.16492",
)
