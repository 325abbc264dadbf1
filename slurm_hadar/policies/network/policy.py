"""Network-sensitive scheduling: delay scheduling by tier, moves by sensitivity, tuned timers.

arXiv 2401.16492, recalled: a job takes GPUs on one machine at once; in one rack after it has waited
for the machine timer of its size; anywhere after the rack timer. Tiers that could never hold it are
skipped. Running jobs that the network slows most (compute-only time over actual time) get offers of
better tiers before all others, ties by least attained service, after a minimum stay and if the gain
exceeds twice the cost. Timers: :class:`Timers`.

Ours: no timer is longer than the time that the better tier would save under the present load, so a
job that the network does not slow never waits for it; near GPUs are offered to all jobs before the
rest goes to jobs that would be far apart; these are preempted again, see :func:`preempt_borrowers`;
jobs that determine the makespan go first, and racks are reserved for them, see
``rack_reservation``.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.allocation import Demand, FreeCapacity
from slurm_hadar.policies.network.offer_loop import WHERE, Answer, OfferLoop, RackOffer
from slurm_hadar.policies.network.rack_capacity import ANYWHERE, MACHINE, GangRequest
from slurm_hadar.policies.network.rack_reservation import RackReservations, reserve_a_rack
from slurm_hadar.policies.network.settings import NetworkOptions
from slurm_hadar.policies.reason_text import end_text
from slurm_hadar.policies.record import Policy, Trait

_BUSY = 0.1
"""A placement counts as near if the training is longer there by at most this fraction."""


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an invalid option."""
    settings = NetworkOptions.read(view.options)
    loop = OfferLoop(view, settings, _far_capacity(state))
    reservations = RackReservations(loop, off=settings.critical > 1)
    loop.goes_first(reservations.jobs)
    patience = _Patience(loop, settings, state, reservations)
    _improve(loop, settings, reservations)
    order = loop.order()
    first = [job for job in order if loop.critical[job]]
    left = loop.serve(first, patience.near)
    reserved = reservations.set_aside()
    kept = reserve_a_rack(loop, [job for job in left if job not in reservations.jobs])
    left += loop.serve([job for job in order if not loop.critical[job]], patience.near)
    if settings.preempt:
        left = preempt_borrowers(loop, settings, left, patience.near)
    left = loop.serve([job for job in left if not loop.critical[job]], patience.far)
    if reserved:
        loop.rack_capacity.free_capacity.give(reserved, Demand())
        loop.serve(left, patience.far)
    loop.rack_capacity.free_capacity.give(kept, Demand())
    loop.serve([job for job in first if loop.waits(job)], patience.far)
    notes = tuple(
        f"an exchange {WHERE[tier]} takes {longer:.1f} times as long as with the links to itself"
        for tier, longer in enumerate(loop.slowdown.longer)
        if longer > 1.05
    )
    return loop.plan((*notes, *reservations.notes())), patience.state(state)


def _far_capacity(state: State) -> float:
    """What the links between racks carried when they were full, as far as earlier rounds saw it."""
    # Under its second name a release before wrote it.
    kept = state.get("far_capacity", state.get("carries"))
    return kept if isinstance(kept, float) else 0.0


