"""Racks reserved for the jobs that would otherwise be the last to end.

A gang that needs most of a rack never finds one free while smaller jobs take each GPU as it becomes
free. Such gangs would run one after another when all other work has ended. So each round plans them
over the racks, longest first (Graham's LPT rule); a rack becomes free when enough of its running
jobs have ended. If one of them would then end after the least time for all work, no time is left to
lose: the first gang of each rack gets it reserved.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.policies.allocation import Allocation, Demand
from slurm_hadar.policies.network.offer_loop import OfferLoop, RackOffer
from slurm_hadar.policies.network.rack_capacity import RACK, GangRequest

_MOST = 0.5
"""A gang that needs more than this fraction of a rack shares it with no other such gang."""
_NEARLY = 0.75
"""A rack is kept for a job without a reservation if this fraction of its GPUs is free there."""


@dataclass(frozen=True, slots=True)
class ReservedRack:
    """A rack reserved for a gang; times in s from now."""

    pools: tuple[int, ...]
    """The rack's pools of one type that are open to the gang."""
    start_s: float
    """When enough of the running jobs there have ended."""
    end_s: float


class RackReservations:
    """The reserved racks. Other jobs get GPUs there only if they end before."""

    def __init__(self, loop: OfferLoop, off: bool = False) -> None:
        """``off``: reserve nothing."""
        self._loop = loop
        self._of = {} if off else _reserved(loop)

    @property
    def jobs(self) -> list[int]:
        """Jobs with a reserved rack."""
        return list(self._of)

    def set_aside(self) -> Allocation:
        """Take what is free in the racks of jobs that still wait."""
        pools = (pool for job, one in self._of.items() if self._waits(job) for pool in one.pools)
        return _take_all(self._loop, dict.fromkeys(pools))

    def refuses(self, job: int, offer: RackOffer) -> str:
        """Why a job must decline an offer; empty: it may accept."""
        mine = self._of.get(job)
        if mine is not None and offer.seconds > mine.end_s:
            return f"a rack is kept for it, in which it can start in {mine.start_s / 60:.0f} min"
        pools = {self._loop.rack_capacity.pools.pool_of[slot] for slot, _ in offer.allocation}
        for other, one in self._of.items():
            clear = pools.isdisjoint(one.pools) or offer.seconds <= one.start_s
            if clear or not self._waits(other):
                continue
            # A job whose own rack is free as soon does not take another one.
            if mine is None or mine.start_s > one.start_s:
                return (
                    f"declines {offer.count} GPUs that are kept for job "
                    f"{self._loop.view.jobs.ids[other]}, which would end last of all"
                )
        return ""

    def notes(self) -> tuple[str, ...]:
        """The reservations as text, for the plan."""
        ids = self._loop.view.jobs.ids
        return tuple(
            f"a rack is kept for job {ids[job]}, free in {one.start_s / 60:.0f} min: the job would "
            "end last of all"
            for job, one in self._of.items()
            if self._waits(job)
        )

    def _waits(self, job: int) -> bool:
        return self._loop.view.jobs.ids[job] not in self._loop.placements


def reserve_a_rack(loop: OfferLoop, jobs: Sequence[int]) -> Allocation:
    """Take what is free in the rack that the first of these jobs could have soonest, once most of
    its GPUs are free there, so that smaller jobs do not take them one by one; nothing if one
    machine is enough for the job."""
    free_capacity = loop.rack_capacity.free_capacity
    for job in jobs:
        for request in loop.requests(job):
            if loop.rack_capacity.best_tier(request) != RACK:
                continue
            racks = loop.rack_capacity.open_pools(request).values()
            # A type without a usable GPU has no pool.
            pools = max(
                racks, key=lambda some: sum(free_capacity.left[p] for p in some), default=()
            )
            if sum(free_capacity.left[p] for p in pools) < _NEARLY * request.count:
                return ()
            return _take_all(loop, pools)
    return ()


