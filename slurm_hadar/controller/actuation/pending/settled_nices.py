"""The Nice of each job with another's place in the queue, so that it stands there whenever Slurm
counts an age: as the priorities are shown, as all would be counted now, and as they will be.

An update counts the age of its job alone up to now, so a job may not get more than what the others
show, though their ages lag behind, or it would stand ahead of them until Slurm computes all.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from slurm_hadar.controller.actuation.pending import counted_ages
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.domain.job import Job

_SENT_S = 2.0
"""An update reaches Slurm this long after the tick has looked, as a rule at most."""
_ONE = 1 << 40
"""A point of priority in keys: more than any job's number."""
_ROUNDS = 5


@dataclass(frozen=True)
class Stand:
    """A job in the wanted order. ``usual``: the Nice that it gets where it has no place of
    another's; ``given``: the priority, with the age of now, that it shall have where it has;
    ``exchanged``: whether it gets that from a job that still waits; ``is_ours``: whether its Nice
    is the controller's already."""

    job: Job
    tier: int
    number: int
    usual: int
    given: int | None = None
    exchanged: bool = False
    is_ours: bool = False


@dataclass(frozen=True)
class Settled:
    """``nices``: of the jobs with a ``given`` place; ``wrong``: those of them that would get an
    update and still not stand where they shall."""

    nices: Mapping[str, int]
    wrong: frozenset[str] = frozenset()


def settled(order: Sequence[Stand], seen: Observed) -> Settled:
    """With as few updates as will do."""
    ours = frozenset(one.job.id for one in order if one.given is not None)
    if not ours:
        return Settled({})
    queue = _Queue(order, seen)
    state = queue.state(ours)
    if not state.ahead | state.stays_behind:
        return Settled(state.nices)
    for keep in (queue.in_place() & ours, frozenset[str]()):
        state = queue.state(keep)
        if not state.ahead | state.behind:
            return Settled(state.nices)
    # A job that stands further back than it could takes nothing from others, and may wait there
    # until ages are counted again.
    keep = frozenset(one.job.id for one in order if one.given is not None and one.is_ours)
    for _ in range(_ROUNDS):
        state = queue.state(keep)
        if not state.ahead & keep:
            break
        keep -= state.ahead
    else:
        keep = frozenset()
        state = queue.state(keep)
    exchanged = {one.job.id for one in order if one.exchanged}
    return Settled(state.nices, (state.ahead | state.behind) & exchanged - keep)


@dataclass(frozen=True)
class _State:
    nices: Mapping[str, int]
    ahead: frozenset[str]
    """Jobs of ours that would stand ahead of one that shall go before them, at some moment."""
    behind: frozenset[str]
    """Those that would stand behind one that shall go after them."""
    stays_behind: frozenset[str]
    """The same once all ages are counted."""


_Keys = tuple[int, int, int]
"""Priority and number, the greater the sooner: as shown, with all ages of now, and of Slurm's next
computation."""


class _Queue:
    def __init__(self, order: Sequence[Stand], seen: Observed) -> None:
        then = counted_ages.next_computation(seen)
        self._order = order
        self._now = [round(counted_ages.gained(one.job, seen, seen.now)) for one in order]
        self._then = [round(counted_ages.gained(one.job, seen, then)) for one in order]
        known = bool(seen.counted_ages)
        self._slack = counted_ages.ROUNDING if known else 0
        age = seen.age
        self._late = ceil(age.weight * min(1.0, _SENT_S / age.most_s)) if known else 0

    def in_place(self) -> frozenset[str]:
        """Jobs that have as many ahead, with the ages of now, as they shall have."""

        def place(at: int) -> tuple[int, int]:
            one = self._order[at]
            return -one.tier, -self._keys(at, one.job.nice)[1]

        now = sorted(range(len(self._order)), key=place)
        return frozenset(self._order[at].job.id for at, was in enumerate(now) if at == was)

    def state(self, keep: Collection[str]) -> _State:
        """What comes of it where these jobs keep the Nice that they have."""
        nices: dict[str, int] = {}
        keys: list[_Keys] = []
        unknown = set[str]()
        lowest: _Keys | None = None
        for at, one in enumerate(self._order):
            if at and self._order[at - 1].tier != one.tier:
                lowest = None
            nice = one.usual
            if one.given is not None:
                nice = one.job.nice
                if one.job.id not in keep:
                    given = self._given(at, one.given, lowest)
                    nice += one.job.priority + self._now[at] - given
                    if given <= 1 and given < one.given:
                        # Slurm's least priority: what it shows of such a job says nothing.
                        unknown.add(one.job.id)
                nices[one.job.id] = nice
            keys.append(self._keys(at, nice))
            lowest = _each(min, lowest, keys[at])
        places = range(len(keys))
        ahead = self._beyond(places, keys, min, lambda key, other: key > other)
        counted = [(one[1], *one[1:]) for one in keys]
        behind, stays = (
            self._beyond(reversed(places), known, max, lambda key, other: key < other) | unknown
            for known in (keys, counted)
        )
        mine = nices.keys()
        return _State(nices, ahead & mine, behind & mine, stays & mine)

    def _given(self, at: int, given: int, lowest: _Keys | None) -> int:
        """The priority that an update gives a job: below all that shall go before it."""
        if lowest is None:
            return given
        later = self._late, 0, self._then[at] - self._now[at]
        number, slack = self._order[at].number, self._slack * _ONE
        room = [(key - slack + number) // _ONE for key in lowest]
        return min(given, *(most - more for most, more in zip(room, later, strict=True)))

    def _keys(self, at: int, nice: int) -> _Keys:
        one = self._order[at]
        changed = one.job.nice - nice
        shown = one.job.priority + changed + (self._now[at] + self._late if changed else 0)
        now = one.job.priority + changed + self._now[at]
        then = one.job.priority + changed + self._then[at]
        return (
            shown * _ONE - one.number,
            now * _ONE - one.number,
            then * _ONE - one.number,
        )

    def _beyond(
        self,
        places: Iterable[int],
        keys: Sequence[_Keys],
        best: Callable[[int, int], int],
        beyond: Callable[[int, int], bool],
    ) -> frozenset[str]:
        found = list[str]()
        limit: _Keys | None = None
        tier: int | None = None
        slack = self._slack * _ONE if best is min else -self._slack * _ONE
        for at in places:
            one = self._order[at]
            if one.tier != tier:
                limit, tier = None, one.tier
            if limit is not None and any(
                beyond(key, other + slack) for key, other in zip(keys[at], limit, strict=True)
            ):
                found.append(one.job.id)
            limit = _each(best, limit, keys[at])
        return frozenset(found)


def _each(best: Callable[[int, int], int], limit: _Keys | None, keys: _Keys) -> _Keys:
    if limit is None:
        return keys
    return best(limit[0], keys[0]), best(limit[1], keys[1]), best(limit[2], keys[2])
