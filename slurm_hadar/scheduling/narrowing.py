"""Whether a waiting job ends sooner where it waits for one GPU type than where it starts first.

Rule 4 of the prototype behind the project's hints, at theta 0: no job counts what it takes from
those behind it (recalled).
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TypeVar

_K = TypeVar("_K")


def worth_waiting(
    kinds: Sequence[_K],
    waits: Mapping[_K, float],
    times: Mapping[_K, float],
    longest_s: float,
    wanted_by_others: Callable[[_K], bool],
) -> tuple[_K, ...]:
    """``kinds`` without those on which the job would end later, even if it began there now, than on
    the one that it waits for, which then comes first. As they are where none is left out.

    ``waits``: s until it may start on each, those missing cannot be waited for; ``times``: s that
    it runs there; ``longest_s``: s that it may wait; ``wanted_by_others``: whether a job behind it
    that takes no part wants one. None is left out where it would wait for longer, or for one that
    others want.
    """
    ends = {kind: waits[kind] + times.get(kind, inf) for kind in kinds if kind in waits}
    best = min(ends, key=ends.__getitem__, default=None)
    if best is None or ends[best] == inf or waits[best] > longest_s or wanted_by_others(best):
        return tuple(kinds)
    kept = [kind for kind in kinds if times.get(kind, inf) <= ends[best]]
    if len(kept) == len(kinds):
        return tuple(kinds)
    return (best, *(kind for kind in kept if kind != best))
