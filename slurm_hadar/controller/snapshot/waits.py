"""When a waiting job would start on each GPU type, as far as is known.

All pending jobs are placed in Slurm's order, each on the GPUs that are released first for it. A job
of one node has its GPUs on one node, on which it fits.
"""

from collections.abc import Collection, Mapping
from math import inf, isfinite

import numpy as np

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob, placed
from slurm_hadar.controller.snapshot.empty_nodes import EmptyNodes, Names
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.declaration import ANY, SLOWEST
from slurm_hadar.domain.job import UNTYPED, Job, JobState
from slurm_hadar.domain.view import BoolArray, IntArray
from slurm_hadar.scheduling.twin import LIMIT_SHARE

_UNKNOWN_S = 4 * 3600.0
"""Run time assumed of a job without a time limit, s."""

Pools = dict[str, list[float]]
"""GPU type -> when each of its GPUs is released, s from now, rising."""


def expected_waits(
    observation: Observation, snapshot: Snapshot, empty: EmptyNodes | None = None
) -> dict[str, dict[str, float]]:
    """Waiting job of ours -> GPU type -> seconds until it would start there; inf: never.

    ``empty``: those of this tick, where they are known already.
    """
    return _in_order(observation, snapshot, empty or EmptyNodes(observation))[0]


def pools_behind(observation: Observation, snapshot: Snapshot) -> Pools:
    """When each GPU is released for a job behind all that wait."""
    return _in_order(observation, snapshot, EmptyNodes(observation))[1]


class _Kind:
    """The GPUs of one type: when each is released, s from now; inf where a node has no more."""

    def __init__(self, nodes: Mapping[str, list[float]]) -> None:
        self._names = list(nodes)
        self.at_s = np.full((len(nodes), max(map(len, nodes.values()), default=0)), inf)
        for row, times in enumerate(nodes.values()):
            self.at_s[row, : len(times)] = sorted(times)
        self._masks: dict[Names, BoolArray] = {}

    def begin(self, count: int, nodes: int, inside: Names) -> tuple[float, IntArray]:
        """When ``count`` GPUs on each of so many ``nodes`` are free, those within ``inside``, and
        the rows of these nodes."""
        none = np.zeros(0, dtype=np.int64)
        if not 0 < count <= self.at_s.shape[1]:
            return inf, none
        if inside not in self._masks:
            self._masks[inside] = np.array([name in inside for name in self._names], bool)
        column = np.where(self._masks[inside], self.at_s[:, count - 1], inf)
        if nodes == 1:
            row = int(column.argmin())
            return float(column[row]), np.array([row])
        if nodes > len(column):
            return inf, none
        rows = np.argpartition(column, nodes - 1)[:nodes]
        return float(column[rows].max()), rows

    def begin_anywhere(self, count: int) -> float:
        """When ``count`` GPUs are free, wherever they are."""
        times = self.at_s.ravel()
        if not 0 < count <= len(times):
            return inf
        return float(np.partition(times, count - 1)[count - 1])

    def take(self, count: int, rows: IntArray, until_s: float) -> None:
        """``count`` GPUs of each of these nodes are in use until then."""
        self.at_s[rows, :count] = until_s
        self.at_s[rows] = np.sort(self.at_s[rows], axis=1)

    def take_anywhere(self, count: int, until_s: float) -> None:
        """The ``count`` GPUs that are free first are in use until then."""
        places = np.argpartition(self.at_s, count - 1, axis=None)[:count]
        self.at_s.flat[places] = until_s
        self.at_s.sort(axis=1)


