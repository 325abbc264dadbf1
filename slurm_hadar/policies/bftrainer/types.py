"""BFTrainer's map where the idle nodes have several GPU types: counts per type by HiGHS."""

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import IntArray
from slurm_hadar.policies.bftrainer.places import elders_first
from slurm_hadar.policies.bftrainer.records import NOBODY, IdleMap, IdleView
from slurm_hadar.solvers.typed_counts import TypedDemand, typed_counts


def decide_types(view: IdleView) -> IdleMap:
    """The best counts per type, old nodes kept first. Where HiGHS hits its limit, the best map it
    has, and at worst the present one; the notes say so. Raises UsageError when a trainer lacks
    the rates of a type."""
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
    solved = typed_counts(
        demands, nodes, view.ahead_s(), view.budget(), view.user_caps, view.time_limit_s
    )
    notes = () if solved.proven else ("the programme over GPU types hit its limit",)
    return IdleMap(_laid(view, solved.counts), notes)


def _laid(view: IdleView, counts: IntArray) -> IntArray:
    assert view.gpu_type is not None
    holder = view.holder.copy()
    turns = elders_first(view)
    order = np.lexsort((view.nodes, view.since_s))
    for kind in range(counts.shape[1]):
        ours = order[view.gpu_type[order] == kind]
        for j in turns:
            mine = ours[holder[ours] == j]
            holder[mine[int(counts[j, kind]) :]] = NOBODY
        free = ours[holder[ours] == NOBODY]
        first = 0
        for j in turns:
            more = int(counts[j, kind]) - int((holder[ours] == j).sum())
            holder[free[first : first + max(0, more)]] = j
            first += max(0, more)
    return holder
