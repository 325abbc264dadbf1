"""CPUs and memory of some jobs dealt anew: a knapsack with several choices for each job. Ours.

Each job starts with its fair share. What is beyond it goes in steps, the most worth per
price first, along each job's concave hull as is usual for such knapsacks. A job on several nodes
takes from all of them. CPUs and memory have no common price, so a few are tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.policies.allocation import Allocation, Demand
from slurm_hadar.policies.synergy.demands import SAME
from slurm_hadar.policies.synergy.placing import Given, Placing

_SLACK = 1e-3
_TINY = 1e-9
_PRICES = ((1.0, 1.0), (1.0, 0.1), (0.1, 1.0))
"""Of CPUs and of memory, for as much as a GPU's fair share: both scarce, or one of them."""
_AHEAD_S = 3600.0
"""What a job gains is counted for so long at the most: then others have come and gone."""

Left = dict[int, list[float]]
"""CPUs and MB that are free, by node."""


@dataclass(frozen=True, slots=True)
class ResourcePoint:
    """What a job may have, and what that is worth: work of the next while, in GPU-seconds at the
    speed that it asks for, less its restart where it has other things now."""

    need: Demand
    factor: float
    worth: float


@dataclass(frozen=True, slots=True)
class ResourceStep:
    """From one point of a job to a better one."""

    ratio: float
    """Worth per price."""
    to: int


@dataclass(frozen=True, slots=True)
class Sharer:
    """A job that takes part, where it is or where it might be. ``points``: the fair share first;
    ``falling``: the most worth first; ``ladders``: steps per price."""

    given: Given
    parts: Allocation
    counts: tuple[tuple[int, int], ...]
    """(node, GPUs)"""
    points: tuple[ResourcePoint, ...]
    falling: tuple[int, ...]
    ladders: tuple[tuple[ResourceStep, ...], ...]


@dataclass(frozen=True, slots=True)
class SharedResources:
    """``chosen``: per sharer its point; ``worth`` of all of them."""

    worth: float
    chosen: tuple[int, ...]


_Choices = tuple[tuple[ResourcePoint, ...], tuple[int, ...], tuple[tuple[ResourceStep, ...], ...]]


