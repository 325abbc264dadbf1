"""Workloads and policies for the simulator's tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.workload import Workload

Decide = Callable[[View, State], tuple[Plan, State]]


def work(
    rate: ArrayLike,
    total: float | Sequence[float] = 1000.0,
    arrival: ArrayLike = 0.0,
    counts: Sequence[int] = (1,),
    types: Sequence[str] = ("fast", "slow"),
    most_nodes: int = 100,
) -> Workload:
    """Jobs j0, j1, ... by their rate (J, R, C)."""
    rates = np.array(rate, dtype=np.float64)
    jobs = len(rates)
    return Workload(
        name="pretend",
        types=tuple(types),
        counts=tuple(counts),
        ids=tuple(f"j{row}" for row in range(jobs)),
        arrival_s=np.broadcast_to(np.array(arrival, dtype=float), (jobs,)).copy(),
        request=np.array([counts[(row > 0).any(axis=0).argmax()] for row in rates]),
        total=np.broadcast_to(np.array(total, dtype=float), (jobs,)).copy(),
        rate=rates,
        weight=np.ones(jobs),
        models=("",) * jobs,
        max_nodes=np.full(jobs, most_nodes),
        cpus_per_gpu=np.full(jobs, 2.0),
        mem_per_gpu_mb=np.full(jobs, 1000.0),
        lines=tuple(range(2, jobs + 2)),
    )


def machines(text: str = "fast=1,slow=1", per_node: str = "4", per_rack: int = 0) -> VirtualCluster:
    return cluster.parse(text, per_node, per_rack)


def scripted(script: Mapping[float, Mapping[str, Placement]]) -> Decide:
    """Does what stands under the last time that has passed; jobs that are gone are left out."""

    def decide(view: View, state: State) -> tuple[Plan, State]:
        due = max(at for at in script if at <= view.now)
        here = {id_: p for id_, p in script[due].items() if id_ in view.jobs.ids}
        return Plan(here, dict.fromkeys(set(view.jobs.ids) - set(here), "waits")), state

    return decide


def on(kind: str, count: int = 1, **more: Any) -> Placement:
    return Placement(gpus={kind: count}, **more)
