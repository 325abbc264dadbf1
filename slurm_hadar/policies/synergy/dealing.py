"""Deals CPUs and memory to jobs again: a multiple-choice knapsack. Ours.

Each job starts with its fair share. The rest is dealt in steps, largest worth per price first,
along the concave hull of each job, as usual for such knapsacks. A job on several nodes takes from
all of them. CPUs and memory have no common price, so several price ratios are tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.policies.allocation import Allocation, Demand
from slurm_hadar.policies.synergy.demand_grid import SAME
from slurm_hadar.policies.synergy.tune_placer import Assignment, TunePlacer

_SLACK = 1e-3
_TINY = 1e-9
_PRICES = ((1.0, 1.0), (1.0, 0.1), (0.1, 1.0))
"""Prices of CPUs and of memory, each for the fair share of a GPU: both scarce, or one of them."""
_AHEAD_S = 3600.0
"""The gain of a job counts for at most this time, s: later, other jobs have come and gone."""

Left = dict[int, list[float]]
"""Node -> free CPUs and MB."""


@dataclass(frozen=True, slots=True)
class ResourcePoint:
    """CPUs and memory that a job may have. ``worth``: its work in the near future, in GPU-seconds
    at the speed of its request, less a restart if it changes."""

    need: Demand
    factor: float
    worth: float


@dataclass(frozen=True, slots=True)
class ResourceStep:
    """A step from one point of a job to a better one."""

    ratio: float
    """Worth per price."""
    to: int


@dataclass(frozen=True, slots=True)
class Sharer:
    """A job that takes part, on its present or a possible allocation. ``points``: the fair share
    first; ``falling``: points by descending worth; ``ladders``: steps for each price ratio."""

    assignment: Assignment
    allocation: Allocation
    counts: tuple[tuple[int, int], ...]
    """(node, GPUs) pairs."""
    points: tuple[ResourcePoint, ...]
    falling: tuple[int, ...]
    ladders: tuple[tuple[ResourceStep, ...], ...]


@dataclass(frozen=True, slots=True)
class SharedResources:
    """``chosen``: the point of each sharer; ``worth``: of all together."""

    worth: float
    chosen: tuple[int, ...]


_Choices = tuple[tuple[ResourcePoint, ...], tuple[int, ...], tuple[tuple[ResourceStep, ...], ...]]


@dataclass(frozen=True)
class Dealer:
    """Deals on the nodes of ``placer``. ``options``: job -> (O, 3) CPUs, MB and factor that it may
    have. ``unit`` (2,): CPUs and MB that count the same, the fair share of a GPU."""

    placer: TunePlacer
    options: Mapping[int, FloatArray]
    unit: FloatArray
    _known: dict[tuple[int, bool], _Choices] = field(default_factory=dict)

    def deals_with(self, assignment: Assignment) -> bool:
        """Whether the CPUs and memory of a job may change."""
        return not assignment.fixed and assignment.demand.job in self.options

    def sharers(self, node: int) -> list[Sharer]:
        """The jobs of a node whose CPUs and memory may change."""
        return [self.sharer(one) for one in self.placer.on(node) if self.deals_with(one)]

    def sharer(self, assignment: Assignment, allocation: Allocation | None = None) -> Sharer:
        """A job on its present or on another ``allocation``."""
        where = assignment.allocation if allocation is None else allocation
        stays = set(where) == set(assignment.demand.own)
        key = (assignment.demand.job, stays)
        if key not in self._known:
            points = self._points(assignment, stays)
            falling = sorted(range(len(points)), key=lambda at: -points[at].worth)
            ladders = tuple(self._ladder(points, price) for price in _PRICES)
            self._known[key] = points, tuple(falling), ladders
        counts: dict[int, int] = {}
        for slot, count in where:
            node = self.placer.pools.node_of[slot]
            counts[node] = counts.get(node, 0) + count
        return Sharer(assignment, where, tuple(counts.items()), *self._known[key])

    def worth(self, there: Sequence[Sharer]) -> float:
        """The total worth of what these jobs have now."""
        return sum(
            _worth(
                assignment,
                set(assignment.allocation) == set(assignment.demand.own),
                assignment.need,
                assignment.factor,
            )
            for assignment in (one.assignment for one in there)
        )

    def free(self, there: Sequence[Sharer]) -> Left:
        """What would be free on their nodes without these jobs."""
        found: Left = {}
        for assignment in (one.assignment for one in there):
            for slot, count in assignment.allocation:
                both = found.setdefault(
                    self.placer.pools.node_of[slot],
                    list(self.placer.free_capacity.cpus_and_memory(slot)),
                )
                both[0] += count * assignment.need.cpus
                both[1] += count * assignment.need.mem_mb
        return found

    def deal(self, there: Sequence[Sharer], free: Left) -> SharedResources | None:
        """The best assignment found for these jobs; None if not even their fair shares fit."""
        base = {node: list(both) for node, both in free.items()}
        for one in there:
            _use(base, one, one.points[0].need)
        if any(amount < -_SLACK for both in base.values() for amount in both):
            return None
        found = [self._dealt(there, base, price) for price in range(len(_PRICES))]
        return max(found, key=lambda one: one.worth)

    def give(self, there: Sequence[Sharer], dealt: SharedResources) -> None:
        """Apply an assignment: place these jobs with what was dealt."""
        for one in there:
            self.placer.lift(one.assignment)
        for one, at in zip(there, dealt.chosen, strict=True):
            point = one.points[at]
            self.placer.put(one.assignment, one.allocation, point.need, point.factor)

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
        # Points below the hull may still fit.
        for row, one in enumerate(there):
            better = one.points[chosen[row]].worth + SAME
            for at in one.falling:
                if one.points[at].worth <= better or _raise(left, there, chosen, row, at):
                    break
        worth = sum(one.points[at].worth for one, at in zip(there, chosen, strict=True))
        return SharedResources(worth, tuple(chosen))

    def _points(self, assignment: Assignment, stays: bool) -> tuple[ResourcePoint, ...]:
        demand = assignment.demand
        found = [(demand.fair, demand.floor)]
        if stays and demand.present_factor >= demand.floor - SAME:
            found.append((demand.present, demand.present_factor))
        for cpus, mem, factor in self.options[demand.job].tolist():
            found.append((Demand(round(cpus, 6), round(mem, 3)), factor))
        return tuple(ResourcePoint(n, f, _worth(assignment, stays, n, f)) for n, f in found)

    def _ladder(
        self, points: Sequence[ResourcePoint], price: tuple[float, float]
    ) -> tuple[ResourceStep, ...]:
        """Steps along the upper hull of worth over price, from the fair share on.

        Worth is for all GPUs and price for one, so large jobs come first: they are often on several
        nodes, where what they need is free only until small jobs have taken it.
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


def _worth(assignment: Assignment, stays: bool, need: Demand, factor: float) -> float:
    demand = assignment.demand
    lost = 0.0 if not demand.own or (stays and need == demand.present) else demand.restart_s
    gpus = sum(count for _, count in assignment.allocation)
    return factor * max(0.0, min(_AHEAD_S, demand.seconds) - lost) * gpus


def _slope(a: tuple[float, float, int], b: tuple[float, float, int]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0] + _TINY)


def _use(left: Left, one: Sharer, need: Demand, less: Demand | None = None) -> None:
    """Subtract the demand of a job; ``less``: its former demand, which is given back."""
    cpus, mem = (
        need.cpus - (less.cpus if less else 0.0),
        need.mem_mb - (less.mem_mb if less else 0.0),
    )
    for node, count in one.counts:
        left[node][0] -= count * cpus
        left[node][1] -= count * mem


def _raise(left: Left, there: Sequence[Sharer], chosen: list[int], row: int, to: int) -> bool:
    """Give a job another point if it fits on all of its nodes."""
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