@dataclass(frozen=True)
class Dealer:
    """Deals on the nodes of ``placing``. ``options``: job -> (O, 3) CPUs, MB and factor of what it
    may have. ``unit`` (2,): CPUs and MB that count alike, the fair share of a GPU."""

    placing: Placing
    options: Mapping[int, FloatArray]
    unit: FloatArray
    _known: dict[tuple[int, bool], _Choices] = field(default_factory=dict)

    def deals_with(self, given: Given) -> bool:
        """Whether the CPUs and the memory of a job may be changed."""
        return not given.fixed and given.wish.job in self.options

    def sharers(self, node: int) -> list[Sharer]:
        """Those on a node whose CPUs and memory may be changed."""
        return [self.sharer(one) for one in self.placing.on(node) if self.deals_with(one)]

    def sharer(self, given: Given, parts: Allocation | None = None) -> Sharer:
        """A job where it is, or in other ``parts``."""
        where = given.parts if parts is None else parts
        stays = set(where) == set(given.wish.own)
        key = (given.wish.job, stays)
        if key not in self._known:
            points = self._points(given, stays)
            falling = sorted(range(len(points)), key=lambda at: -points[at].worth)
            ladders = tuple(self._ladder(points, price) for price in _PRICES)
            self._known[key] = points, tuple(falling), ladders
        counts: dict[int, int] = {}
        for slot, count in where:
            node = self.placing.pools.node_of[slot]
            counts[node] = counts.get(node, 0) + count
        return Sharer(given, where, tuple(counts.items()), *self._known[key])

    def worth(self, there: Sequence[Sharer]) -> float:
        """Of what these jobs have been given so far, where they are."""
        return sum(
            _worth(given, set(given.parts) == set(given.wish.own), given.need, given.factor)
            for given in (one.given for one in there)
        )

    def free(self, there: Sequence[Sharer]) -> Left:
        """What would be free on their nodes, were none of these jobs there."""
        found: Left = {}
        for given in (one.given for one in there):
            for slot, count in given.parts:
                both = found.setdefault(
                    self.placing.pools.node_of[slot], list(self.placing.room.cpus_and_memory(slot))
                )
                both[0] += count * given.need.cpus
                both[1] += count * given.need.mem_mb
        return found

    def deal(self, there: Sequence[Sharer], free: Left) -> SharedResources | None:
        """The best that was found for them; None: not even their fair shares fit."""
        base = {node: list(both) for node, both in free.items()}
        for one in there:
            _use(base, one, one.points[0].need)
        if any(amount < -_SLACK for both in base.values() for amount in both):
            return None
        found = [self._dealt(there, base, price) for price in range(len(_PRICES))]
        return max(found, key=lambda one: one.worth)

    def give(self, there: Sequence[Sharer], dealt: SharedResources) -> None:
        """Put these jobs in their places, with what was dealt."""
        for one in there:
            self.placing.lift(one.given)
        for one, at in zip(there, dealt.chosen, strict=True):
            point = one.points[at]
            self.placing.put(one.given, one.parts, point.need, point.factor)

    def _dealt(self, there: Sequence[Sharer], base: Left, price: int) -> SharedResources:
        left = {node: list(both) for node, both in base.items()}
        chosen = [0] * len(there)
        steps = sorted(
            (-step.ratio, row, step.to)
            for row, one in enumerate(there)
            for step in one.ladders[price]
        )
        for _, row, to in steps:
            _raise(left, there, chosen, row, to)
        # What the hull leaves out may still fit.
        for row, one in enumerate(there):
            better = one.points[chosen[row]].worth + SAME
            for at in one.falling:
                if one.points[at].worth <= better or _raise(left, there, chosen, row, at):
                    break
        worth = sum(one.points[at].worth for one, at in zip(there, chosen, strict=True))
        return SharedResources(worth, tuple(chosen))

    def _points(self, given: Given, stays: bool) -> tuple[ResourcePoint, ...]:
        wish = given.wish
        found = [(wish.fair, wish.floor)]
        if stays and wish.present_factor >= wish.floor - SAME:
            found.append((wish.present, wish.present_factor))
        for cpus, mem, factor in self.options[wish.job].tolist():
            found.append((Demand(round(cpus, 6), round(mem, 3)), factor))
        return tuple(ResourcePoint(n, f, _worth(given, stays, n, f)) for n, f in found)

    def _ladder(
        self, points: Sequence[ResourcePoint], price: tuple[float, float]
    ) -> tuple[ResourceStep, ...]:
        """Along the upper hull of worth over price, from the fair share on.

        The worth is of all GPUs, the price of one: large jobs come first. They are often on several
        nodes, and what they need on each of them is there only until the small ones have taken it.
        """
        each = [part / max(float(of), _TINY) for part, of in zip(price, self.unit, strict=True)]
        first = points[0]
        over = sorted(
            (
                (point.need.cpus - first.need.cpus) * each[0]
                + (point.need.mem_mb - first.need.mem_mb) * each[1],
                point.worth - first.worth,
                at,
            )
            for at, point in enumerate(points)
            if point.worth > first.worth + SAME
        )
        hull: list[tuple[float, float, int]] = [(0.0, 0.0, 0)]
        for cost, gain, at in over:
            if gain <= hull[-1][1] + SAME:
                continue
            here = (max(cost, hull[0][0]), gain, at)
            while len(hull) > 1 and _slope(hull[-2], here) >= _slope(hull[-2], hull[-1]):
                hull.pop()
            hull.append(here)
        return tuple(ResourceStep(_slope(a, b), b[2]) for a, b in pairwise(hull))


def _worth(given: Given, stays: bool, need: Demand, factor: float) -> float:
    wish = given.wish
    lost = 0.0 if not wish.own or (stays and need == wish.present) else wish.restart_s
    gpus = sum(count for _, count in given.parts)
    return factor * max(0.0, min(_AHEAD_S, wish.seconds) - lost) * gpus


def _slope(a: tuple[float, float, int], b: tuple[float, float, int]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0] + _TINY)


def _use(left: Left, one: Sharer, need: Demand, less: Demand | None = None) -> None:
    """Take what a job needs ``less`` what it has had."""
    cpus, mem = (
        need.cpus - (less.cpus if less else 0.0),
        need.mem_mb - (less.mem_mb if less else 0.0),
    )
    for node, count in one.counts:
        left[node][0] -= count * cpus
        left[node][1] -= count * mem


def _raise(left: Left, there: Sequence[Sharer], chosen: list[int], row: int, to: int) -> bool:
    """Give a job another point, where that fits on all of its nodes."""
    one = there[row]
    has, then = one.points[chosen[row]].need, one.points[to].need
    cpus, mem = then.cpus - has.cpus, then.mem_mb - has.mem_mb
    for node, count in one.counts:
        free = left[node]
        if free[0] + _SLACK < count * cpus or free[1] + _SLACK < count * mem:
            return False
    _use(left, one, then, has)
    chosen[row] = to
    return True
