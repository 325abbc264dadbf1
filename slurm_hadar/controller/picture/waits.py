"""When a waiting job would start on each GPU type, as far as can be told.

All pending jobs are placed in Slurm's order on the GPUs that are released first: rule 1 of the
prototype that the project's hints were measured with (recalled). Pools of a type are taken without
the borders of nodes.
"""

from bisect import insort
from collections.abc import Mapping
from math import inf

from slurm_hadar.controller.picture import claims
from slurm_hadar.controller.picture.targets import Target, placed
from slurm_hadar.controller.picture.viewing import Picture
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.domain.job import UNTYPED, Job, JobState
from slurm_hadar.scheduling.twin import LIMIT_SHARE

_UNKNOWN_S = 4 * 3600.0
"""Assumed where there is no limit."""

Pools = dict[str, list[float]]
"""GPU type -> when each of its GPUs is released, s from now, rising."""


def expected_waits(seen: Observed, picture: Picture) -> dict[str, dict[str, float]]:
    """Waiting job of ours -> GPU type -> seconds until it would start there; inf: never."""
    return _served(seen, picture)[0]


def pools_behind(seen: Observed, picture: Picture) -> Pools:
    """When each GPU is released for whoever comes behind all that wait."""
    return _served(seen, picture)[1]


def _served(seen: Observed, picture: Picture) -> tuple[dict[str, dict[str, float]], Pools]:
    pools = released(seen, picture)
    found: dict[str, dict[str, float]] = {}
    waiting = [
        job
        for job in seen.jobs.values()
        if job.state is JobState.PENDING and job.priority > 0 and not job.held
        if job.eligible_s <= seen.now and claims.in_turn(job)
    ]
    waiting.sort(key=lambda job: claims.rank(job, seen), reverse=True)
    for job in waiting:
        target = picture.targets.get(job.id)
        if target is not None:
            count, times = target.wanted.count, run_times(target, picture)
        else:
            count, times = ordinary(job, pools)
        starts = {kind: _start(pools[kind], count) for kind in times if kind in pools}
        if target is not None and not target.starting:
            found[job.id] = starts
        ends = {kind: start + times[kind] for kind, start in starts.items()}
        # What a job that tells nothing gets is whatever is free first.
        rank = ends if target is not None else starts
        kind = min(rank, key=lambda one: rank[one], default="")
        if kind and ends[kind] < inf:
            pool = pools[kind]
            del pool[:count]
            for _ in range(count):
                insort(pool, ends[kind])
    return found, pools


def run_times(target: Target, picture: Picture) -> dict[str, float]:
    """GPU type -> seconds that the job's work takes on it with the GPUs that it asks for; without
    the types that it may not have."""
    view, id_ = picture.view, target.job.id
    if id_ not in view.jobs.ids or target.wanted.count not in view.counts:
        return {}
    row, count = view.jobs.ids.index(id_), view.counts.index(target.wanted.count)
    left = float(view.jobs.left[row])
    rates = {kind: float(view.jobs.rate[row, i, count]) for i, kind in enumerate(view.types)}
    return {kind: left / rate for kind, rate in rates.items() if rate > 0}


def released(seen: Observed, picture: Picture) -> Pools:
    """When each GPU is free."""
    pools: Pools = {}
    for gpus in claims.free_now(seen).values():
        for kind, count in gpus.items():
            pools.setdefault(kind, []).extend([0.0] * count)
    for job in seen.jobs.values():
        if job.state is not JobState.RUNNING:
            continue
        left = _left_s(job, seen, picture)
        for gpus in placed(job, seen.nodes).values():
            for kind, count in gpus.items():
                pools.setdefault(kind, []).extend([left] * count)
    return {kind: sorted(times) for kind, times in pools.items()}


def _left_s(job: Job, seen: Observed, picture: Picture) -> float:
    """Seconds until a running job ends: by its work at the speed that it reports, else by its
    limit."""
    progress = seen.progress.get(job.id)
    total = job.declaration.total_samples if job.declaration else 0
    if progress is not None and progress.rate > 0 and total > progress.samples:
        return (total - progress.samples) / progress.rate
    whole = job.time_limit_s * LIMIT_SHARE if job.time_limit_s < inf else _UNKNOWN_S
    ran = seen.now - job.start_s
    # One that ran for longer already ends any time until its limit.
    return max(whole - ran, min(job.time_limit_s - ran, ran) / 2, 0.0)


def ordinary(job: Job, pools: Mapping[str, list[float]]) -> tuple[int, dict[str, float]]:
    """GPUs of a job of unknown work, and the seconds that it may run on each type."""
    length = job.time_limit_s * LIMIT_SHARE if job.time_limit_s < inf else _UNKNOWN_S
    gpus = job.request.gpus
    kinds = [kind for kind in gpus if kind != UNTYPED] or list(pools)
    return gpus_asked(job), dict.fromkeys(kinds if gpus else [], length)


def gpus_asked(job: Job) -> int:
    """GPUs of the whole job."""
    request = job.request
    times = job.node_count if request.per_node else job.tasks if request.per_task else 1
    return sum(request.gpus.values()) * times


def _start(pool: list[float], count: int) -> float:
    return pool[count - 1] if 0 < count <= len(pool) else inf