class _Reach:
    """The nodes and the GPU types of partitions; all of them where Slurm does not show one."""

    def __init__(self, observation: Observation) -> None:
        self._seen = observation
        self._found: dict[tuple[str, ...], tuple[Names, Names]] = {}
        self._within: dict[tuple[Names, tuple[str, ...]], Names] = {}

    def within(self, nodes: Names, partitions: tuple[str, ...]) -> Names:
        """Those of ``nodes`` that are in these partitions; for thousands of jobs the same object,
        whose hash is known."""
        if (nodes, partitions) not in self._within:
            self._within[nodes, partitions] = nodes & self.nodes(partitions)
        return self._within[nodes, partitions]

    def nodes(self, partitions: tuple[str, ...]) -> Names:
        """The nodes on which a job of these partitions may start."""
        return self._of(partitions)[0]

    def types(self, partitions: tuple[str, ...]) -> Names:
        """The GPU types of these nodes."""
        return self._of(partitions)[1]

    def _of(self, partitions: tuple[str, ...]) -> tuple[Names, Names]:
        if partitions not in self._found:
            known = self._seen.partitions
            all_shown = bool(partitions) and known.keys() >= set(partitions)
            of = [known[name].nodes for name in partitions] if all_shown else [self._seen.nodes]
            nodes = frozenset(name for some in of for name in some)
            shown = nodes & self._seen.nodes.keys()
            types = frozenset(kind for name in shown for kind in self._seen.nodes[name].gpus)
            self._found[partitions] = nodes, types
        return self._found[partitions]


