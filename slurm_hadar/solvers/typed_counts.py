"""The number of nodes of each GPU type of each trainer: an integer programme (HiGHS).

With several types nodes are not interchangeable, so the programme over counts does not apply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.highs import INFINITY, is_best
from slurm_hadar.solvers.programme import Programme

_GAP = 1e-6
_NODES = 5_000


@dataclass(frozen=True)
class TypedDemand:
    """One trainer. ``rate`` (R, K + 1): samples/s on 0..K nodes of type r, 0 if it cannot run; on
    several types the slowest rate at the total count. ``held`` (R,): present nodes. ``grow_s``,
    ``shrink_s``: seconds lost; growing at the rate after it, shrinking at the rate before it; a
    move between types costs both."""

    rate: FloatArray
    held: IntArray
    grow_s: float
    shrink_s: float
    owner: str = ""

    def rate_of(self, counts: IntArray) -> float:
        """Samples/s on this many nodes of each type; 0 above its largest count."""
        total = int(counts.sum())
        if not total or total >= self.rate.shape[1]:
            return 0.0
        return float(self.rate[counts > 0, total].min())

    def value(self, counts: IntArray, forward_s: float) -> float:
        """Samples in ``forward_s`` on these nodes, less the rescale from ``held``."""
        grows, shrinks = bool((counts > self.held).any()), bool((counts < self.held).any())
        worth = self.rate_of(counts) * (forward_s - self.grow_s * grows)
        return worth - self.rate_of(self.held) * self.shrink_s * shrinks


@dataclass(frozen=True)
class TypedCounts:
    """``counts`` (J, R). ``proven``: proven optimal; if not, a limit was reached and it is the best
    map found, never worse than the present one."""

    counts: IntArray
    proven: bool


@dataclass(frozen=True)
class CountLimits:
    """``budget``: most nodes together; ``caps``: most nodes of an owner's trainers together;
    ``time_limit_s``: of the solver."""

    budget: int
    caps: Mapping[str, int] = field(default_factory=dict)
    time_limit_s: float = 2.0


def typed_counts(
    demands: Sequence[TypedDemand], nodes: IntArray, forward_s: float, limits: CountLimits
) -> TypedCounts:
    """The map with the largest sum of :meth:`TypedDemand.value`.

    ``nodes`` (R,): idle nodes per type, held ones included.
    """
    before = np.array([one.held for one in demands], np.int64).reshape(len(demands), len(nodes))
    model = _Model(demands, nodes, forward_s)
    model.limit_sum(range(len(demands)), limits.budget)
    for owner, cap in limits.caps.items():
        model.limit_sum([j for j, one in enumerate(demands) if one.owner == owner], cap)
    found, proven = model.solve(limits.time_limit_s)
    if found is None:
        return TypedCounts(before, False)
    worth = [
        sum(one.value(row, forward_s) for one, row in zip(demands, counts, strict=True))
        for counts in (found, before)
    ]
    if not proven and worth[1] >= worth[0]:
        return TypedCounts(before, False)
    return TypedCounts(found, proven)


@dataclass
class _Rows:
    start: list[int] = field(default_factory=lambda: [0])
    column: list[int] = field(default_factory=list)
    factor: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)

    def add(self, terms: Sequence[tuple[int, float]], upper: float, equal: bool = False) -> None:
        self.column += [column for column, _ in terms]
        self.factor += [factor for _, factor in terms]
        self.start.append(len(self.column))
        self.upper.append(upper)
        self.lower.append(upper if equal else -INFINITY)


class _Model:
    """Per trainer: one choice of (slowest type, total, grows or not), its nodes per type, and
    whether it gives up any."""

    def __init__(self, demands: Sequence[TypedDemand], nodes: IntArray, forward_s: float) -> None:
        self.cost: list[float] = []
        self.most: list[float] = []
        self.rows = _Rows()
        self.demands, self.nodes = demands, nodes
        self.count = np.zeros((len(demands), len(nodes)), np.int64)
        for j, one in enumerate(demands):
            self._trainer(j, one, forward_s)
        for q, there in enumerate(nodes.tolist()):
            self.rows.add([(int(c), 1.0) for c in self.count[:, q]], float(there))

    def _new(self, cost: float, most: float) -> int:
        self.cost.append(cost)
        self.most.append(most)
        return len(self.cost) - 1

    def _trainer(self, j: int, one: TypedDemand, forward_s: float) -> None:
        types, most = len(self.nodes), one.rate.shape[1] - 1
        reach = min(most, int(self.nodes.sum()))
        choices = [
            (self._new(float(one.rate[r, n]) * (forward_s - one.grow_s * grows), 1.0), r, n, grows)
            for r in range(types)
            for n in range(1, reach + 1)
            if one.rate[r, n] > 0
            for grows in (False, True)
        ]
        leaves = self._new(-one.rate_of(one.held) * one.shrink_s, 1.0)
        for q in range(types):
            self.count[j, q] = self._new(0.0, float(min(most, self.nodes[q])))
        counts = self.count[j].tolist()
        self.rows.add([(c, 1.0) for c, *_ in choices], 1.0)
        self.rows.add(
            [(c, -float(n)) for c, _, n, _ in choices] + [(c, 1.0) for c in counts], 0.0, equal=True
        )
        for q in range(types):
            # Nodes of a type only where the slowest type chosen is no faster than this one.
            fit = [(c, -float(n)) for c, r, n, _ in choices if one.rate[q, n] >= one.rate[r, n]]
            self.rows.add([(counts[q], 1.0), *fit], 0.0)
            held = float(one.held[q])
            room = float(min(most, self.nodes[q]))
            grown = [(c, -room) for c, _, _, grows in choices if grows]
            self.rows.add([(counts[q], 1.0), *grown], held)
            if held:
                self.rows.add([(counts[q], -1.0), (leaves, -held)], -held)

    def limit_sum(self, trainers: Sequence[int] | range, cap: int) -> None:
        """The nodes of these trainers together are at most ``cap``."""
        columns = self.count[list(trainers)].ravel().tolist()
        if columns:
            self.rows.add([(c, 1.0) for c in columns], float(max(0, cap)))

    def solve(self, time_limit_s: float) -> tuple[IntArray | None, bool]:
        """(J, R) counts or None, and whether they are proven best."""
        rows, size = self.rows, len(self.cost)
        scale = max((abs(cost) for cost in self.cost), default=0.0) or 1.0
        solver = Programme(
            cost=np.array(self.cost) / scale,
            upper=np.array(self.most),
            low=np.array(rows.lower),
            high=np.array(rows.upper),
            index=np.array(rows.column),
            value=np.array(rows.factor),
            start=np.array(rows.start),
            by_row=True,
            integer=True,
        ).solve(mip_rel_gap=_GAP, mip_max_nodes=_NODES, time_limit=float(time_limit_s))
        proven = is_best(solver)
        feasible = solver.getInfo().primal_solution_status == 2
        values = np.array(solver.getSolution().col_value)
        if len(values) != size or not (proven or feasible):
            return None, False
        counts: IntArray = np.rint(values[self.count]).astype(np.int64)
        return counts, proven
