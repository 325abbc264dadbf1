"""Whether a job was overtaken: a later one in Slurm's order got GPUs that it could have used.

A later job may start first where the earlier one cannot start: backfill fills such gaps, and that
is no overtaking. So a start counts only where, at that moment, the GPUs that the later job got and
those that were free beside them made up the whole request of the earlier one, as its owner wrote
it, whichever of Slurm's schedulers it was. A gap has an end too: where a third job, before both of
them, waits for the same node, backfill may start there what has a shorter time limit than the
earlier job. Nodes have CPUs and memory in plenty; GPUs decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.optin.records import Attempt, JobRecord, Look, RunRecord, Waiting

SETTLE_S = 2.0
"""So long Slurm may take to see that a job has come or that a GPU was freed."""
FREED_S = 0.1
"""So long slurmctld takes at most to learn that a job's node is free: it asks slurmd."""
CYCLE_S = 1.0
"""Starts that lie closer together are of one pass through the queue: no job waited for it."""
_TOGETHER_S = 0.05
"""Starts of one pass are milliseconds apart."""


@dataclass(frozen=True, slots=True)
class Overtaking:
    """``later`` started on ``node`` at ``at_s`` where ``earlier`` could have started, which waited
    ``more_s`` longer. ``by``: the scheduler; ``listed``: whether the earlier job's own list of
    partitions had that node then. If not, hbatch or the controller had taken the type out of it."""

    earlier: str
    later: str
    at_s: float
    node: str
    by: str
    more_s: float
    listed: bool


def overtakings(run: RunRecord) -> list[Overtaking]:
    """All of a run, in the order of time."""
    jobs = run.by_name()
    starts = sorted(
        ((attempt, job) for job in run.jobs for attempt in job.attempts),
        key=lambda pair: pair[0].start_s,
    )
    found = []
    for attempt, later in starts:
        look = before(run.looks, attempt.start_s)
        if look is None:
            continue
        known = _row(look, later.name)
        sooner = before(run.looks, look.at_s)
        if known is None and sooner is not None and _row(sooner, later.name) is not None:
            # squeue answers after the time that is written down: here the job had started by then.
            look, known = sooner, _row(sooner, later.name)
        own = place(known) if known else (-later.priority, later.number)
        for row in look.waiting:
            earlier = jobs.get(row.name)
            if earlier is None or row.name == later.name or place(row) >= own:
                continue
            again = _next_start(earlier, attempt.start_s)
            if again is None or again - attempt.start_s <= CYCLE_S:
                continue
            if max(row.eligible_s, earlier.submit_s) > attempt.start_s - SETTLE_S:
                continue
            if _in_a_gap(run, look, row, attempt, (earlier, later)):
                continue
            if _fits(run, earlier, attempt, later):
                listed = attempt.node in on_nodes(run, row.partitions)
                more = again - attempt.start_s
                found.append(
                    Overtaking(
                        earlier.name, later.name, attempt.start_s, attempt.node, attempt.by,
                        round(more, 3), listed,
                    )
                )  # fmt: skip
    return found


def before(looks: Sequence[Look], at_s: float) -> Look | None:
    """The last look before that time."""
    found = None
    for look in looks:
        if look.at_s >= at_s:
            break
        found = look
    return found


def usable(run: RunRecord, job: JobRecord, node: str) -> bool:
    """Whether the job's owner asked for something that this node has."""
    kind, gpus = run.nodes[node]
    return (
        node in on_nodes(run, job.partitions)
        and job.gpu_type in ("", kind)
        and (not job.types or kind in job.types)
        and job.gpus <= gpus
    )


def _row(look: Look, name: str) -> Waiting | None:
    return next((row for row in look.waiting if row.name == name), None)


def place(row: Waiting) -> tuple[int, int]:
    """Slurm's order: the priority, then the number."""
    return -row.priority, row.number


def _next_start(job: JobRecord, at_s: float) -> float | None:
    """When a job starts that waits at that time; None for one that runs, or is over."""
    if any(one.start_s <= at_s < one.end_s for one in job.attempts):
        return None
    return min((one.start_s for one in job.attempts if one.start_s > at_s), default=None)


def _in_a_gap(
    run: RunRecord, look: Look, row: Waiting, started: Attempt, pair: tuple[JobRecord, JobRecord]
) -> bool:
    """Whether backfill started the later job of the pair in a gap before a third one, which is too
    short for the earlier job of the pair."""
    earlier, later = pair
    if started.by != "backfill" or earlier.limit_s <= later.limit_s:
        return False
    jobs = run.by_name()
    ahead = (jobs[one.name] for one in look.waiting if place(one) < place(row))
    return any(usable(run, job, started.node) for job in ahead)


def _fits(run: RunRecord, job: JobRecord, started: Attempt, later: JobRecord) -> bool:
    """Whether the job's whole request was free on the node where another one started."""
    if not usable(run, job, started.node):
        return False
    used = sum(
        one.gpus
        for other in run.jobs
        for one in other.attempts
        if other.name != later.name
        and one.node == started.node
        and one.start_s <= started.start_s < one.end_s + SETTLE_S
    )
    return run.nodes[started.node][1] - used >= job.gpus


def types_beside(run: RunRecord, job: JobRecord) -> set[str]:
    """The other GPU types that its owner accepts and on which a node had the GPUs for it when it
    first started: those that start within :data:`_TOGETHER_S` do so in the order of the queue."""
    start = job.attempts[0]
    free = {node: gpus for node, (_, gpus) in run.nodes.items() if usable(run, job, node)}
    for other in run.jobs:
        sooner = (-other.priority, other.number) < (-job.priority, job.number)
        until_s = start.start_s + (_TOGETHER_S if sooner else -_TOGETHER_S)
        for one in other.attempts if other is not job else ():
            if one.node in free and one.start_s < until_s and start.start_s < one.end_s + FREED_S:
                free[one.node] -= one.gpus
    kinds = {run.nodes[node][0] for node, gpus in free.items() if gpus >= job.gpus}
    return kinds - {run.nodes[start.node][0]}


def on_nodes(run: RunRecord, partitions: Sequence[str]) -> set[str]:
    """The nodes of these partitions."""
    return {node for name in partitions for node in run.partitions.get(name, ())}