def _in_order(
    observation: Observation, snapshot: Snapshot, empty: EmptyNodes
) -> tuple[dict[str, dict[str, float]], Pools]:
    """All waiting jobs placed in Slurm's order: when each managed one would start by type, s from
    now, and when each GPU is free behind them all."""
    by_node = _released(observation)
    kinds = {kind: _Kind(nodes) for kind, nodes in by_node.items()}
    found: dict[str, dict[str, float]] = {}
    waiting = [
        job
        for job in observation.jobs.values()
        if job.may_start_at(observation.now) and pending_demand.competes_for_gpus(job, observation)
    ]
    waiting.sort(key=lambda job: pending_demand.queue_key(job, observation))
    reach = _Reach(observation)
    for job in waiting:
        target = snapshot.schedulable.get(job.id)
        if target is not None:
            count, times = target.request.count, run_times(target, snapshot)
            nodes = target.request.nodes if target.request.form == "node" else 0
            nodes = nodes or int(target.request.most_nodes == 1)
            named = target.request.partitions or job.partitions
            inside = reach.within(empty.fitting(target), named)
        else:
            count, times = ordinary(job, by_node)
            nodes = job.node_count if job.request.per_node else 0
            named, inside = job.partitions, reach.nodes(job.partitions)
        times = {kind: length for kind, length in times.items() if kind in reach.types(named)}
        each = -(-count // max(nodes, 1))
        at = {
            kind: kinds[kind].begin(each, nodes, inside)
            if nodes
            else (kinds[kind].begin_anywhere(count), None)
            for kind in times
            if kind in kinds
        }
        starts = {kind: start for kind, (start, _) in at.items()}
        if target is not None and not target.starting:
            found[job.id] = starts
        ends = {kind: start + times[kind] for kind, start in starts.items()}
        # What a job that tells nothing gets is whatever is free first.
        rank = starts
        if target is not None:
            # It is not expected on a type that its list of partitions leaves out.
            slow = far_slower(
                target, snapshot, [kind for kind in starts if starts[kind] < inf], observation
            )
            rank = {kind: end for kind, end in ends.items() if kind not in slow}
        kind = min(rank, key=lambda one: rank[one], default="")
        if kind and ends[kind] < inf:
            rows = at[kind][1]
            if rows is None:
                kinds[kind].take_anywhere(count, ends[kind])
            else:
                kinds[kind].take(each, rows, ends[kind])
    pools = {kind: np.sort(one.at_s[one.at_s < inf]).tolist() for kind, one in kinds.items()}
    return found, pools


def run_times(target: SchedulableJob, snapshot: Snapshot) -> dict[str, float]:
    """GPU type -> seconds that the job's work takes on it with the GPUs that it asks for; without
    the types that it may not have."""
    view, id_ = snapshot.view, target.job.id
    if id_ not in view.jobs.rows or target.request.count not in view.counts:
        return {}
    row, count = view.jobs.rows[id_], view.counts.index(target.request.count)
    left = float(view.jobs.left[row])
    rates = {kind: float(view.jobs.rate[row, i, count]) for i, kind in enumerate(view.types)}
    return {kind: left / rate for kind, rate in rates.items() if rate > 0}


def far_slower(
    target: SchedulableJob, snapshot: Snapshot, fits: Collection[str], observation: Observation
) -> frozenset[str]:
    """The GPU types that a job which named none leaves out: far slower than another one of those
    on which it ``fits``. One that may be moved keeps those that unmanaged jobs accept, and each
    keeps those of the list that it was submitted with: a tick would take it from a free GPU on
    which Slurm was about to start it."""
    job, declaration = target.job, target.job.declaration
    moves = declaration is not None and declaration.moves_later and job.requeue
    kept = snapshot.shared if moves else frozenset()
    names = target.request.partitions
    if len(names) > 1:
        kept |= {kind for name in names for kind in observation.gpu_types.get(name, ())}
    return frozenset(times_slower(target, snapshot, fits)) - kept


def times_slower(
    target: SchedulableJob, snapshot: Snapshot, fits: Collection[str]
) -> dict[str, float]:
    """GPU type -> how many times slower a job which named no type is on it than on the best one of
    those on which it ``fits``; of those that are far slower, inf where it cannot run."""
    view, job, declaration = snapshot.view, target.job, target.job.declaration
    if declaration is None or declaration.types != (ANY,) or job.id not in view.jobs.rows:
        return {}
    if target.request.count not in view.counts:
        return {}
    row, count = view.jobs.rows[job.id], view.counts.index(target.request.count)
    own = {kind: float(snapshot.own[row, at, count]) for at, kind in enumerate(view.types)}
    # What is slow beside a type on which it may not fit is not slow for this job.
    best = max((own[kind] for kind in fits if isfinite(own.get(kind, inf))), default=0.0)
    # A guess keeps no job from a free GPU.
    return {
        kind: best / rate if rate > 0 else inf
        for kind, rate in own.items()
        if rate * SLOWEST < best
    }


def released(observation: Observation) -> Pools:
    """When each GPU is free."""
    return {
        kind: sorted(at_s for times in nodes.values() for at_s in times)
        for kind, nodes in _released(observation).items()
    }


def _released(observation: Observation) -> dict[str, dict[str, list[float]]]:
    """GPU type -> node -> when each of its GPUs is released, s from now."""
    found: dict[str, dict[str, list[float]]] = {}

    def add(node: str, gpus: Mapping[str, int], at_s: float) -> None:
        for kind, count in gpus.items():
            times = found.setdefault(kind, {})
            if count > 0:
                times.setdefault(node, []).extend([at_s] * count)

    for node, gpus in observation.free_gpus.items():
        add(node, gpus, 0.0)
    for job in observation.jobs.values():
        if job.state is not JobState.RUNNING:
            continue
        left = _left_s(job, observation)
        for node, gpus in placed(job, observation.nodes).items():
            add(node, gpus, left)
    return found


def _left_s(job: Job, observation: Observation) -> float:
    """Seconds until a running job ends: by its work at the speed that it reports, else by its
    limit."""
    progress = observation.progress.get(job.id)
    total = job.declaration.total_samples if job.declaration else 0
    if progress is not None and progress.rate > 0 and total > progress.samples:
        return (total - progress.samples) / progress.rate
    whole = job.time_limit_s * LIMIT_SHARE if job.time_limit_s < inf else _UNKNOWN_S
    ran = observation.now - job.start_s
    # One that ran for longer already ends any time until its limit.
    return max(whole - ran, min(job.time_limit_s - ran, ran) / 2, 0.0)


def ordinary(job: Job, pools: Mapping[str, object]) -> tuple[int, dict[str, float]]:
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