def _take_all(loop: OfferLoop, pools: Iterable[int]) -> Allocation:
    """Take what is free in these pools."""
    free_capacity, spans = loop.rack_capacity.free_capacity, loop.rack_capacity.pools.spans
    slots = [slot for pool in pools for slot in range(*spans[pool])]
    allocation = tuple(
        (slot, int(free_capacity.free[slot])) for slot in slots if free_capacity.free[slot] > 0
    )
    free_capacity.take(allocation, Demand())
    return allocation


def _reserved(loop: OfferLoop) -> dict[int, ReservedRack]:
    """The first gang of each rack, if gangs determine the makespan."""
    gangs: list[tuple[float, int, list[GangRequest]]] = []
    for job in loop.order():
        tiers = [loop.rack_capacity.best_tier(request) for request in loop.requests(job)]
        # A gang that fits on a machine, or needs several racks anyway, needs no reservation.
        if min(tiers, default=0) == RACK and loop.near_s[job] > 0:
            requests = [
                request
                for request in loop.requests(job)
                if loop.rack_capacity.best_tier(request) == RACK
            ]
            gangs.append((float(loop.near_s[job]), job, requests))
    gangs.sort(key=lambda one: -one[0])
    ends = _ends(loop) if gangs else {}
    free: dict[GangRequest, dict[tuple[int, ...], float]] = {}
    busy: dict[tuple[int, ...], float] = {}
    first: dict[tuple[int, ...], tuple[int, ReservedRack]] = {}
    together = False
    for _, job, requests in gangs:
        best: ReservedRack | None = None
        alone_s = float("inf")
        for request in requests:
            if request not in free:
                free[request] = _free_from(loop, request, ends)
            takes = loop.seconds_near(job, request)
            for pools, from_s in free[request].items():
                start = max(from_s, busy.get(pools, 0.0))
                alone_s = min(alone_s, from_s + takes)
                if best is None or start + takes < best.end_s:
                    best = ReservedRack(pools, start, start + takes)
        if best is None:
            continue
        busy[best.pools] = best.end_s
        first.setdefault(best.pools, (job, best))
        # A gang that would be late on its own says nothing about the others.
        together = together or best.end_s >= loop.horizon_s > alone_s
    return {job: one for job, one in first.values() if together or one.end_s >= loop.horizon_s}


def _ends(loop: OfferLoop) -> dict[int, list[tuple[float, int]]]:
    """Pool -> (s from now, GPUs) of the running jobs there whose end is known."""
    found: dict[int, list[tuple[float, int]]] = {}
    for job, allocation in loop.held.items():
        seconds = loop.seconds_now(job)
        if seconds < float("inf"):
            for slot, count in allocation:
                pool = loop.rack_capacity.pools.pool_of[slot]
                found.setdefault(pool, []).append((seconds, count))
    return found


def _free_from(
    loop: OfferLoop, request: GangRequest, ends: Mapping[int, Sequence[tuple[float, int]]]
) -> dict[tuple[int, ...], float]:
    """The pools of a rack -> s until so many GPUs are free there, for racks of which the gang needs
    most."""
    capacity, free_capacity = loop.rack_capacity.pools.capacity, loop.rack_capacity.free_capacity
    found: dict[tuple[int, ...], float] = {}
    for rack, pools in loop.rack_capacity.open_pools(request).items():
        if request.count <= _MOST * sum(capacity[pool] for pool in pools):
            continue
        left, when = sum(free_capacity.left[pool] for pool in pools), 0.0
        for seconds, count in sorted(end for pool in pools for end in ends.get(pool, ())):
            if left >= request.count:
                break
            left, when = left + count, seconds
        # Other jobs may hold the CPUs beside the GPUs: reserve no rack that stays too small.
        if left >= request.count and loop.rack_capacity.could_hold(request, rack):
            found[pools] = when
    return found
