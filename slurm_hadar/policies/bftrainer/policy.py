"""BFTrainer: idle nodes train until they are taken back.

arXiv 2106.12091, verified in its code: choose the number of nodes of each trainer so that the
samples trained over a forward-looking time, less the cost of rescaling, are maximal; a node has at
most one trainer; nothing migrates. Ours:

- A rescale costs its seconds at the rate *after* it, since no node trains during it (the paper
  charges the rate before it, so that a start would be free).
- Losses by nodes that are taken back are expected as :mod:`.idle_survival` has learned: each group
  of nodes that became idle together and may leave within the forward-looking time costs its trainer
  ``shrink_s`` at its full rate. So groups stay together, and groups that are likely to leave stay
  small.
- If the idle nodes have several GPU types, the counts are per type, by HiGHS.
- Old nodes go to trainers on old nodes, young ones to trainers on young nodes: the longer nodes
  have been idle, the longer they stay idle.

``decide`` is pure and deterministic except for the time limit of the MILP; a plan notes if that was
reached.
"""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.policies.bftrainer.idle_survival import IdleSurvival
from slurm_hadar.policies.bftrainer.places import elders_first, oldest_to_oldest, without_youngest
from slurm_hadar.policies.bftrainer.records import NO_TRAINER, IdleMap, IdleView
from slurm_hadar.solvers.node_counts import (
    CountLimits,
    Taker,
    TypedDemand,
    best_chunks,
    best_counts,
    best_counts_capped,
    typed_counts,
)

__all__ = ["count_values", "decide", "decide_plain"]

_SPARE = 64
"""Free nodes considered beyond what all trainers could take, oldest first."""


def decide(view: IdleView, survival: IdleSurvival) -> tuple[IdleMap, IdleSurvival]:
    """The trainer of each idle node, and the updated survival model."""
    survival = survival.updated(view)
    if not view.trainers or not len(view.nodes):
        return IdleMap(view.holder), survival
    if _several_types(view):
        return _decide_types(view), survival
    view = replace(view, forward_s=view.ahead_s())
    view, may_take, released = _shrunk(view)
    free = np.flatnonzero(view.holder == NO_TRAINER)
    taken = min(len(free), view.budget() - int((view.holder >= 0).sum()))
    if not taken or not may_take.any():
        return IdleMap(view.holder), survival
    # Oldest first; of one age, neighbours together.
    order = free[np.lexsort((view.nodes[free], view.since_s[free]))]
    if taken < len(free):
        order = order[:taken]
    order = order[: int(may_take.sum()) + _SPARE]
    chance = survival.chance(view, view.forward_s)
    holder = view.holder.copy()
    trainer_order = elders_first(view)
    takers = _takers(view, trainer_order, may_take, order, chance)
    for j, (first, end) in zip(
        trainer_order, best_chunks(takers, _groups(view, order)), strict=True
    ):
        holder[order[first:end]] = j
    notes = (f"{released} nodes change their trainer",) if released else ()
    return IdleMap(holder, notes), survival


def decide_plain(view: IdleView, survival: IdleSurvival) -> tuple[IdleMap, IdleSurvival]:
    """The paper's programme and costs, exact, without any forecast; nodes by their number."""
    if not view.trainers or not len(view.nodes):
        return IdleMap(view.holder), survival
    if _several_types(view):
        return _decide_types(view), survival
    counts = _counts(view, [count_values(view, j, after=False) for j in range(len(view.trainers))])
    return IdleMap(oldest_to_oldest(view, counts, by_age=False)), survival


def count_values(view: IdleView, trainer: int, after: bool = True) -> FloatArray:
    """(K + 1,) samples that a trainer trains in the forward-looking time on 0..K nodes, less the
    rescale from what it holds. ``after``: growing costs the rate after it; else, as in the paper,
    the rate before it. Shrinking costs the rate before it."""
    one = view.trainers[trainer]
    rate = one.rate[_type_of(view)]
    now = min(len(view.held(trainer)), one.most)
    value: FloatArray = view.forward_s * rate
    value[now + 1 :] -= one.grow_s * (rate[now + 1 :] if after else rate[now])
    value[:now] -= one.shrink_s * rate[now]
    return value


def _several_types(view: IdleView) -> bool:
    return view.gpu_type is not None and len(np.unique(view.gpu_type)) > 1


def _type_of(view: IdleView) -> int:
    return 0 if view.gpu_type is None or not len(view.gpu_type) else int(view.gpu_type[0])


def _counts(view: IdleView, values: list[FloatArray]) -> IntArray:
    if view.user_caps:
        owners = [one.user for one in view.trainers]
        return best_counts_capped(values, view.budget(), owners, view.user_caps)
    return best_counts(values, view.budget())


