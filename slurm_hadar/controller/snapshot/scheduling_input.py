"""The numbers of a view: nodes and jobs as arrays."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.controller.observation import racks
from slurm_hadar.controller.observation.access import allowed_partitions
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.observation.partition_access import open_to
from slurm_hadar.controller.snapshot import (
    at_risk,
    batch_choice,
    billing,
    chaining,
    cpus,
    distance,
    movability,
    pending_demand,
    reachable_counts,
)
from slurm_hadar.controller.snapshot.eligibility import (
    SchedulableJob,
    placed,
    profile_key,
    tasks_of,
)
from slurm_hadar.controller.snapshot.groups import Groups
from slurm_hadar.controller.snapshot.resource_request import (
    accepts,
    cpus_asked,
    cpus_per_copy,
    memory_asked_mb,
)
from slurm_hadar.controller.snapshot.sources import JobRates, Sources
from slurm_hadar.controller.snapshot.whole_nodes import need_of
from slurm_hadar.controller.snapshot.work import JobWork, work_of
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.traits import Prospects
from slurm_hadar.domain.view import (
    PRIORITIES,
    BoolArray,
    FloatArray,
    IntArray,
    JobArrays,
    NodeArrays,
)

_SLOWEST = 1e-3
"""samples/s assumed where a job runs although no rate is known to be possible."""


def node_arrays(
    observation: Observation, jobs: Sequence[SchedulableJob], kinds: tuple[str, ...], groups: Groups
) -> NodeArrays:
    """What managed jobs may use: what is free now, less the claims of pending jobs above all of
    ours, and what our own running jobs hold."""
    nodes = [node for node in observation.nodes.values() if any(k in kinds for k in node.gpus)]
    index = {node.name: i for i, node in enumerate(nodes)}
    free = pending_demand.free_now(observation)
    pending = [target.job for target in jobs if target.job.state is JobState.PENDING]
    highest = max((pending_demand.rank(job, observation) for job in pending), default=(0, 0))
    ours = {target.job.id for target in jobs}
    for job in pending_demand.unmanaged_jobs(observation, ours):
        if pending_demand.rank(job, observation) > highest:
            pending_demand.pending_demand(job, observation, free)
    gpus = np.zeros((len(nodes), len(kinds)), dtype=np.int64)
    cpus = np.array([max(0, n.cpus - n.cpus_used) if n.usable else 0 for n in nodes], np.int64)
    mem = np.array(
        [max(0, n.memory_mb - n.memory_used_mb) if n.usable else 0 for n in nodes], np.int64
    )
    for node in nodes:
        for kind, count in free.get(node.name, {}).items():
            if kind in kinds:
                gpus[index[node.name], kinds.index(kind)] = count
    for target in jobs:
        if target.job.state is not JobState.RUNNING:
            continue
        held = placed(target.job, observation.nodes)
        for name, row in held.items():
            i = index.get(name)
            if i is None:
                continue
            for kind, count in row.items():
                if kind in kinds:
                    gpus[i, kinds.index(kind)] += count
            part = -(-pending_demand.cpus(target.job) // len(held))
            cpus[i] += nodes[i].cpus if target.request.whole else part
            mem[i] += pending_demand.memory_mb(target.job) // len(held)
    found = NodeArrays(
        names=tuple(node.name for node in nodes),
        gpus=gpus,
        cpus=cpus,
        mem_mb=mem,
        group=np.array([groups.of_node[node.name] for node in nodes], dtype=np.int64),
        rack=racks.numbers(observation.racks, [node.name for node in nodes]),
    )
    return racks.with_whole(found, nodes, kinds) if observation.racks else found


def job_arrays(
    sources: Sources,
    targets: Sequence[SchedulableJob],
    speeds: JobRates,
    nodes: NodeArrays,
    groups: Groups,
) -> tuple[JobArrays, JobWork]:
    """One row per target, in order, and what is known of their work. ``speeds``: of their jobs."""
    observation, config, past = sources.observation, sources.config, sources.past
    kinds, counts, own = speeds.kinds, speeds.counts, speeds.own
    count = len(targets)
    jobs = [
        chaining.longest(target.job, config, past.chains.get(target.job.id, chaining.NONE))
        for target in targets
    ]
    mixable = [_mixable(target, observation) for target in targets]
    offered = _offered(config, targets, kinds, counts)
    open_now, open_some_day = _allowed_groups(targets, groups, sources)
    most = reachable_counts.most_gpus(
        open_some_day,
        offered.any(axis=2) & np.array(mixable, bool).reshape(-1, 1),
        targets,
        nodes,
        reachable_counts.node_sizes(observation.nodes, nodes, kinds),
    )
    offered = reachable_counts.without_larger(offered, most, counts)
    rate = np.where(offered, speeds.table, 0.0)
    # What strangers report of a model excludes no job from a type, and makes none a long one.
    sure = np.where(speeds.sure, own, 0.0)
    work = work_of(sources, jobs, rate, sure, speeds)
    limits = np.array([job.time_limit_s for job in jobs], float)
    restart, own_restart = _restarts(sources, jobs)
    copies = np.array([target.request.copies[1] for target in targets], np.int64)
    # What is too slow on one node may be in time in several copies, where there can be any.
    forks = policies.makes_copies(config.controller.policy)
    together = copies if forks else np.ones_like(copies)
    reach = np.clip(limits - own_restart, 0.0, 1e12) * together
    if sources.in_limit:
        in_time = _in_time(speeds, rate, work, reach) & (rate > 0)
        # One that saves goes on after its limit, by its owner's hand: no type is wrong for it.
        moves_later = [job.declaration is not None and job.declaration.moves_later for job in jobs]
        there = np.array(counts, np.int64) <= most[:, :, None]
        goes_on = np.array(moves_later, bool) & ~(in_time & there).any(axis=(1, 2))
        rate = np.where(in_time | goes_on[:, None, None], rate, 0.0)
        work = _up_to_the_limit(work, rate.max(axis=(1, 2), initial=0.0) * reach, goes_on)
    rate = np.where(billing.affordable(rate, targets, observation, kinds, counts), rate, 0.0)
    _keep_possible(rate, speeds.table, targets, kinds, counts)
    found = JobArrays(
        ids=tuple(job.id for job in jobs),
        arrival_s=np.array([past.arrival_s(job) for job in jobs], float),
        weight=np.ones(count),
        priority=np.array([_in_order(job, observation) for job in jobs], float),
        total=work.total,
        left=work.left,
        rate=rate,
        known=speeds.known,
        running=np.array([bool(target.held) for target in targets], bool),
        movable=np.array(
            [not movability.why_not(t, observation, config, past) for t in targets], bool
        ),
        mixable=np.array(mixable, bool),
        held=_held(targets, nodes, kinds),
        since_s=np.array([t.job.start_s if t.held and not t.starting else 0.0 for t in targets]),
        restart_s=restart,
        attained=work.attained,
        cpus_per_gpu=np.array([_cpus(t) / max(1, t.request.count) for t in targets], float),
        mem_per_gpu_mb=np.array([_mem_mb(t) / max(1, t.request.count) for t in targets], float),
        groups=open_now,
        max_nodes=np.array([target.request.most_nodes for target in targets], np.int64),
        end_known=~work.unknown,
        limit_s=np.array([_limit_s(target, observation.now) for target in targets], float),
        copies=copies,
        tasks=np.where(copies > 1, [tasks_of(job) for job in jobs], 1).astype(np.int64),
        owner=np.array([job.uid for job in jobs], np.int64),
        cpu_sensitivity=cpus.trait(targets, sources.rates.cpus, observation.nodes.values()),
        batches=batch_choice.trait(targets, sources, speeds, rate),
        network=distance.trait(observation, sources.rates, targets, kinds),
        prospects=_prospects(sources, targets, rate, speeds.error, work.unknown),
    )
    return found, work


def _limit_s(target: SchedulableJob, now: float) -> float:
    """Seconds until the time limit ends a running job; inf where it does not run yet."""
    job = target.job
    if not target.held or target.starting or job.start_s <= 0:
        return inf
    return max(0.0, job.start_s + job.time_limit_s - now)


def _restarts(sources: Sources, jobs: Sequence[Job]) -> tuple[FloatArray, FloatArray]:
    """(J,) s that a restart costs, and (J,) without what other jobs measured of restarts, which
    excludes no job from a type either."""
    observation, restarts = sources.observation, sources.past.restarts
    costs = [restarts.of(job, profile_key(job), observation.progress.get(job.id)) for job in jobs]
    again = np.array([done_again_s(job, observation) for job in jobs], float)
    every = np.array([cost.seconds for cost in costs], float) + again
    return every, np.array([cost.own_s for cost in costs], float) + again


def _in_time(speeds: JobRates, rate: FloatArray, work: JobWork, reach: FloatArray) -> BoolArray:
    """(J, R, C) whether a job may end within its limit. ``reach``: (J,) s that it has for it."""
    best = np.maximum(rate, np.where(rate > 0, speeds.own, 0.0))
    found: BoolArray = work.least_left[:, None, None] <= best * reach[:, None, None]
    return found | (~speeds.timed | work.unknown)[:, None, None]


def _up_to_the_limit(work: JobWork, most: FloatArray, cut: BoolArray) -> JobWork:
    """The work with no more left than ``most``, (J,) samples, of the jobs that are ``cut``: what a
    declaration says beyond that makes none more important."""
    left = np.where(cut, np.clip(work.left, 1.0, np.maximum(most, 1.0)), work.left)
    return replace(work, left=left, total=work.total - work.left + left)


def _held(targets: Sequence[SchedulableJob], nodes: NodeArrays, kinds: tuple[str, ...]) -> IntArray:
    """(H, 4) what the jobs hold, as in ``JobArrays.held``."""
    at = {name: i for i, name in enumerate(nodes.names)}
    rows = [
        (row, at[name], kinds.index(kind), number)
        for row, target in enumerate(targets)
        for name, gpus in target.held.items()
        if name in at
        for kind, number in gpus.items()
        if kind in kinds
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def _allowed_groups(
    targets: Sequence[SchedulableJob], groups: Groups, sources: Sources
) -> tuple[BoolArray, BoolArray]:
    """(J, G) the groups of nodes that each job may have now, and with those that only a reservation
    closes."""
    now, at_any_time = np.zeros((2, len(targets), groups.count), dtype=bool)
    for row, target in enumerate(targets):
        names = _partitions(target, sources.observation, sources.config)
        whole, constraint = need_of(target.job, target.request), target.request.constraint
        now[row] = groups.mask(target.job, names, constraint, whole)
        at_any_time[row] = groups.mask(target.job, names, constraint, whole, at_any_time=True)
    return now, at_any_time


def _prospects(
    sources: Sources,
    targets: Sequence[SchedulableJob],
    rate: FloatArray,
    error: FloatArray,
    work_unknown: BoolArray,
) -> Prospects:
    """``rate``, ``error``: (J, R, C). The runtime reports no first start, and another batch is a
    move today."""
    observation, config, past = sources.observation, sources.config, sources.past
    return Prospects(
        rate_error=np.where(rate > 0, error, np.nan),
        restarts=np.array([target.job.restarts for target in targets], np.int64),
        first_start_s=np.full(len(targets), np.nan),
        work_unknown=work_unknown,
        movable_from_s=np.array(
            [movability.movable_from_s(t, observation, config, past) for t in targets]
        ),
        batch_in_place=np.zeros(len(targets), dtype=bool),
    )


def _in_order(job: Job, observation: Observation) -> float:
    tier, priority = pending_demand.rank(job, observation)
    return tier * PRIORITIES + priority


def _partitions(target: SchedulableJob, observation: Observation, config: Config) -> list[str]:
    """Partitions whose nodes the job may have.

    Copies may be on nodes of several types, and a job runs in one partition: of several that are
    asked for copies get the largest.
    """
    asked = open_to(target.job, target.request.partitions, observation)
    same = config.partitions.groups
    if target.request.copies[1] > 1:
        up = [
            observation.partitions[p]
            for p in asked
            if p in observation.partitions and observation.partitions[p].up
        ]
        asked = tuple(p.name for p in sorted(up, key=lambda one: -len(one.nodes))[:1])
    return [p.name for p in allowed_partitions(target.job, asked, observation.partitions, same)]


def _mixable(target: SchedulableJob, observation: Observation) -> bool:
    """Whether it may have GPUs of several types: it runs in one partition, which must have them."""
    want = target.request
    return want.mixable and any(
        len(observation.gpu_types.get(name, ())) > 1 for name in want.partitions
    )


def _cpus(target: SchedulableJob) -> int:
    """CPUs of the job, of one copy where it may have several."""
    if target.request.copies[1] == 1:
        return min(cpus_asked(target.job), pending_demand.MOST)
    return min(cpus_per_copy(target.job), pending_demand.MOST)


def _mem_mb(target: SchedulableJob) -> int:
    """Memory of the job in MB, of one copy where it may have several."""
    job = target.job
    if target.request.copies[1] == 1:
        return min(memory_asked_mb(job), pending_demand.MOST)
    return min(job.mem_per_node_mb or job.mem_per_cpu_mb * cpus_per_copy(job), pending_demand.MOST)


def _offered(
    config: Config,
    targets: Sequence[SchedulableJob],
    kinds: tuple[str, ...],
    counts: tuple[int, ...],
) -> BoolArray:
    """(J, R, C) what the owner accepts: types, memory per GPU, counts."""
    allowed = np.zeros((len(targets), len(kinds), len(counts)), dtype=bool)
    for row, target in enumerate(targets):
        job, want = target.job, target.request
        by_type = np.array([accepts(job, want, kind, config) for kind in kinds], bool)
        by_count = np.array([number in want.counts for number in counts], bool)
        allowed[row] = by_type[:, None] & by_count[None, :]
        if target.request.whole:
            has = [target.request.by_type.get(kind, ()) for kind in kinds]
            allowed[row] &= np.array([[number in some for number in counts] for some in has], bool)
    return allowed


def _keep_possible(
    rate: FloatArray,
    table: FloatArray,
    targets: Sequence[SchedulableJob],
    kinds: tuple[str, ...],
    counts: tuple[int, ...],
) -> None:
    """What a job runs on already is possible, whatever its limits say: no rate 0 there."""
    for row, target in enumerate(targets):
        whole = sum(sum(gpus.values()) for gpus in target.held.values())
        for gpus in target.held.values():
            number = whole if target.request.copies[1] == 1 else sum(gpus.values())
            for kind in gpus:
                if kind in kinds and number in counts:
                    cell = (row, kinds.index(kind), counts.index(number))
                    rate[cell] = max(rate[cell], table[cell], _SLOWEST)


def done_again_s(job: Job, observation: Observation) -> float:
    """Seconds of work that a move now makes a running job do again, where that is known."""
    if job.state is not JobState.RUNNING:
        return 0.0
    again = at_risk.work_at_risk_s(job, observation.progress.get(job.id), observation.now)
    return again if again < np.inf else 0.0
