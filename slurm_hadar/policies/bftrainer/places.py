"""From node counts per trainer to nodes: old idle nodes for trainers on old nodes."""

import numpy as np

from slurm_hadar.domain.view import IntArray
from slurm_hadar.policies.bftrainer.records import NO_TRAINER, IdleView


def elders_first(view: IdleView) -> list[int]:
    """Trainers by the mean time since which their nodes are idle, oldest first; those without nodes
    last."""
    count = len(view.trainers)
    used = view.holder >= 0
    sums = np.bincount(view.holder[used], weights=view.since_s[used], minlength=count)
    held = view.counts()
    mean = np.where(held > 0, sums / np.maximum(held, 1), np.inf)
    return [int(j) for j in np.lexsort((np.arange(count), mean))]


def without_youngest(view: IdleView, most: IntArray) -> IntArray:
    """(I,) holders after each trainer gives up its youngest nodes above ``most`` (J,)."""
    holder = view.holder.copy()
    held = view.counts()
    for j in np.flatnonzero(held > most).tolist():
        mine = view.held(j)
        order = mine[np.lexsort((view.nodes[mine], view.since_s[mine]))]
        holder[order[int(most[j]) :]] = NO_TRAINER
    return holder


def oldest_to_oldest(view: IdleView, counts: IntArray, by_age: bool = True) -> IntArray:
    """(I,) holders with ``counts`` (J,) nodes each: shrinking trainers give up their youngest
    nodes, growing ones get free nodes in turn. ``by_age`` False: in the order of node numbers."""
    holder = without_youngest(view, counts)
    free = np.flatnonzero(holder == NO_TRAINER)
    if by_age:
        free = free[np.lexsort((view.nodes[free], view.since_s[free]))]
        trainer_order = elders_first(view)
    else:
        trainer_order = list(range(len(view.trainers)))
    held = np.bincount(holder[holder >= 0], minlength=len(view.trainers))
    first = 0
    for j in trainer_order:
        more = max(0, int(counts[j] - held[j]))
        holder[free[first : first + more]] = j
        first += more
    return holder