def _shrunk(view: IdleView) -> tuple[IdleView, IntArray, int]:
    """The view after the shrinks that pay, the nodes that each trainer may still take, and the
    number of nodes released. A shrink can pay only where nodes are scarce or capped."""
    held = view.counts()
    most = np.array([one.most for one in view.trainers], np.int64)
    may_take = np.maximum(0, most - held)
    row = _type_of(view)
    # Unused nodes: more than the trainer can use, or fewer than it needs.
    wasted = (held > most).any() or any(
        count and not one.rate[row, min(count, one.most)]
        for one, count in zip(view.trainers, held.tolist(), strict=True)
    )
    short = int(may_take.sum()) > view.budget() - int(held.sum())
    if not (short or view.user_caps or wasted):
        return view, may_take, 0
    counts = _counts(view, [count_values(view, j) for j in range(len(view.trainers))])
    if view.user_caps:
        capped = np.array([one.user in view.user_caps for one in view.trainers])
        may_take = np.where(capped, np.maximum(0, counts - held), may_take)
    less = counts < held
    if not less.any():
        return view, may_take, 0
    may_take = np.where(less, 0, may_take)
    kept = without_youngest(view, np.where(less, counts, held))
    released = int((view.holder != kept).sum())
    return replace(view, holder=kept), may_take, released


def _groups(view: IdleView, positions: IntArray) -> IntArray:
    """A number for each group of nodes that became idle together."""
    _, group = np.unique(view.since_s[positions], return_inverse=True)
    return group.ravel().astype(np.int64)


def _takers(
    view: IdleView,
    trainer_order: list[int],
    may_take: IntArray,
    order: IntArray,
    chance: FloatArray,
) -> list[Taker]:
    since, inverse = np.unique(view.since_s, return_inverse=True)
    group = inverse.ravel()
    has: BoolArray = np.zeros((len(view.trainers), len(since)), bool)
    used = np.flatnonzero(view.holder >= 0)
    has[view.holder[used], group[used]] = True
    # Nodes of a group have one probability, unless two batches became idle in the same second:
    # take the highest.
    worst = np.zeros(len(since))
    np.maximum.at(worst, group, chance)
    counts = view.counts()
    row = _type_of(view)
    takers = []
    for j in trainer_order:
        one = view.trainers[j]
        now = min(int(counts[j]), one.most)
        takers.append(
            Taker(
                rate=one.rate[row, now : now + int(may_take[j]) + 1],
                forward_s=view.forward_s,
                grow_s=one.grow_s,
                loss_s=one.shrink_s,
                losses=float(worst[has[j]].sum()),
                adds=np.where(has[j][group[order]], 0.0, worst[group[order]]),
            )
        )
    return takers


def _decide_types(view: IdleView) -> IdleMap:
    """The best counts per type, old nodes kept first. If HiGHS reaches its limit, the best answer
    found, at worst the present one, with a note. Raises UsageError if a trainer lacks the rates of
    a type."""
    assert view.gpu_type is not None
    types = int(view.gpu_type.max()) + 1
    for one in view.trainers:
        if one.rate.shape[0] < types:
            raise UsageError(f"trainer {one.name}: rates of {types} GPU types are needed")
    nodes = np.bincount(view.gpu_type, minlength=types).astype(np.int64)
    held = np.zeros((len(view.trainers), types), np.int64)
    used = view.holder >= 0
    np.add.at(held, (view.holder[used], view.gpu_type[used]), 1)
    demands = [
        TypedDemand(one.rate[:types], row, one.grow_s, one.shrink_s, one.user)
        for one, row in zip(view.trainers, held, strict=True)
    ]
    limits = CountLimits(view.budget(), view.user_caps, view.time_limit_s)
    solved = typed_counts(demands, nodes, view.ahead_s(), limits)
    notes = () if solved.proven else ("the programme over GPU types hit its limit",)
    return IdleMap(_holders_by_type(view, solved.counts), notes)


def _holders_by_type(view: IdleView, counts: IntArray) -> IntArray:
    assert view.gpu_type is not None
    holder = view.holder.copy()
    trainer_order = elders_first(view)
    order = np.lexsort((view.nodes, view.since_s))
    for kind in range(counts.shape[1]):
        ours = order[view.gpu_type[order] == kind]
        for j in trainer_order:
            mine = ours[holder[ours] == j]
            holder[mine[int(counts[j, kind]) :]] = NO_TRAINER
        free = ours[holder[ours] == NO_TRAINER]
        first = 0
        for j in trainer_order:
            more = int(counts[j, kind]) - int((holder[ours] == j).sum())
            holder[free[first : first + max(0, more)]] = j
            first += max(0, more)
    return holder
