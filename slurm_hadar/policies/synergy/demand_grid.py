"""The CPUs and memory of each job: at best, and as its fair share.

The fair share of a GPU is its part of the CPUs and memory of the nodes of its type, at most what
the job requests, and within what the job allows. The floor of a job is its rate with its fair
share. All values are per GPU; CPUs are integer per job, memory in integer MB.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.traits import CpuTrait
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, View

SAME = 1e-9
"""Rates that differ by less are equal."""


@dataclass(frozen=True)
class DemandGrid:
    """K jobs, each on GPUs of one type; P candidates for CPUs and M for memory."""

    cpus: FloatArray
    """(K, P) CPUs per GPU that the job could have, ascending."""
    mem: FloatArray
    """(K, M) memory per GPU in MB, ascending."""
    factor: FloatArray
    """(K, P, M) rate with these over the rate with what the job requests."""
    allowed: BoolArray
    """(K, P, M) not slower than the floor."""
    best: FloatArray
    """(K, 2) least CPUs and memory for the highest rate."""
    best_factor: FloatArray
    fair: FloatArray
    """(K, 2) least CPUs and memory, within the fair share, that keep the floor."""
    floor: FloatArray
    """(K,) factor with the fair share."""
    share: FloatArray
    """(K, 2) part of the node in proportion to GPUs, within what the job allows."""
    share_factor: FloatArray
    present: FloatArray
    """(K, 2) what a running job has now; 0: not running, or unknown."""
    present_factor: FloatArray
    """(K,) 0 if not running; -1 if unknown."""


def has_cpu_sensitivity(view: View) -> bool:
    """Whether the view has the CPU sensitivity of jobs and the CPUs and memory of nodes."""
    has = view.jobs.cpu_sensitivity is not None and len(view.jobs.ids) > 0
    return has and bool(view.nodes.cpus.any() and view.nodes.mem_mb.any())


def shares(view: View) -> FloatArray:
    """(R, 2) CPUs and MB per GPU of a type, over all nodes with such GPUs."""
    gpus = view.nodes.gpus
    total = gpus.sum(axis=1)
    part = gpus / np.maximum(total, 1)[:, None]
    have = np.stack([view.nodes.cpus, view.nodes.mem_mb]).astype(np.float64)
    number = np.maximum(gpus.sum(axis=0), 1)
    return np.asarray((have @ part / number).T)


def demand_grid(view: View, jobs: IntArray, kind: IntArray, gpus: IntArray) -> DemandGrid:
    """The arrays of the jobs in rows ``jobs`` (K,) on ``gpus`` (K,) GPUs of the types ``kind``
    (K,)."""
    trait = view.jobs.cpu_sensitivity
    asked = np.stack([view.jobs.cpus_per_gpu[jobs], view.jobs.mem_per_gpu_mb[jobs]], axis=1)
    if trait is None or not has_cpu_sensitivity(view):
        return _fixed(asked)
    part = trait.take(jobs)
    number = np.maximum(gpus, 1).astype(np.float64)[:, None]
    least = np.stack([part.least_cpus, part.least_mem_mb], axis=1)
    most = np.maximum(np.stack([part.most_cpus, part.most_mem_mb], axis=1), least)
    share = np.clip(_whole(shares(view)[kind], number), least, most)
    fair = np.where(asked > 0, np.minimum(share, np.maximum(asked, least)), share)
    cpus = _steps(part.cpus, least[:, :1], most[:, :1], number)
    mem = np.ceil(np.clip(part.mem_mb[None, :], least[:, 1:], most[:, 1:]) - SAME)
    # Both shares are candidates too, even between measured points.
    cpus = np.sort(np.concatenate([cpus, fair[:, :1], share[:, :1]], axis=1), axis=1)
    mem = np.sort(np.concatenate([mem, fair[:, 1:], share[:, 1:]], axis=1), axis=1)
    factor = _factors(part, cpus, mem)
    floor = _at(factor, cpus, mem, fair)
    peak = factor.max(axis=(1, 2))
    present = np.stack([part.present_cpus, part.present_mem_mb], axis=1)
    running = view.jobs.running[jobs]
    now = _factors(part, present[:, :1], present[:, 1:])[:, 0, 0]
    return DemandGrid(
        cpus=cpus,
        mem=mem,
        factor=factor,
        allowed=factor >= floor[:, None, None] - SAME,
        best=_cheapest(cpus, mem, factor >= peak[:, None, None] - SAME),
        best_factor=peak,
        fair=_cheapest(
            cpus,
            mem,
            (factor >= floor[:, None, None] - SAME)
            & (cpus[:, :, None] <= fair[:, :1, None] + SAME)
            & (mem[:, None, :] <= fair[:, 1:, None] + SAME),
        ),
        floor=floor,
        share=share,
        share_factor=_at(factor, cpus, mem, share),
        present=present,
        present_factor=np.where(running, np.where(_allowed(part, present), now, -1.0), 0.0),
    )


def _fixed(asked: FloatArray) -> DemandGrid:
    """Without CPU sensitivity each job has what it requests."""
    one = np.ones(len(asked))
    cells = np.ones((len(asked), 1, 1))
    return DemandGrid(
        cpus=asked[:, :1],
        mem=asked[:, 1:],
        factor=cells,
        allowed=cells > 0,
        best=asked,
        best_factor=one,
        fair=asked,
        floor=one,
        share=asked,
        share_factor=one,
        present=asked,
        present_factor=one,
    )


def _whole(share: FloatArray, gpus: FloatArray) -> FloatArray:
    """(K, 2) shares cut to whole CPUs of the job and whole MB."""
    cpus = np.floor(share[:, :1] * gpus + SAME) / gpus
    return np.concatenate([cpus, np.floor(share[:, 1:] + SAME)], axis=1)


def _steps(axis: FloatArray, least: FloatArray, most: FloatArray, gpus: FloatArray) -> FloatArray:
    """(K, P) the axis within the limits, in whole CPUs of the job."""
    wanted = np.clip(axis[None, :], least, most)
    up = np.ceil(wanted * gpus - SAME) / gpus
    down = np.floor(most * gpus + SAME) / gpus
    return np.where(up <= most + SAME, up, np.maximum(down, least))


def _allowed(part: CpuTrait, present: FloatArray) -> BoolArray:
    """(K,) whether the CPUs and memory of a running job are known and still within what its owner
    allows."""
    least = np.stack([part.least_cpus, part.least_mem_mb], axis=1)
    most = np.stack([part.most_cpus, part.most_mem_mb], axis=1)
    within = (least - SAME <= present) & (present <= most + SAME)
    return (present[:, 0] > 0) & within.all(axis=1)


def _factors(trait: CpuTrait, cpus: FloatArray, mem: FloatArray) -> FloatArray:
    """(K, P, M) bilinear interpolation; the nearest point outside of the axes."""
    rows = np.arange(len(cpus))[:, None]
    i, u = _place(trait.cpus, cpus)
    j, v = _place(trait.mem_mb, mem)
    k = np.minimum(i + 1, len(trait.cpus) - 1)
    m = np.minimum(j + 1, len(trait.mem_mb) - 1)
    grid = trait.factor
    along = grid[rows, i] * (1 - u)[:, :, None] + grid[rows, k] * u[:, :, None]
    every = rows[:, :, None], np.arange(cpus.shape[1])[None, :, None]
    low, high = along[(*every, j[:, None, :])], along[(*every, m[:, None, :])]
    return np.asarray(low * (1 - v)[:, None, :] + high * v[:, None, :])


def _place(axis: FloatArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    at = np.interp(values, axis, np.arange(len(axis), dtype=np.float64))
    whole = at.astype(np.int64)
    return whole, at - whole


def _at(factor: FloatArray, cpus: FloatArray, mem: FloatArray, point: FloatArray) -> FloatArray:
    """(K,) factor at a point that is among the candidates."""
    i = (np.abs(cpus - point[:, :1])).argmin(axis=1)
    j = (np.abs(mem - point[:, 1:])).argmin(axis=1)
    return np.asarray(factor[np.arange(len(factor)), i, j])


def _cheapest(cpus: FloatArray, mem: FloatArray, good: BoolArray) -> FloatArray:
    """(K, 2) the good point with the fewest CPUs, and of these with the least memory."""
    i = good.any(axis=2).argmax(axis=1)
    rows = np.arange(len(good))
    j = good[rows, i].argmax(axis=1)
    return np.stack([cpus[rows, i], mem[rows, j]], axis=1)
