"""Jobs that the network hurts give way to those that would be near on the same GPUs.

Who runs over several racks only borrows GPUs that no job could use nearer by. When a waiting job
finds a near place on them it gets it, and the borrower goes back to the queue, from where it is
offered what is left in the same round.
"""

from collections.abc import Sequence

from slurm_hadar.policies.allocation import FreeCapacity
from slurm_hadar.policies.network.offer_loop import Answer, OfferLoop
from slurm_hadar.policies.network.places import ANYWHERE, Ask
from slurm_hadar.policies.network.settings import NetworkOptions


def give_way(
    turns: OfferLoop, settings: NetworkOptions, order: Sequence[int], near: Answer
) -> list[int]:
    """Offer near places on borrowed GPUs in this order; returns who waits then, in turn."""
    borrowers = _borrowers(turns, settings)
    waiting = set(order)
    hopeless: set[tuple[Ask, ...]] = set()
    room = _without(turns, borrowers)
    for job in order:
        if not borrowers:
            break
        asks = turns.asks(job)
        if asks in hopeless:
            continue
        gone = _in_the_way(turns, job, asks, borrowers, room)
        if not gone:
            hopeless.add(asks)
            continue
        stopped = {other: turns.stop(other) for other in gone}
        if turns.serve([job], near):
            for other, parts in stopped.items():
                turns.unstop(other, parts)
            hopeless.add(asks)
            continue
        waiting.update(gone)
        waiting.discard(job)
        borrowers = [other for other in borrowers if other not in gone]
        room = _without(turns, borrowers)
    return [job for job in turns.sorted() if job in waiting]


def _borrowers(turns: OfferLoop, settings: NetworkOptions) -> list[int]:
    """Who may be stopped, the most hurt first."""
    jobs, slowed = turns.view.jobs, turns.outlook.slowed
    found = []
    for job in turns.held:
        settled = turns.view.now - jobs.since_s[job] >= settings.min_stay_s
        if turns.tier_now[job] < ANYWHERE or not settled or not jobs.movable[job]:
            continue
        if turns.critical[job]:
            continue
        if job not in turns.moved and slowed[job] < settings.hurt * turns.factor_at_best(job):
            found.append(job)
    return sorted(found, key=lambda job: (slowed[job], jobs.attained[job], job))


def _without(turns: OfferLoop, borrowers: Sequence[int]) -> FreeCapacity:
    """The room as if these had left."""
    room = turns.ground.room.copy()
    for job in borrowers:
        room.give(turns.held[job], turns.ground.needs[job])
    return room


def _in_the_way(
    turns: OfferLoop, job: int, asks: Sequence[Ask], borrowers: Sequence[int], room: FreeCapacity
) -> list[int]:
    """Whom a waiting job needs to leave for a place of its nearest tier; empty: there is none."""
    ground = turns.ground
    for ask in asks:
        best = ground.best_tier(ask)
        parts = ground.find_in(room, ask, best) if best < ANYWHERE else None
        if parts is None:
            continue
        slots = {slot for slot, _ in parts}
        trial, gone = ground.room.copy(), []
        for other in borrowers:
            if trial.holds(parts, ask.need):
                break
            if slots & {slot for slot, _ in turns.held[other]}:
                trial.give(turns.held[other], ground.needs[other])
                gone.append(other)
        if gone and trial.holds(parts, ask.need):
            return gone
    return []
