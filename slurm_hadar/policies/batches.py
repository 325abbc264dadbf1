"""The value of another batch size: goodput, and the batch with which each job trains best."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.traits import BatchTrait
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, JobArrays, View

_LEAST_GAIN = 0.05
"""A running job restarts for another batch only if that is better by this fraction."""


def chooses(batches: BatchTrait) -> BoolArray:
    """(J,) whether a job has batches to choose from."""
    found: BoolArray = (batches.base > 0) & (batches.sizes > 0).any(axis=1)
    return found


def sizes_of(jobs: JobArrays) -> IntArray:
    """(J, B) batches that may be chosen, in samples; a single column of 0 if the view has no
    batches."""
    if jobs.batches is None:
        return np.zeros((len(jobs.ids), 1), dtype=np.int64)
    found: IntArray = np.where(chooses(jobs.batches)[:, None], jobs.batches.sizes, 0)
    return found


def goodput_of(jobs: JobArrays, most: IntArray | None = None) -> FloatArray:
    """(J, R, C, B) goodput in samples/s at the declared batch; 0 where the job cannot run.

    ``most`` (J,): largest batch to consider, beside the declared and the present one. Jobs without
    a choice have their rate in the first column.
    """
    batches = jobs.batches
    if batches is None:
        return jobs.rate[..., None]
    free = chooses(batches)
    good = np.zeros(batches.rate.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        good[free] = np.nan_to_num(batches.take(np.flatnonzero(free)).goodput(), posinf=0.0)
    allowed = batches.sizes > 0
    if most is not None:
        mine = (batches.sizes == batches.base[:, None]) | (
            batches.sizes == batches.present[:, None]
        )
        allowed &= mine | (batches.sizes <= most[:, None])
    good *= allowed[:, None, None, :] & (jobs.rate > 0)[..., None]
    # On some types and counts only the declared batch may be known to work.
    bare = free[:, None, None] & (jobs.rate > 0) & ~(good > 0).any(axis=3)
    base = _index(batches.sizes, batches.base)
    rows, kinds, columns = np.nonzero(bare)
    good[rows, kinds, columns, base[rows]] = jobs.rate[rows, kinds, columns]
    good[~free, :, :, 0] = jobs.rate[~free]
    return good


def present_index(jobs: JobArrays) -> IntArray:
    """(J,) column of the batch that a job has now, or of the declared one."""
    if jobs.batches is None:
        return np.zeros(len(jobs.ids), dtype=np.int64)
    batches = jobs.batches
    own = np.where(batches.present > 0, batches.present, batches.base)
    return _index(batches.sizes, own)


def _index(sizes: IntArray, wanted: FloatArray | IntArray) -> IntArray:
    """(J,) column of the nearest size."""
    found: IntArray = np.abs(sizes - np.asarray(wanted)[:, None]).argmin(axis=1)
    return found


def best_batches(view: View) -> View:
    """The view with each rate at the best batch of that type and count, in samples at the declared
    batch, for policies that do not choose batches."""
    if view.jobs.batches is None:
        return view
    return replace(view, jobs=replace(view.jobs, rate=goodput_of(view.jobs).max(axis=3)))


def with_batches(view: View, plan: Plan) -> Plan:
    """The plan with the best batch in each placement.

    A running job that stays on its type and count keeps its batch unless another one gains more
    than the restart costs.
    """
    if view.jobs.batches is None:
        return plan
    jobs = view.jobs
    good, sizes, now = goodput_of(jobs), sizes_of(jobs), present_index(jobs)
    row = {id_: at for at, id_ in enumerate(jobs.ids)}
    held: dict[int, dict[str, int]] = {}
    for job, _, kind, count in jobs.held.tolist():
        gpus = held.setdefault(job, {})
        gpus[view.types[kind]] = gpus.get(view.types[kind], 0) + count
    placements = {}
    for id_, placement in plan.placements.items():
        job = row[id_]
        found = _slowest(view, good[job], placement.gpus)
        if placement.copies > 1 or not sizes[job].any() or not found.any():
            placements[id_] = placement
            continue
        best, mine = int(found.argmax()), int(now[job])
        stays = held.get(job) == dict(placement.gpus)
        if stays and (not jobs.movable[job] or not _pays(jobs, job, found, best, mine)):
            best = mine
        placements[id_] = chosen_batch(placement, sizes[job], found, best, mine)
    return replace(plan, placements=placements)


def _pays(jobs: JobArrays, job: int, good: FloatArray, best: int, mine: int) -> bool:
    if good[mine] <= 0 or good[best] < good[mine] * (1.0 + _LEAST_GAIN):
        return bool(good[mine] <= 0)
    saved = jobs.left[job] * (1.0 / good[mine] - 1.0 / good[best])
    return bool(saved > 2.0 * jobs.restart_s[job])


def _slowest(view: View, good: FloatArray, gpus: Mapping[str, int]) -> FloatArray:
    """(B,) goodput on these GPUs; on several types, that of the slowest."""
    count = sum(gpus.values())
    if count not in view.counts:
        return np.zeros(good.shape[2])
    column = view.counts.index(count)
    found: FloatArray = good[[view.types.index(kind) for kind in gpus], column].min(axis=0)
    return found


def chosen_batch(
    placement: Placement, sizes: IntArray, good: FloatArray, batch: int, base: int
) -> Placement:
    """The placement with a batch; its reason says what the batch gains over the batch at
    ``base``."""
    gain = f"batch {int(sizes[batch])}"
    if batch != base and good[base] > 0:
        gain += f", worth {good[batch] / good[base]:.2f} times batch {int(sizes[base])}"
    return replace(
        placement, batch=int(sizes[batch]), reason=f"{placement.reason}; {gain}".strip("; ")
    )
