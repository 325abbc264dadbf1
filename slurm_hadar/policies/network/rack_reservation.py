"""Racks kept for the jobs that would otherwise be the last to end.

A gang that needs most of a rack finds none empty while smaller jobs are there to take each GPU as
it comes free. Left to themselves such gangs run one behind the other when all else has ended. So
each round plans them over the racks, the longest first (Graham's LPT rule), a rack being
free once enough of those who run there have ended. As soon as one would so end after the time that
all the work takes at the least, there is none to lose: the first gang of each rack is promised it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.policies.allocation import Allocation, Demand
from slurm_hadar.policies.network.offer_loop import OfferLoop, RackOffer
from slurm_hadar.policies.network.places import RACK, Ask

_MOST = 0.5
"""A gang that needs more than this part of a rack shares it with no other such gang."""
_NEARLY = 0.75
"""Part of its GPUs that must be free in a rack for it to be kept for a job without a promise."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A rack that a gang will have; times in s from now."""

    pools: tuple[int, ...]
    """The rack's GPUs of one type that are open to the gang."""
    start_s: float
    """When enough of those who run there have ended."""
    end_s: float


class RackReservations:
    """Who gets which rack. Others get a place there only if they end before."""

    def __init__(self, turns: OfferLoop, off: bool = False) -> None:
        """``off``: nobody is promised anything."""
        self._turns = turns
        self._of = {} if off else _promised(turns)

    @property
    def jobs(self) -> list[int]:
        """Who was promised a rack."""
        return list(self._of)

    def set_aside(self) -> Allocation:
        """Take what is free in the racks of those who still wait."""
        pools = (pool for job, one in self._of.items() if self._waits(job) for pool in one.pools)
        return _take_all(self._turns, dict.fromkeys(pools))

    def refuses(self, job: int, offer: RackOffer) -> str:
        """Why a job may not have an offer, or should not want it; empty: nothing is against it."""
        mine = self._of.get(job)
        if mine is not None and offer.seconds > mine.end_s:
            return f"a rack is kept for it, in which it can start in {mine.start_s / 60:.0f} min"
        pools = {self._turns.ground.pools.pool_of[slot] for slot, _ in offer.parts}
        for other, one in self._of.items():
            clear = pools.isdisjoint(one.pools) or offer.seconds <= one.start_s
            if clear or not self._waits(other):
                continue
            # Whose own rack is free as soon leaves the other that one.
            if mine is None or mine.start_s > one.start_s:
                return (
                    f"declines {offer.count} GPUs that are kept for job "
                    f"{self._turns.view.jobs.ids[other]}, which would end last of all"
                )
        return ""

    def notes(self) -> tuple[str, ...]:
        """As text, for the plan."""
        ids = self._turns.view.jobs.ids
        return tuple(
            f"a rack is kept for job {ids[job]}, free in {one.start_s / 60:.0f} min: the job would "
            "end last of all"
            for job, one in self._of.items()
            if self._waits(job)
        )

    def _waits(self, job: int) -> bool:
        return self._turns.view.jobs.ids[job] not in self._turns.placements


def keep_a_rack(turns: OfferLoop, jobs: Sequence[int]) -> Allocation:
    """Set aside what is free in the rack that the first of these jobs could have soonest, once
    most of what it needs is free there, so that smaller jobs do not take it bit by bit; none
    where one machine is enough for it."""
    room = turns.ground.room
    for job in jobs:
        for ask in turns.asks(job):
            if turns.ground.best_tier(ask) != RACK:
                continue
            racks = turns.ground.open_pools(ask).values()
            # Of a type that others hold to the last GPU there is no pool.
            pools = max(racks, key=lambda some: sum(room.left[p] for p in some), default=())
            if sum(room.left[p] for p in pools) < _NEARLY * ask.count:
                return ()
            return _take_all(turns, pools)
    return ()


def _take_all(turns: OfferLoop, pools: Iterable[int]) -> Allocation:
    """Take what is free in these pools."""
    room, spans = turns.ground.room, turns.ground.pools.spans
    slots = [slot for pool in pools for slot in range(*spans[pool])]
    parts = tuple((slot, int(room.free[slot])) for slot in slots if room.free[slot] > 0)
    room.take(parts, Demand())
    return parts


def _promised(turns: OfferLoop) -> dict[int, Promise]:
    """The first gang of each rack, where the gangs decide when all the work ends."""
    gangs: list[tuple[float, int, list[Ask]]] = []
    for job in turns.order():
        tiers = [turns.ground.best_tier(ask) for ask in turns.asks(job)]
        # Who could have a machine, or must be over several racks in any case, is not held up so.
        if min(tiers, default=0) == RACK and turns.near_s[job] > 0:
            asks = [ask for ask in turns.asks(job) if turns.ground.best_tier(ask) == RACK]
            gangs.append((float(turns.near_s[job]), job, asks))
    gangs.sort(key=lambda one: -one[0])
    ends = _ends(turns) if gangs else {}
    free: dict[Ask, dict[tuple[int, ...], float]] = {}
    busy: dict[tuple[int, ...], float] = {}
    first: dict[tuple[int, ...], tuple[int, Promise]] = {}
    together = False
    for _, job, asks in gangs:
        best: Promise | None = None
        alone_s = float("inf")
        for ask in asks:
            if ask not in free:
                free[ask] = _free_from(turns, ask, ends)
            takes = turns.seconds_near(job, ask)
            for pools, from_s in free[ask].items():
                start = max(from_s, busy.get(pools, 0.0))
                alone_s = min(alone_s, from_s + takes)
                if best is None or start + takes < best.end_s:
                    best = Promise(pools, start, start + takes)
        if best is None:
            continue
        busy[best.pools] = best.end_s
        first.setdefault(best.pools, (job, best))
        # A gang that is late on its own says nothing of the others.
        together = together or best.end_s >= turns.horizon_s > alone_s
    return {job: one for job, one in first.values() if together or one.end_s >= turns.horizon_s}


def _ends(turns: OfferLoop) -> dict[int, list[tuple[float, int]]]:
    """Pool -> (s from now, GPUs) of those who run there and whose end is known."""
    found: dict[int, list[tuple[float, int]]] = {}
    for job, parts in turns.held.items():
        seconds = turns.seconds_now(job)
        if seconds < float("inf"):
            for slot, count in parts:
                pool = turns.ground.pools.pool_of[slot]
                found.setdefault(pool, []).append((seconds, count))
    return found


def _free_from(
    turns: OfferLoop, ask: Ask, ends: Mapping[int, Sequence[tuple[float, int]]]
) -> dict[tuple[int, ...], float]:
    """A rack's pools -> s from now until so many of its GPUs are free, of racks that the gang would
    need most of."""
    capacity, room = turns.ground.pools.capacity, turns.ground.room
    found: dict[tuple[int, ...], float] = {}
    for rack, pools in turns.ground.open_pools(ask).items():
        if ask.count <= _MOST * sum(capacity[pool] for pool in pools):
            continue
        left, when = sum(room.left[pool] for pool in pools), 0.0
        for seconds, count in sorted(end for pool in pools for end in ends.get(pool, ())):
            if left >= ask.count:
                break
            left, when = left + count, seconds
        # Others may have the CPUs beside the GPUs: no rack is kept that would stay too small.
        if left >= ask.count and turns.ground.could_hold(ask, rack):
            found[pools] = when
    return found
