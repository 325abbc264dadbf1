"""What jobs that are not ours hold, and what they are about to take.

Slurm starts a pending job by its priority. A plan that gave the same GPUs to a managed job of lower
priority would be vain at best, so such claims are set aside first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_hadar.controller.observed import Observed
from slurm_hadar.domain.job import UNTYPED, Job, JobState

_WAITS_FOR_GPUS = frozenset({"", "None", "Priority", "Resources", "ReqNodeNotAvail"})

Free = dict[str, dict[str, int]]
"""node -> GPU type -> GPUs free now."""


@dataclass(frozen=True, slots=True)
class Claim:
    """GPUs that a pending job outside our management will get before anybody below it."""

    job: str
    priority: int
    gpus: Mapping[str, Mapping[str, int]]
    """node -> type -> count."""


def free_now(seen: Observed) -> Free:
    """GPUs that are idle on usable nodes outside reservations."""
    closed = reserved_nodes(seen)
    return {
        node.name: {
            kind: max(0, count - node.gpus_used.get(kind, 0)) for kind, count in node.gpus.items()
        }
        for node in seen.nodes.values()
        if node.usable and node.name not in closed
    }


def reserved_nodes(seen: Observed, horizon_s: float = 600.0) -> set[str]:
    """Nodes under a reservation that is active, or begins within ``horizon_s``."""
    return {
        node
        for reservation in seen.reservations
        if reservation.start_s <= seen.now + horizon_s and reservation.end_s > seen.now
        for node in reservation.nodes
    }


def outsiders(seen: Observed, ours: Iterable[str]) -> list[Job]:
    """Pending jobs outside our management that Slurm would start as soon as GPUs are free.

    Highest priority first.
    """
    skip = set(ours)
    waiting = [
        job
        for job in seen.jobs.values()
        if job.state is JobState.PENDING
        and job.id not in skip
        and not job.held
        and job.priority > 0
        and job.start_s <= max(seen.now, job.eligible_s)
        and job.eligible_s <= seen.now
        and job.reason.split(",")[0] in _WAITS_FOR_GPUS
        and not job.reservation
    ]
    return sorted(waiting, key=lambda job: -job.priority)


def claim(job: Job, seen: Observed, free: Free) -> Claim | None:
    """Set a pending job's GPUs aside in ``free``; None when it would not fit now.

    A job that does not fit is left to Slurm: its backfill keeps what that job needs from jobs that
    would delay it, and we never raise a priority.
    """
    request = job.request
    per_node = dict(request.per_node) or {
        kind: -(-count // max(1, job.node_count))
        for kind, count in (request.per_job or request.per_task).items()
    }
    if not per_node:
        return None
    taken: dict[str, dict[str, int]] = {}
    for name, gpus in free.items():
        node = seen.nodes[name]
        if not set(node.partitions) & set(job.partitions) or name in job.excluded_nodes:
            continue
        if job.required_nodes and name not in job.required_nodes:
            continue
        got = _take(per_node, gpus)
        if got is not None:
            taken[name] = got
            if len(taken) >= max(1, job.node_count):
                break
    if len(taken) < max(1, job.node_count):
        return None
    for name, got in taken.items():
        for kind, count in got.items():
            free[name][kind] -= count
    return Claim(job.id, job.priority, taken)


def _take(per_node: Mapping[str, int], free: Mapping[str, int]) -> dict[str, int] | None:
    got: dict[str, int] = {}
    for kind, count in per_node.items():
        left = count
        for name in [kind] if kind != UNTYPED else list(free):
            part = min(left, free.get(name, 0) - got.get(name, 0))
            if part > 0:
                got[name] = got.get(name, 0) + part
                left -= part
        if left:
            return None
    return got
