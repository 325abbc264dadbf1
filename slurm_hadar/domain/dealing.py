"""Equal tasks dealt over unequal GPUs, several to a fast one."""

import heapq
from collections.abc import Sequence
from math import fsum, inf


def deal(speeds: Sequence[float], tasks: int) -> tuple[int, ...]:
    """How many of ``tasks`` equal tasks each of these gets, one after another, so that all are done
    as early as possible.

    ``speeds`` in tasks/s (only their ratios matter), 0: gets none. Each task goes where it is
    finished first, the earlier place at a tie: for equal tasks that is the optimum. Where no speed
    is above 0 no copy gets any.
    """
    together = fsum(speed for speed in speeds if speed > 0)
    counts = [_for_sure(speed, tasks, together) if speed > 0 else 0 for speed in speeds]
    queue = [
        ((counts[place] + 1) / speed, place) for place, speed in enumerate(speeds) if speed > 0
    ]
    heapq.heapify(queue)
    for _ in range(tasks - sum(counts) if queue else 0):
        _, place = queue[0]
        counts[place] += 1
        heapq.heapreplace(queue, ((counts[place] + 1) / speeds[place], place))
    return tuple(counts)


def _for_sure(speed: float, tasks: int, together: float) -> int:
    """Tasks that a place gets in any case, so that dealing takes as long for a million of them: all
    but less than one of its proportional part, and some less for the rounding."""
    if together == inf:
        return 0
    return max(0, int(tasks * (speed / together) * (1.0 - 1e-12)) - 2)


def seconds(speeds: Sequence[float], counts: Sequence[int]) -> float:
    """Time until the last of these tasks is done, s; 0 for no task."""
    return max(
        (count / speed for speed, count in zip(speeds, counts, strict=True) if count), default=0.0
    )


def dealt_rate(rates: Sequence[float], gpus: Sequence[int], tasks: int) -> float:
    """Samples/s of a job whose global batch is ``tasks`` equal tasks, dealt over these places.

    ``rates``: samples/s of the whole job alone on each place, which has ``gpus`` GPUs. Of a batch
    in time 1 / r a place does n tasks in n / (tasks r), but never in less than one task on each of
    its GPUs: a GPU without a task helps no other.
    """
    counts = deal(rates, tasks)
    slowest = max(
        (max(n, g) / r for n, g, r in zip(counts, gpus, rates, strict=True) if n), default=inf
    )
    return tasks / slowest
