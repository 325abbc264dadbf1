"""From what Slurm shows to what a policy sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from slurm_hadar.config import Config
from slurm_hadar.controller import claims
from slurm_hadar.controller.access import allowed_partitions
from slurm_hadar.controller.constraints import OpaqueConstraint, met
from slurm_hadar.controller.observed import Observed
from slurm_hadar.controller.request import Wanted, wanted
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, Job, JobState
from slurm_hadar.domain.view import JobArrays, NodeArrays, View
from slurm_hadar.profiles.rates import Rates

_FIRST_GUESS_RESTART_S = 30.0
_SLOWEST = 1e-3
"""samples/s assumed where a job runs although no rate is known to be possible."""

_UNKNOWN_WORK_S = 4 * 3600.0
"""Assumed run time of a job that declares no amount of work and has no shorter time limit."""

_STUCK = ("QOS", "Assoc", "Dependency", "Licenses", "PartitionTimeLimit")


@dataclass(frozen=True)
class Target:
    """A managed job that takes part in this round."""

    job: Job
    wanted: Wanted
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """node -> type -> GPUs, where it runs or was told to start; empty where it waits."""
    starting: bool = False


@dataclass(frozen=True)
class Picture:
    """The view, the jobs behind its rows, and the managed jobs left out of it, with the reason."""

    view: View
    targets: Mapping[str, Target]
    left_out: Mapping[str, str]


def picture(
    seen: Observed,
    config: Config,
    rates: Rates,
    attained: Mapping[str, float],
    moving: Mapping[str, Mapping[str, Mapping[str, int]]],
    last_moves: Mapping[str, float],
) -> Picture:
    """Build the view of this round.

    ``moving``: jobs in the middle of a move -> where they are going; they keep that place.
    ``last_moves``: job -> time of its last move, s.
    """
    targets, left_out = _targets(seen, config, moving)
    jobs = list(targets.values())
    kinds = tuple(sorted({k for n in seen.nodes.values() for k in n.gpus if k != UNTYPED}))
    groups = _Groups(seen)
    nodes = _node_arrays(seen, jobs, kinds, groups)
    counts = tuple(sorted({c for t in jobs for c in t.wanted.counts} | {1}))
    arrays = _job_arrays(
        seen, config, rates, attained, moving, last_moves, jobs, kinds, counts, nodes, groups
    )
    view = View(
        now=seen.now,
        round_s=config.controller.round_s,
        seed=0,
        types=kinds,
        counts=counts,
        nodes=nodes,
        jobs=arrays,
        options={"gain_over_cost": config.guards.gain_over_cost, **config.controller.options},
    )
    return Picture(view, targets, left_out)


def profile_key(job: Job) -> str:
    """Name under which a job's speed is kept: its declared model, else its own name."""
    declaration = job.declaration or Declaration()
    return declaration.model or "~" + "".join(c if c.isalnum() else "_" for c in job.name[:60])


def batch_of(job: Job) -> int | None:
    """The declared global batch, the least of a range; None where it was not declared."""
    return job.declaration.batch[0] if job.declaration and job.declaration.batch else None


def placed(job: Job, seen: Observed) -> dict[str, dict[str, int]]:
    """GPUs that a running job holds, with untyped ones named by their node's type."""
    held: dict[str, dict[str, int]] = {}
    for name, gpus in job.gpus.items():
        node = seen.nodes.get(name)
        if node is None:
            continue
        only = next((kind for kind in node.gpus if kind != UNTYPED), "")
        row = held.setdefault(name, {})
        for kind, count in gpus.items():
            row[kind or only] = row.get(kind or only, 0) + count
    return held


def _targets(
    seen: Observed, config: Config, moving: Mapping[str, Mapping[str, Mapping[str, int]]]
) -> tuple[dict[str, Target], dict[str, str]]:
    targets: dict[str, Target] = {}
    left_out: dict[str, str] = {}
    starting: list[tuple[Job, Wanted]] = []
    for job in seen.jobs.values():
        if not job.managed or job.state in (JobState.FINISHED, JobState.COMPLETING):
            continue
        steered = seen.steered(job.id)
        want = _why_not(job, seen) or wanted(job, steered)
        if isinstance(want, str):
            left_out[job.id] = want
        elif job.id in moving:
            targets[job.id] = Target(job, want, moving[job.id], starting=True)
        elif job.state is JobState.RUNNING:
            targets[job.id] = Target(job, want, placed(job, seen))
        elif _told_to_start(job, seen, config):
            starting.append((job, want))
        else:
            targets[job.id] = Target(job, want)
    free = claims.free_now(seen)
    for job, want in starting:
        place = _expected(seen, job.id, free)
        targets[job.id] = Target(job, want, place, starting=bool(place))
    return targets, left_out


