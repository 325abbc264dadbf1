"""CPUs and memory that stay free on a node go to the jobs there that gain most by them. Ours."""

from collections.abc import Collection, Mapping

import numpy as np

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.policies.allocation import Need
from slurm_hadar.policies.synergy.demands import SAME
from slurm_hadar.policies.synergy.placing import Given, Placing

_SLACK = 1e-3


def hand_out(placing: Placing, options: Mapping[int, FloatArray], unit: FloatArray) -> None:
    """Raise jobs on one node, the largest gain per CPU and MB first.

    ``options``: job -> (O, 3) CPUs, MB and factor of what it may have. ``unit`` (2,): CPUs and MB
    that count alike, the fair share of a GPU.
    """
    for node in sorted({n for given in placing.given.values() for n in placing.nodes(given.parts)}):
        raise_on(placing, node, options, unit)


def raise_on(
    placing: Placing,
    node: int,
    options: Mapping[int, FloatArray],
    unit: FloatArray,
    moving: Collection[int] = (),
) -> None:
    """The same on one node. ``moving``: jobs that restart in any case."""
    while _raise_one(placing, node, options, unit, moving):
        pass


def _raise_one(
    placing: Placing,
    node: int,
    options: Mapping[int, FloatArray],
    unit: FloatArray,
    moving: Collection[int],
) -> bool:
    best: tuple[float, Given, FloatArray] | None = None
    for given in placing.on(node):
        points = options.get(given.wish.job)
        if points is None or given.fixed or len(given.parts) > 1:
            continue
        step = _step(placing, given, points, unit, given.wish.job in moving)
        if step is not None and (best is None or step[0] > best[0] + SAME):
            best = (step[0], given, step[1])
    if best is None:
        return False
    _, given, point = best
    cpus, mem, factor = (float(x) for x in point)
    placing.change(given, Need(round(cpus, 6), round(mem, 3)), factor)
    return True


def _step(
    placing: Placing, given: Given, points: FloatArray, unit: FloatArray, moving: bool
) -> tuple[float, FloatArray] | None:
    """The best raise of a job: gain per cost, and the point."""
    slot, count = given.parts[0]
    free = placing.room.beside(slot)
    more = points[:, :2] - (given.need.cpus, given.need.mem_mb)
    gain = points[:, 2] - given.factor
    fits = (count * more[:, 0] <= free[0] + _SLACK) & (count * more[:, 1] <= free[1] + _SLACK)
    fits &= gain > 1e-6
    if not fits.any():
        return None
    cost = count * np.maximum(more / unit, 0.0).sum(axis=1) + SAME
    ratio = np.where(fits, gain / cost, -1.0)
    at = int(ratio.argmax())
    if given.wish.own and given.need == given.wish.present and not moving:
        # A change of what it has now costs a restart.
        able = [n for n in np.flatnonzero(fits).tolist() if given.wish.pays(float(points[n, 2]))]
        if not able:
            return None
        at = max(able, key=lambda n: float(ratio[n]))
    return float(ratio[at]), points[at]
