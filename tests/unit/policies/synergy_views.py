"""Servers as in Synergy's paper, and jobs with four kinds of curves."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.traits import CpuTrait
from slurm_hadar.domain.view import View
from slurm_hadar.testing import jobs_of, nodes_of, view_of

HUNGRY, LIGHT, MIDDLE, MEMORY = "hungry", "light", "middle", "memory"
CURVES = (HUNGRY, LIGHT, MIDDLE, MEMORY)
_CPUS, _MEM = (1.0, 3.0, 6.0, 12.0), (20.0, 60.0, 120.0)
_FACTORS = {
    HUNGRY: [[0.3] * 3, [1.0] * 3, [1.9] * 3, [3.0] * 3],
    LIGHT: [[1.0] * 3] * 4,
    MIDDLE: [[0.3] * 3, [1.0] * 3, [1.5] * 3, [1.5] * 3],
    MEMORY: [[0.1, 0.4, 0.4], [0.1, 1.0, 2.0], [0.1, 1.0, 2.0], [0.1, 1.0, 2.0]],
}


def servers(
    number: int,
    jobs: Sequence[tuple[str, int]],
    held: Sequence[tuple[int, int, int, int]] = (),
    present: Sequence[tuple[float, float]] | None = None,
    movable: Sequence[bool] | bool = True,
    left: float = 360_000.0,
    **options: object,
) -> View:
    """Servers of 8 GPUs, 24 CPUs and 480 MB, and jobs (curve, GPUs) that ask for their share."""
    counts = (1, 2, 4, 8)
    rate = np.zeros((len(jobs), 1, 4))
    for row, (_, gpus) in enumerate(jobs):
        rate[row, 0, counts.index(gpus)] = 1.0
    arrays = jobs_of(
        rate,
        held=held,
        movable=movable,
        left=left,
        cpus_per_gpu=3.0,
        mem_per_gpu_mb=60.0,
        max_nodes=4,
        arrival_s=[float(row) for row in range(len(jobs))],
    )
    now = np.array(present if present is not None else np.zeros((len(jobs), 2)), dtype=float)
    one = np.ones(len(jobs))
    trait = CpuTrait(
        np.array(_CPUS),
        np.array(_MEM),
        np.array([_FACTORS[curve] for curve, _ in jobs]).reshape(len(jobs), 4, 3),
        *(one, 24 * one, one, 480 * one),
        present_cpus=now.reshape(-1, 2)[:, 0],
        present_mem_mb=now.reshape(-1, 2)[:, 1],
    )
    nodes = nodes_of([[8]] * number, [24] * number, [480] * number)
    return view_of(nodes, replace(arrays, cpu_sensitivity=trait), counts, options)


def factor(view: View, row: int, placement: Placement) -> float:
    """Speed over that with the fair share."""
    trait = view.jobs.cpu_sensitivity
    assert trait is not None and placement.cpus_per_gpu is not None
    return trait.at(row, placement.cpus_per_gpu, placement.mem_per_gpu_mb or 0)


def given_cpus(plan: Plan, id_: str) -> tuple[float, float]:
    placement = plan.placements[id_]
    return placement.cpus_per_gpu or 0.0, placement.mem_per_gpu_mb or 0
