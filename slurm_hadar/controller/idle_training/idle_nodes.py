"""Which nodes are idle, and which of these another job is about to take.

A job on idle nodes gives way to every other job (Slurm preempts it), so to all others it is as if
it were not there.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import placed
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Node
from slurm_hadar.domain.placement import Placement


def on_idle_nodes(observation: Observation, config: Config) -> list[Job]:
    """Jobs that opted in to train on idle nodes, in one of the site's partitions for that."""
    ours = set(config.backfill.partitions)
    if not ours:
        return []
    return [
        job
        for job in observation.jobs.values()
        if job.managed
        and job.declaration is not None
        and job.declaration.backfill
        and job.partitions
        and set(job.partitions) <= ours
        and job.state is not JobState.FINISHED
    ]


def without(observation: Observation, jobs: Iterable[Job]) -> Observation:
    """The cluster as it would be if these jobs gave way."""
    gone = {job.id: job for job in jobs}
    if not gone:
        return observation
    nodes = dict(observation.nodes)
    for job in gone.values():
        held = placed(job, observation.nodes) if job.state is JobState.RUNNING else {}
        for name, gpus in held.items():
            nodes[name] = _freed(nodes[name], gpus, job, len(held))
    left = {id_: job for id_, job in observation.jobs.items() if id_ not in gone}
    return replace(observation, jobs=left, nodes=nodes)


def _freed(node: Node, gpus: Mapping[str, int], job: Job, parts: int) -> Node:
    used = {kind: max(0, count - gpus.get(kind, 0)) for kind, count in node.gpus_used.items()}
    return replace(
        node,
        gpus_used=used,
        cpus_used=max(0, node.cpus_used - -(-job.cpus // parts)),
        memory_used_mb=max(0, node.memory_used_mb - pending_demand.memory_mb(job) // parts),
    )


def idle(others: Observation, config: Config) -> list[str]:
    """Whole nodes on which only jobs that give way have anything, in the site's order.

    ``others``: the cluster without those. Not among them are nodes that are drained, down, asleep
    (nothing should wake them for this) or reserved within ten minutes.
    """
    partitions = {
        name
        for name in config.backfill.partitions
        if name in others.partitions and others.partitions[name].up
    }
    closed = others.reserved_nodes()
    return [
        node.name
        for node in others.nodes.values()
        if node.usable
        and node.gpus
        and node.name not in closed
        and partitions & set(node.partitions)
        and not any(node.gpus_used.values())
        and not node.cpus_used
        and not node.asleep
    ]


def about_to_be_taken(
    others: Observation,
    free_first: Collection[str],
    config: Config,
    placements: Iterable[Placement] = (),
) -> Mapping[str, str]:
    """Nodes that pending jobs will get within ``backfill.margin_s``, with the reason.

    ``placements``: where this tick moves jobs on ordinary nodes.
    ``free_first``: nodes that Slurm can give without stopping a job; it takes those first.
    """
    now = pending_demand.free_now(others)
    order = sorted(now, key=lambda name: name not in free_first)
    free = {name: now[name] for name in order if any(now[name].values())}
    taken: dict[str, str] = {}

    def note(names: Iterable[str], why: str) -> None:
        for name in names:
            taken.setdefault(name, why)
            if not any(free[name].values()):
                # Full nodes need not be looked at again: queues are long.
                del free[name]

    for placement in placements:
        before = {name: sum(gpus.values()) for name, gpus in free.items()}
        pending_demand.set_aside(placement.gpus, list(placement.nodes) or list(free), free)
        fewer = [name for name, count in before.items() if sum(free[name].values()) < count]
        note(fewer, "a managed job is placed there")
    for job in _soon(others, config.backfill.margin_s):
        if not free:
            break
        claim = pending_demand.pending_demand(job, others, free)
        if claim is None and job.start_s > others.now:
            claim = pending_demand.pending_demand(job, others, free, partly=True)
        if claim is not None:
            note(claim.gpus, f"pending job {job.id} is about to start there")
    return MappingProxyType(taken)


def _soon(others: Observation, margin_s: float) -> list[Job]:
    """Pending jobs that Slurm may start, or expects to start, within the margin; first to go
    first."""
    end = others.now + margin_s
    waiting = [
        job
        for job in others.jobs.values()
        if job.may_start_at(end)
        and job.start_s <= end
        and pending_demand.competes_for_gpus(job, others)
        and not job.reservation
        and not job.dependency
    ]
    return sorted(waiting, key=lambda job: pending_demand.queue_key(job, others))