class _Patience:
    """The rule by which waiting jobs accept offers."""

    def __init__(
        self,
        loop: OfferLoop,
        settings: NetworkOptions,
        state: State,
        reservations: RackReservations,
    ) -> None:
        self._loop, self._timers = loop, Timers(state, settings)
        self._settings, self._reservations = settings, reservations

    def near(self, job: int, offer: RackOffer) -> tuple[bool, str]:
        """Accept near placements only. They are offered to all jobs first, so that no job spreads
        over two racks on GPUs on which another one would be near."""
        if offer.tier > offer.best or offer.lost > _BUSY:
            return False, ""
        if against := self._reservations.refuses(job, offer):
            return False, against
        self._timers.accepted(offer.tier, offer.count, self._waited_s(job))
        end = end_text(self._loop.view, job, offer.seconds)
        return True, f"{WHERE[offer.tier]}, the nearest that could hold it; {end}"

    def far(self, job: int, offer: RackOffer) -> tuple[bool, str]:
        """Accept what is left for jobs that have waited long enough, or lose little."""
        if against := self._reservations.refuses(job, offer):
            return False, against
        # A near placement on busy NICs is no better than one that is farther.
        spread_too_far = offer.best + 1 if offer.lost > _BUSY else offer.best
        waited, tiers = self._waited_s(job), range(offer.best, max(offer.tier, spread_too_far))
        # A training that would take several times as long waits longer.
        timer = max((self._timers.wait_s(tier, offer.count) for tier in tiers), default=0.0)
        timer = min(timer * max(1.0, offer.lost), self._settings.most_wait_s)
        gain = offer.seconds * offer.lost / (1.0 + offer.lost) if offer.lost > 0 else 0.0
        place = f"{offer.count} GPUs {WHERE[offer.tier]}"
        if waited < min(timer, gain):
            sooner = f"end {gain / 60:.0f} min sooner"
            if not self._loop.view.jobs.end_known[job]:
                sooner = f"be {100 * offer.lost:.0f}% faster"
            return False, (
                f"declines {place}: {WHERE[offer.best]} it would {sooner}, "
                f"for which it waits {min(timer, gain) / 60:.0f} min, {waited / 60:.0f} are over"
            )
        self._timers.accepted(offer.tier, offer.count, waited)
        reason = f"its wait for a place {WHERE[offer.best]} is over"
        if offer.lost < 0.01:
            reason = "a nearer place would not make it faster"
        end = end_text(self._loop.view, job, offer.seconds)
        return True, f"{WHERE[offer.tier]}: {reason}; {end}"

    def state(self, state: State) -> State:
        """The policy's state after this round."""
        far_capacity = self._loop.slowdown.far_capacity
        return {**state, "waits": self._timers.plain(), "far_capacity": far_capacity}

    def _waited_s(self, job: int) -> float:
        """Seconds since its arrival without those in which it ran."""
        jobs, now = self._loop.view.jobs, self._loop.view.now
        ran = float(jobs.attained[job]) / self._loop.count(job)
        return max(0.0, now - float(jobs.arrival_s[job]) - ran)


def _improve(loop: OfferLoop, settings: NetworkOptions, reservations: RackReservations) -> None:
    """Offer running jobs better tiers, those that the network slows most first."""
    view, slowdown = loop.view, loop.slowdown
    jobs = view.jobs
    order = sorted(loop.held, key=lambda job: (slowdown.slowed[job], jobs.attained[job], job))
    settled = (view.now - jobs.since_s >= settings.min_stay_s) & jobs.movable
    for job in order:
        now_s = loop.seconds_now(job)
        least = settings.gain_over_cost * float(jobs.restart_s[job])
        offer = None
        if settled[job] and loop.tier_now[job] > MACHINE and now_s < np.inf:
            loop.release(job)
            better = loop.offers(job, loop.tier_now[job])
            pays = (o for o in better if now_s - o.seconds > least)
            offer = next((o for o in pays if not reservations.refuses(job, o)), None)
            if offer is None:
                loop.retake(job)
        if offer is None:
            loop.keep(job, f"stays {WHERE[loop.tier_now[job]]}")
        else:
            saved = (now_s - offer.seconds) / 60
            reason = (
                f"moves: {WHERE[offer.tier]} it ends {saved:.0f} min sooner, a restart included"
            )
            loop.take(job, offer, reason)


_MOST_KEYS = 500
"""Most (tier, GPU count) pairs with a timer."""


class Timers:
    """How long a job waits for a better tier, tuned to the waits at which offers were accepted.

    arXiv 2401.16492, recalled: for each tier and number of GPUs a sliding window of the waits at
    which offers of that tier were accepted; the timer is their mean + k standard deviations,
    clamped. Read from the policy's state and written back as plain lists.
    """

    def __init__(self, state: State, settings: NetworkOptions) -> None:
        self._settings = settings
        self._waits: dict[str, list[float]] = {}
        kept = state.get("waits")
        if isinstance(kept, dict):
            for key, waits in kept.items():
                if isinstance(waits, list):
                    self._waits[str(key)] = [float(w) for w in waits if isinstance(w, int | float)]

    def wait_s(self, tier: int, count: int) -> float:
        """Seconds that a gang of ``count`` GPUs waits for ``tier`` before it accepts a worse
        one."""
        limits, waits = self._settings, self._waits.get(f"{tier}:{count}")
        if not waits:
            return min(limits.first_wait_s, limits.most_wait_s)
        mean = sum(waits) / len(waits)
        deviation = sqrt(sum((w - mean) ** 2 for w in waits) / len(waits))
        tuned = mean + limits.spread * deviation
        return min(max(tuned, limits.least_wait_s), limits.most_wait_s)

    def accepted(self, tier: int, count: int, waited_s: float) -> None:
        """Record that an offer of ``tier`` was accepted after this wait."""
        key = f"{tier}:{count}"
        if key not in self._waits and len(self._waits) >= _MOST_KEYS:
            return
        window = [*self._waits.get(key, []), waited_s]
        self._waits[key] = window[-max(1, self._settings.window) :]

    def plain(self) -> dict[str, object]:
        """The windows as JSON."""
        return {key: list(waits) for key, waits in self._waits.items()}