def _why_not(job: Job, seen: Observed) -> str:
    if job.state is JobState.UNKNOWN or job.state is JobState.SUSPENDED:
        return f"its state is {job.slurm_state}"
    if job.state is JobState.PENDING:
        if job.held:
            return "it is held by its owner or an admin"
        if job.dependency and job.reason.startswith("Depend"):
            return "it waits for another job"
        if job.reason.startswith(_STUCK):
            return f"Slurm keeps it waiting: {job.reason}"
        ours = seen.steered(job.id).leased or bool(job.declaration and job.declaration.lease)
        if job.start_s > seen.now and not ours and job.restarts == 0:
            return "its owner set a begin time"
    return ""


def _told_to_start(job: Job, seen: Observed, config: Config) -> bool:
    steered = seen.steered(job.id)
    return (
        bool(steered.gpus)
        and not steered.leased
        and job.start_s <= seen.now + 1
        and seen.now - steered.time <= config.moving.commit_s
    )


def _expected(seen: Observed, job: str, free: claims.Free) -> dict[str, dict[str, int]]:
    """Where a job that was told to start will land: the planned nodes, else any with room."""
    steered = seen.steered(job)
    names = [*(n for n in steered.nodes if n in free), *(n for n in free if n not in steered.nodes)]
    place: dict[str, dict[str, int]] = {}
    for kind, count in steered.gpus.items():
        left = count
        for name in names:
            part = min(left, free[name].get(kind, 0) - place.get(name, {}).get(kind, 0))
            if part > 0:
                place.setdefault(name, {})[kind] = part
                left -= part
        if left:
            return {}
    for name, gpus in place.items():
        for kind, count in gpus.items():
            free[name][kind] -= count
    return place


class _Groups:
    """Nodes that differ in nothing that decides who may use them."""

    def __init__(self, seen: Observed) -> None:
        keys: dict[tuple[frozenset[str], frozenset[str]], int] = {}
        self.of_node: dict[str, int] = {}
        for node in seen.nodes.values():
            key = (frozenset(node.partitions), frozenset(node.features))
            self.of_node[node.name] = keys.setdefault(key, len(keys))
        self._keys = list(keys)
        self._masks: dict[tuple[tuple[str, ...], str], np.ndarray] = {}

    def mask(self, partitions: Sequence[str], constraint: str) -> np.ndarray:
        """(G,) groups open to jobs of these partitions under this constraint."""
        key = (tuple(partitions), constraint)
        if key not in self._masks:
            wanted_names = set(partitions)
            self._masks[key] = np.array(
                [
                    bool(wanted_names & names) and met(constraint, features)
                    for names, features in self._keys
                ],
                dtype=bool,
            )
        return self._masks[key]


