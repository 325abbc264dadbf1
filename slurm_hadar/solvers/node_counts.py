"""The number of nodes of each trainer: exact dynamic programmes over counts, and an integer
programme where nodes are of several types.

Choosing counts is a multiple-choice knapsack. For nodes of one type, which are interchangeable, it
has the same optimum as BFTrainer's integer programme per node (arXiv 2106.12091), since the
objective depends on counts only. With several types nodes are not interchangeable, so the programme
over counts does not apply, and HiGHS solves one by type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.highs import INFINITY, is_best
from slurm_hadar.solvers.programme import Programme

_GAP = 1e-6
_MOST_BRANCHES = 5_000


def best_values(values: Sequence[FloatArray], nodes: int) -> FloatArray:
    """(nodes + 1,) the largest sum of values with exactly n nodes, -inf if the trainers together
    cannot take n. ``values[j]`` (K_j + 1,): the value of 0..K_j nodes to trainer j."""
    return _forward(values, nodes)[0]


def best_counts(values: Sequence[FloatArray], nodes: int) -> IntArray:
    """(J,) counts with the largest sum of values on at most ``nodes`` nodes.

    Ties go to the fewest nodes, so a map does not change without a gain.
    """
    best, choices = _forward(values, nodes)
    return _backward(choices, int(best.argmax()))


def best_counts_capped(
    values: Sequence[FloatArray], nodes: int, owner: Sequence[str], caps: Mapping[str, int]
) -> IntArray:
    """:func:`best_counts` with at most ``caps[owner]`` nodes for all trainers of an owner. Exact:
    one programme per owner, and one over the owners."""
    groups: list[list[int]] = []
    of_owner: dict[str, list[int]] = {}
    for j, name in enumerate(owner):
        if name not in caps:
            groups.append([j])
        elif name in of_owner:
            of_owner[name].append(j)
        else:
            of_owner[name] = [j]
            groups.append(of_owner[name])
    tables: list[FloatArray] = []
    inner: list[list[IntArray]] = []
    for members in groups:
        room = sum(len(values[j]) - 1 for j in members)
        most = min(nodes, room, max(0, caps.get(owner[members[0]], room)))
        table, choices = _forward([values[j] for j in members], most)
        tables.append(table)
        inner.append(choices)
    given = best_counts(tables, nodes)
    counts = np.zeros(len(values), np.int64)
    for members, choices, share in zip(groups, inner, given.tolist(), strict=True):
        counts[members] = _backward(choices, share)
    return counts


def _forward(values: Sequence[FloatArray], nodes: int) -> tuple[FloatArray, list[IntArray]]:
    nodes = max(0, min(nodes, sum(len(value) - 1 for value in values)))
    best = np.full(nodes + 1, -np.inf)
    best[0] = 0.0
    choices: list[IntArray] = []
    rows = np.arange(nodes + 1)
    for value in values:
        table = _lagged(best, min(len(value) - 1, nodes), -np.inf) + value[: nodes + 1]
        choice = table.argmax(axis=1)
        choices.append(choice)
        best = table[rows, choice]
    return best, choices


def _backward(choices: Sequence[IntArray], nodes: int) -> IntArray:
    counts = np.zeros(len(choices), np.int64)
    for j in range(len(choices) - 1, -1, -1):
        counts[j] = choices[j][nodes]
        nodes -= int(counts[j])
    return counts


def _lagged(values: FloatArray, most: int, before: float) -> FloatArray:
    """(n, most + 1): entry [b, k] is values[b - k], ``before`` where that is no entry."""
    padded = np.concatenate([np.full(most, before), values])
    lagged: FloatArray = sliding_window_view(padded, most + 1)[:, ::-1]
    return lagged


@dataclass(frozen=True)
class Taker:
    """A trainer that may take a run of neighbours in the list of free nodes.

    ``rate`` (K + 1,): samples/s with 0..K nodes added. ``forward_s``: forward-looking time;
    ``grow_s``: seconds lost if it takes any. ``losses``: expected number of leaves within
    ``forward_s`` that hit its present nodes; ``loss_s``: seconds lost at each. ``adds`` (F,):
    expected leaves that the group of each free node would add, 0 if the group is in the trainer
    already.
    """

    rate: FloatArray
    forward_s: float
    grow_s: float
    loss_s: float
    losses: float
    adds: FloatArray


def best_chunks(takers: Sequence[Taker], group: IntArray) -> list[tuple[int, int]]:
    """The run [first, end) of the free nodes of each taker, in the order of the takers.

    ``group`` (F,): nodes of a group are neighbours and leave together, so a group counts once in a
    taker. Maximises the sum of rate x (forward_s - grow_s if it grows - loss_s x expected leaves),
    exactly, over all maps that keep both orders; nodes may be left out. Ties go to fewer nodes.
    """
    free = len(group)
    rows = np.arange(free + 1)
    opens = np.ones(free, bool)
    opens[1:] = group[1:] != group[:-1]
    best = np.zeros(free + 1)
    back: list[tuple[IntArray, IntArray]] = []
    for taker in takers:
        most = min(len(taker.rate) - 1, free)
        hits = np.concatenate([[0.0], np.cumsum(taker.adds * opens)])
        # A run that begins inside a group includes it, but not its first node: add the group.
        start = np.append(np.where(opens, 0.0, taker.adds), 0.0) - hits
        seconds = (
            taker.forward_s
            - taker.grow_s
            - taker.loss_s * (taker.losses + hits[:, None] + _lagged(start, most, 0.0))
        )
        seconds[:, 0] = taker.forward_s - taker.loss_s * taker.losses
        table = _lagged(best, most, -np.inf) + taker.rate[: most + 1] * seconds
        choice = table.argmax(axis=1)
        value = table[rows, choice]
        best = np.maximum.accumulate(value)
        source = np.where(np.append(True, value[1:] > best[:-1]), rows, 0)
        back.append((choice, np.maximum.accumulate(source)))
    chunks: list[tuple[int, int]] = []
    end = free
    for choice, source in reversed(back):
        end = int(source[end])
        taken = int(choice[end])
        chunks.append((end - taken, end))
        end -= taken
    return chunks[::-1]


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
        ).solve(mip_rel_gap=_GAP, mip_max_nodes=_MOST_BRANCHES, time_limit=float(time_limit_s))
        proven = is_best(solver)
        feasible = solver.getInfo().primal_solution_status == 2
        values = np.array(solver.getSolution().col_value)
        if len(values) != size or not (proven or feasible):
            return None, False
        counts: IntArray = np.rint(values[self.count]).astype(np.int64)
        return counts, proven