def preempt_borrowers(
    loop: OfferLoop, settings: NetworkOptions, order: Sequence[int], near: Answer
) -> list[int]:
    """Offer near placements on borrowed GPUs in this order; returns the jobs that wait then, in
    order.

    A job over several racks only borrows GPUs that no job could use at a nearer tier. When a
    waiting job finds a near placement on them it gets it, and the borrower returns to the queue,
    where it gets offers of what is left in the same round.
    """
    borrowers = _borrowers(loop, settings)
    waiting = set(order)
    hopeless: set[tuple[GangRequest, ...]] = set()
    free_capacity = _without(loop, borrowers)
    for job in order:
        if not borrowers:
            break
        requests = loop.requests(job)
        if requests in hopeless:
            continue
        gone = _in_the_way(loop, job, requests, borrowers, free_capacity)
        if not gone:
            hopeless.add(requests)
            continue
        stopped = {other: loop.stop(other) for other in gone}
        if loop.serve([job], near):
            for other, allocation in stopped.items():
                loop.unstop(other, allocation)
            hopeless.add(requests)
            continue
        waiting.update(gone)
        waiting.discard(job)
        borrowers = [other for other in borrowers if other not in gone]
        free_capacity = _without(loop, borrowers)
    return [job for job in loop.sorted() if job in waiting]


def _borrowers(loop: OfferLoop, settings: NetworkOptions) -> list[int]:
    """Jobs that may be stopped, the most slowed first."""
    jobs, slowed = loop.view.jobs, loop.slowdown.slowed
    found = []
    for job in loop.held:
        settled = loop.view.now - jobs.since_s[job] >= settings.min_stay_s
        if loop.tier_now[job] < ANYWHERE or not settled or not jobs.movable[job]:
            continue
        if loop.critical[job]:
            continue
        if job not in loop.moved and slowed[job] < settings.hurt * loop.factor_at_best(job):
            found.append(job)
    return sorted(found, key=lambda job: (slowed[job], jobs.attained[job], job))


def _without(loop: OfferLoop, borrowers: Sequence[int]) -> FreeCapacity:
    """The free capacity without these jobs."""
    free_capacity = loop.rack_capacity.free_capacity.copy()
    for job in borrowers:
        free_capacity.give(loop.held[job], loop.rack_capacity.needs[job])
    return free_capacity


def _in_the_way(
    loop: OfferLoop,
    job: int,
    requests: Sequence[GangRequest],
    borrowers: Sequence[int],
    free_capacity: FreeCapacity,
) -> list[int]:
    """The borrowers that must leave so that the job gets a placement of its nearest tier; empty if
    there is none."""
    rack_capacity = loop.rack_capacity
    for request in requests:
        best = rack_capacity.best_tier(request)
        allocation = (
            rack_capacity.find_in(free_capacity, request, best) if best < ANYWHERE else None
        )
        if allocation is None:
            continue
        slots = {slot for slot, _ in allocation}
        trial, gone = rack_capacity.free_capacity.copy(), []
        for other in borrowers:
            if trial.holds(allocation, request.need):
                break
            if slots & {slot for slot, _ in loop.held[other]}:
                trial.give(loop.held[other], rack_capacity.needs[other])
                gone.append(other)
        if gone and trial.holds(allocation, request.need):
            return gone
    return []


POLICY = Policy(
    name="network",
    decide=decide,
    options=NetworkOptions,
    uses=frozenset({Trait.MOVES, Trait.ORDER, Trait.RACKS}),
    title="waits for near nodes as long as that pays",
    paper="arXiv 2401.16492",
)