def _node_arrays(
    seen: Observed, jobs: Sequence[Target], kinds: tuple[str, ...], groups: _Groups
) -> NodeArrays:
    nodes = [node for node in seen.nodes.values() if any(k in kinds for k in node.gpus)]
    index = {node.name: i for i, node in enumerate(nodes)}
    free = claims.free_now(seen)
    highest = max((t.job.priority for t in jobs if not t.held), default=0)
    ours = {target.job.id for target in jobs}
    for job in claims.outsiders(seen, ours):
        if job.priority > highest:
            claims.claim(job, seen, free)
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
        held = placed(target.job, seen)
        for name, row in held.items():
            i = index.get(name)
            if i is None:
                continue
            for kind, count in row.items():
                gpus[i, kinds.index(kind)] += count
            cpus[i] += -(-target.job.cpus // len(held))
            mem[i] += _memory_mb(target.job) // len(held)
    return NodeArrays(
        names=tuple(node.name for node in nodes),
        gpus=gpus,
        cpus=cpus,
        mem_mb=mem,
        group=np.array([groups.of_node[node.name] for node in nodes], dtype=np.int64),
        rack=np.zeros(len(nodes), dtype=np.int64),
    )


def _memory_mb(job: Job) -> int:
    return job.mem_per_node_mb * job.node_count or job.mem_per_cpu_mb * job.cpus


def _job_arrays(
    seen: Observed,
    config: Config,
    rates: Rates,
    attained: Mapping[str, float],
    moving: Mapping[str, Mapping[str, Mapping[str, int]]],
    last_moves: Mapping[str, float],
    targets: Sequence[Target],
    kinds: tuple[str, ...],
    counts: tuple[int, ...],
    nodes: NodeArrays,
    groups: _Groups,
) -> JobArrays:
    count = len(targets)
    jobs = [target.job for target in targets]
    rate, known = rates.rates_for(
        [(job.uid, profile_key(job), batch_of(job)) for job in jobs], kinds, counts
    )
    rate = np.where(_offered(config, targets, kinds, counts), rate, 0.0)
    done = np.array(
        [seen.progress[j.id].samples if j.id in seen.progress else 0 for j in jobs], float
    )
    total, limits = _totals(jobs, rate), np.array([job.time_limit_s for job in jobs], float)
    left = np.maximum(total - done, 1.0)
    restart = np.array([_restart_s(job, seen) for job in jobs], float)
    in_time = left[:, None, None] <= rate * np.maximum(limits - restart, 0.0)[:, None, None]
    declared = np.array([bool(j.declaration and j.declaration.total_samples) for j in jobs], bool)
    rate = np.where(in_time | ~declared[:, None, None], rate, 0.0)
    _keep_possible(rate, targets, kinds, counts)
    at = {name: i for i, name in enumerate(nodes.names)}
    held = [
        (row, at[name], kinds.index(kind), number)
        for row, target in enumerate(targets)
        for name, gpus in target.held.items()
        if name in at
        for kind, number in gpus.items()
        if kind in kinds
    ]
    steer = config.partitions.steer
    mask = np.zeros((count, max(groups.of_node.values(), default=0) + 1), dtype=bool)
    for row, target in enumerate(targets):
        want = target.wanted
        names = [
            p.name for p in allowed_partitions(target.job, want.partitions, seen.partitions, steer)
        ]
        try:
            mask[row] = groups.mask(names, want.constraint)
        except OpaqueConstraint:
            mask[row] = groups.mask(names, "")
    return JobArrays(
        ids=tuple(job.id for job in jobs),
        arrival_s=np.array([job.submit_s for job in jobs], float),
        weight=np.ones(count),
        priority=np.array([job.priority for job in jobs], float),
        total=total,
        left=left,
        rate=rate,
        known=known,
        running=np.array([bool(target.held) for target in targets], bool),
        movable=np.array(
            [_movable(t, seen, config, t.job.id in moving, last_moves) for t in targets], bool
        ),
        mixable=np.array([target.wanted.mixable for target in targets], bool),
        held=np.array(held, dtype=np.int64).reshape(-1, 4),
        since_s=np.array([t.job.start_s if t.held and not t.starting else 0.0 for t in targets]),
        restart_s=restart,
        attained=np.array([attained.get(job.id, 0.0) for job in jobs], float),
        cpus_per_gpu=np.array([t.job.cpus / max(1, t.wanted.count) for t in targets], float),
        mem_per_gpu_mb=np.array(
            [_memory_mb(t.job) / max(1, t.wanted.count) for t in targets], float
        ),
        groups=mask,
        max_nodes=np.array([target.wanted.most_nodes for target in targets], np.int64),
    )


def _offered(
    config: Config, targets: Sequence[Target], kinds: tuple[str, ...], counts: tuple[int, ...]
) -> np.ndarray:
    """(J, R, C) what the owner accepts: types, memory per GPU, counts."""
    memory = np.array(
        [config.gpu_types[k].memory_gb if k in config.gpu_types else 0 for k in kinds]
    )
    allowed = np.zeros((len(targets), len(kinds), len(counts)), dtype=bool)
    for row, target in enumerate(targets):
        want, least = target.wanted, (target.job.declaration or Declaration()).gpu_mem / 1024
        by_type = np.array([not want.types or kind in want.types for kind in kinds], bool)
        by_count = np.array([number in want.counts for number in counts], bool)
        allowed[row] = (by_type & (memory >= least))[:, None] & by_count[None, :]
    return allowed


def _keep_possible(
    rate: np.ndarray, targets: Sequence[Target], kinds: tuple[str, ...], counts: tuple[int, ...]
) -> None:
    """What a job runs on already is possible, whatever the tables say: no rate 0 there."""
    for row, target in enumerate(targets):
        number = sum(sum(gpus.values()) for gpus in target.held.values())
        for gpus in target.held.values():
            for kind in gpus:
                if kind in kinds and number in counts:
                    cell = (row, kinds.index(kind), counts.index(number))
                    rate[cell] = max(rate[cell], _SLOWEST)


def _totals(jobs: Sequence[Job], rate: np.ndarray) -> np.ndarray:
    """(J,) samples of each job; where not declared, what half its time limit would train."""
    totals = np.ones(len(jobs))
    for row, job in enumerate(jobs):
        declared = job.declaration.total_samples if job.declaration else 0
        if declared:
            totals[row] = declared
            continue
        possible = rate[row][rate[row] > 0]
        typical = float(np.median(possible)) if possible.size else 1.0
        limit = job.time_limit_s if job.time_limit_s < inf else _UNKNOWN_WORK_S
        totals[row] = typical * min(limit / 2, _UNKNOWN_WORK_S)
    return totals


def _restart_s(job: Job, seen: Observed) -> float:
    progress = seen.progress.get(job.id)
    if progress is not None and progress.restart_s is not None:
        return progress.restart_s
    declared = job.declaration.restart_cost if job.declaration else 0.0
    return declared or _FIRST_GUESS_RESTART_S


def _movable(
    target: Target, seen: Observed, config: Config, moving: bool, last_moves: Mapping[str, float]
) -> bool:
    job, declaration = target.job, target.job.declaration
    if job.state is not JobState.RUNNING or declaration is None or moving or target.starting:
        return not target.held
    settled = seen.now - max(job.start_s, last_moves.get(job.id, 0.0))
    return (
        declaration.checkpoint
        and not declaration.pin
        and job.requeue
        and settled >= config.guards.min_between_moves_s
        and seen.steered(job.id).moves < config.guards.max_moves_per_job
    )
