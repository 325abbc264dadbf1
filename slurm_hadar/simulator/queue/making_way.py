"""Running jobs that are stopped for others, as the controller does under ``guards.preempt``: only
where what they leave goes to a job that the plan starts, in Slurm's order."""

from collections.abc import Collection, Iterable, Sequence

from slurm_hadar.domain.view import IntArray
from slurm_hadar.scheduling.slurm_schedulers import Waiting

AWAY_S = 121.0
"""A requeued job may not start for so long, so that its node can end it (cred_expire + 1 s)."""


def stopped(
    queue: Iterable[Waiting],
    newcomers: Collection[int],
    candidates: Sequence[int],
    held: IntArray,
    free: IntArray,
) -> list[int]:
    """Those of ``candidates`` that are stopped, in their order.

    ``queue``: who waits, in Slurm's order; ``newcomers``: those of them that the plan starts;
    ``held``: (J, R) GPUs of each job by type; ``free``: (R,) GPUs that no job has.
    """
    left = free + held[list(candidates)].sum(axis=0)
    needed = -free
    gains: set[int] = set()
    for one in queue:
        kind = next((kind for kind in one.kinds if one.count <= left[kind]), None)
        if kind is None:
            continue
        left[kind] -= one.count
        needed[kind] += one.count
        if one.job in newcomers:
            gains.add(kind)
    found = []
    for job in candidates:
        kinds = held[job].nonzero()[0].tolist()
        if any(kind in gains and needed[kind] > 0 for kind in kinds):
            needed = needed - held[job]
            found.append(job)
    return found
