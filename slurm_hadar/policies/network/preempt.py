"""Jobs that the network slows are preempted for jobs that would be near on the same GPUs.

A job over several racks only borrows GPUs that no job could use at a nearer tier. When a waiting
job finds a near placement on them it gets it, and the borrower returns to the queue, where it gets
offers of what is left in the same round.
"""

from collections.abc import Sequence

from slurm_hadar.policies.allocation import FreeCapacity
from slurm_hadar.policies.network.offer_loop import Answer, OfferLoop
from slurm_hadar.policies.network.rack_capacity import ANYWHERE, GangRequest
from slurm_hadar.policies.network.settings import NetworkOptions


def preempt_borrowers(
    loop: OfferLoop, settings: NetworkOptions, order: Sequence[int], near: Answer
) -> list[int]:
    """Offer near placements on borrowed GPUs in this order; returns the jobs that wait then, in
    order."""
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
    jobs, slowed = loop.view.jobs, loop.outlook.slowed
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
