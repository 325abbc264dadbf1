"""What another batch is worth: goodput, and the batch that each job trains best with."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.traits import BatchTrait
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, JobArrays, View

_LEAST_GAIN = 0.05
"""Part by which another batch must be better before a running job is restarted for it."""


def chooses(batches: BatchTrait) -> BoolArray:
    """(J,) whether there is anything to choose."""
    found: BoolArray = (batches.base > 0) & (batches.sizes > 0).any(axis=1)
    return found


def sizes_of(jobs: JobArrays) -> IntArray:
    """(J, B) batches that may be chosen; one column of 0 where nothing is known of batches."""
    if jobs.batches is None:
        return np.zeros((len(jobs.ids), 1), dtype=np.int64)
    found: IntArray = np.where(chooses(jobs.batches)[:, None], jobs.batches.sizes, 0)
    return found


def goodput_of(jobs: JobArrays, most: IntArray | None = None) -> FloatArray:
    """(J, R, C, B) samples at the declared batch that a second is worth; 0: not so.

    ``most`` (J,): no larger batch than that, but for the declared and the present one. Jobs
    without a choice have their rate in the first column.
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
    # Nothing but the declared batch may be known to be possible on some type and count.
    bare = free[:, None, None] & (jobs.rate > 0) & ~(good > 0).any(axis=3)
    base = _index(batches.sizes, batches.base)
    rows, kinds, columns = np.nonzero(bare)
    good[rows, kinds, columns, base[rows]] = jobs.rate[rows, kinds, columns]
    good[~free, :, :, 0] = jobs.rate[~free]
    return good


def present_index(jobs: JobArrays) -> IntArray:
    """(J,) column of the batch that a job has: the present, else the declared one."""
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
    """The same view with the rate of each type and count at its best batch, counted in samples at
    the declared batch: what a policy that knows no batches may plan with."""
    if view.jobs.batches is None:
        return view
    return replace(view, jobs=replace(view.jobs, rate=goodput_of(view.jobs).max(axis=3)))


def with_batches(view: View, plan: Plan) -> Plan:
    """The plan with the best batch in each placement.

    A running job that stays on its type and count keeps its batch, unless another is better by
    more than a restart costs it.
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
    """(B,) goodput on these GPUs; of a mix the slowest type's."""
    count = sum(gpus.values())
    if count not in view.counts:
        return np.zeros(good.shape[2])
    column = view.counts.index(count)
    found: FloatArray = good[[view.types.index(kind) for kind in gpus], column].min(axis=0)
    return found


def chosen_batch(
    placement: Placement, sizes: IntArray, good: FloatArray, batch: int, base: int
) -> Placement:
    """The placement with a batch, and as text what it brings against the batch ``base``."""
    words = f"batch {int(sizes[batch])}"
    if batch != base and good[base] > 0:
        words += f", worth {good[batch] / good[base]:.2f} times batch {int(sizes[base])}"
    return replace(
        placement, batch=int(sizes[batch]), reason=f"{placement.reason}; {words}".strip("; ")
    )
