"""The number of interchangeable nodes of each trainer: exact dynamic programmes over counts.

Choosing counts is a multiple-choice knapsack. For nodes of one type it has the same optimum as
BFTrainer's integer programme per node (arXiv 2106.12091), since the objective depends on counts
only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from slurm_hadar.domain.view import FloatArray, IntArray


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
