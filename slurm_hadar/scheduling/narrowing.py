"""Whether a waiting job ends sooner if it waits for one GPU type than where it can start first.

Rule 4 of the prototype of the project's hints, at theta 0: a job does not count what it takes from
the jobs behind it (recalled).
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TypeVar

_K = TypeVar("_K")


def without_slower_types(
    kinds: Sequence[_K],
    waits: Mapping[_K, float],
    times: Mapping[_K, float],
    longest_s: float,
    wanted_by_others: Callable[[_K], bool],
) -> tuple[_K, ...]:
    """``kinds`` without those on which the job would end later, even if it started there now, than
    on the best type with its wait, which then comes first. Unchanged if none is left out.

    ``waits``: s until it may start on each; a type without an entry cannot be waited for.
    ``times``: run time there, s. ``longest_s``: longest wait, s. ``wanted_by_others``: whether a
    job behind it that takes no part wants the type. No type is left out if the wait would be
    longer than ``longest_s``, or for a type that others want.
    """
    ends = {kind: waits[kind] + times.get(kind, inf) for kind in kinds if kind in waits}
    best = min(ends, key=ends.__getitem__, default=None)
    if best is None or ends[best] == inf or waits[best] > longest_s or wanted_by_others(best):
        return tuple(kinds)
    kept = [kind for kind in kinds if times.get(kind, inf) <= ends[best]]
    if len(kept) == len(kinds):
        return tuple(kinds)
    return (best, *(kind for kind in kept if kind != best))
