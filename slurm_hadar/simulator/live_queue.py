"""The queue of this moment as a workload, so that it can be run to its end under any policy."""

import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar import policies
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.domain.view import View
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.workload import Workload, doable


@dataclass(frozen=True, slots=True)
class QueueModel:
    """What a policy sees, as plain lists: J jobs, R types, C counts, N nodes. ``left`` in samples,
    ``rate`` (J, R, C) in samples/s, ``gpus`` (N, R)."""

    types: Sequence[str]
    counts: Sequence[int]
    ids: Sequence[str]
    left: Sequence[float]
    weight: Sequence[float]
    rate: Sequence[Sequence[Sequence[float]]]
    max_nodes: Sequence[int]
    copies: Sequence[int]
    tasks: Sequence[int]
    nodes: Sequence[str]
    gpus: Sequence[Sequence[int]]
    rack: Sequence[int]
    round_s: float


@dataclass(frozen=True, slots=True)
class QueueOutcome:
    """The queue under one policy. Times in h from now, means over the jobs that end;
    ``finish_h``: job -> when it ends, None where it never does; ``left_out``: jobs that fit nowhere
    now."""

    policy: str
    jobs: int
    finished: int
    mean_h: float | None
    p99_h: float | None
    last_h: float | None
    moves: int
    left_out: int
    finish_h: dict[str, float | None] = field(default_factory=dict)


def model_of(view: View) -> QueueModel:
    """The managed jobs of a view and what they may use."""
    jobs, nodes = view.jobs, view.nodes
    return QueueModel(
        types=view.types,
        counts=view.counts,
        ids=jobs.ids,
        left=jobs.left.tolist(),
        weight=jobs.weight.tolist(),
        rate=jobs.rate.tolist(),
        max_nodes=jobs.max_nodes.tolist(),
        copies=jobs.copies.tolist(),
        tasks=jobs.tasks.tolist(),
        nodes=nodes.names,
        gpus=nodes.gpus.tolist(),
        rack=nodes.rack.tolist(),
        round_s=view.round_s,
    )


def run(model: QueueModel, policy: str) -> QueueOutcome:
    """Run it to its end: all jobs begin at once, with the work that they have left, on an empty
    cluster. Raises UsageError for an unknown policy, and where no job can run."""
    decide = policies.get(policy)
    workload, cluster = _workload(model)
    found = simulate(
        workload, cluster, decide, RoundSetting(clock=Clock(model.round_s)), policy=policy
    )
    hours = found.finish_s / 3600.0
    ended = hours[~np.isnan(hours)]
    return QueueOutcome(
        policy=policy,
        jobs=len(workload.ids),
        finished=len(ended),
        mean_h=float(ended.mean()) if len(ended) else None,
        p99_h=float(np.percentile(ended, 99)) if len(ended) else None,
        last_h=float(ended.max()) if len(ended) else None,
        moves=int(found.moves.sum()),
        left_out=len(model.ids) - len(workload.ids),
        finish_h={
            id_: None if np.isnan(hour) else float(hour)
            for id_, hour in zip(workload.ids, hours.tolist(), strict=True)
        },
    )


def _workload(model: QueueModel) -> tuple[Workload, VirtualCluster]:
    gpus = np.array(model.gpus, dtype=np.int64).reshape(len(model.nodes), len(model.types))
    # A simulated node has one type: of several the one with the most GPUs.
    kept = np.zeros_like(gpus)
    if gpus.size:
        best = gpus.argmax(axis=1)
        kept[np.arange(len(gpus)), best] = gpus.max(axis=1)
    rows = np.flatnonzero(kept.sum(axis=1))
    cluster = VirtualCluster(
        tuple(model.types),
        tuple(model.nodes[row] for row in rows.tolist()),
        kept[rows],
        np.array(model.rack, dtype=np.int64)[rows],
    )
    number = len(model.ids)
    rate = np.array(model.rate, dtype=np.float64).reshape(
        number, len(model.types), len(model.counts)
    )
    counts = np.array(model.counts, dtype=np.int64)
    workload = Workload(
        name="the queue",
        types=tuple(model.types),
        counts=tuple(model.counts),
        ids=tuple(model.ids),
        arrival_s=np.zeros(number),
        request=counts[(rate > 0).any(axis=1).argmax(axis=1)] if number else counts[:0],
        total=np.array(model.left, dtype=np.float64),
        rate=rate,
        weight=np.array(model.weight, dtype=np.float64),
        models=("",) * number,
        max_nodes=np.array(model.max_nodes, dtype=np.int64),
        cpus_per_gpu=np.zeros(number),
        mem_per_gpu_mb=np.zeros(number),
        copies=np.array(model.copies, dtype=np.int64),
        tasks=np.array(model.tasks, dtype=np.int64),
    )
    if not number or not len(rows):
        raise UsageError("no managed job, or no GPU that one may use: nothing to simulate")
    able = doable(workload, cluster).any(axis=(1, 2)) & (workload.total > 0)
    if not able.any():
        raise UsageError("no managed job can run on the GPUs that are there: nothing to simulate")
    return workload.take(np.flatnonzero(able)), cluster


def main() -> int:
    """A model, the name of a policy and a limit on CPU time as JSON on stdin, the outcome as JSON
    on stdout. SIGXCPU ends the process at the limit."""
    from pydantic import TypeAdapter

    asked = json.load(sys.stdin)
    limit_s = int(asked["cpu_limit_s"])
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
    try:
        model = TypeAdapter(QueueModel).validate_python(asked["model"])
        found = run(model, str(asked["policy"]))
    except HadarError as error:
        print(f"{error}", file=sys.stderr)
        return error.exit_code
    sys.stdout.write(TypeAdapter(QueueOutcome).dump_json(found).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
