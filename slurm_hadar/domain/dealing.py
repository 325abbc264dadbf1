"""Equal tasks dealt over unequal GPUs, several to a fast one."""

import heapq
from collections.abc import Sequence


def deal(speeds: Sequence[float], tasks: int) -> tuple[int, ...]:
    """How many of ``tasks`` equal tasks each of these gets, one after another, so that all are done
    as early as possible.

    ``speeds`` in tasks/s (only their ratios matter), 0: gets none. Each task goes where it is
    finished first, the earlier place at a tie: for equal tasks that is the optimum. Where no speed
    is above 0 nobody gets any.
    """
    counts = [0] * len(speeds)
    queue = [(1.0 / speed, place) for place, speed in enumerate(speeds) if speed > 0]
    heapq.heapify(queue)
    for _ in range(tasks if queue else 0):
        _, place = queue[0]
        counts[place] += 1
        heapq.heapreplace(queue, ((counts[place] + 1) / speeds[place], place))
    return tuple(counts)


def seconds(speeds: Sequence[float], counts: Sequence[int]) -> float:
    """Time until the last of these tasks is done, s; 0 for no task."""
    return max(
        (count / speed for speed, count in zip(speeds, counts, strict=True) if count), default=0.0
    )
