"""Moves to a partition in which a job ahead waits: Slurm would start the moved job elsewhere.

When a job does not fit, Slurm's main scheduler starts no later job on the nodes of its partition in
that pass (``job_scheduler.c``: ``failed_parts``). A moved job that is requeued names its old
partition as well, and that is where it starts at once: it has lost its restart for nothing.
"""

from collections.abc import Sequence

from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import Place
from slurm_hadar.domain.job import Job


def blocking_job(job: Job, place: Place, waiting: Sequence[Job], seen: Observed) -> str:
    """The id of a job of ``waiting`` for which Slurm keeps the running ``job`` from ``place`` but
    not from the nodes that it has; "": none.

    ``waiting``: those that Slurm would start and that do not fit now, in its order. Where the old
    nodes are closed too, backfill chooses, and takes the first of the job's partitions.
    """
    blocked: dict[str, str] = {}
    for other in waiting:
        if not _is_ahead(other, job, seen):
            break
        for name in _closed(other, seen):
            blocked.setdefault(name, other.id)
    there = [blocked[name] for name in place if name in blocked and name not in job.gpus]
    return there[0] if there and not blocked.keys() >= job.gpus.keys() else ""


def _is_ahead(other: Job, job: Job, seen: Observed) -> bool:
    """Slurm's order once ``job`` is requeued: of equals the smaller number first."""
    if not seen.priority_returns:
        return True
    ranks = pending_demand.rank(other, seen), pending_demand.rank(job, seen)
    return ranks[0] > ranks[1] or (ranks[0] == ranks[1] and other.raw_id < job.raw_id)


def _closed(other: Job, seen: Observed) -> Sequence[str]:
    """The nodes on which no later job starts: those that it names, else all of its partitions."""
    if other.required_nodes:
        return other.required_nodes
    partitions = (seen.partitions[name] for name in other.partitions if name in seen.partitions)
    return [name for partition in partitions for name in partition.nodes]
