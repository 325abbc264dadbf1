"""Fairness by account: who got the GPU-hours, and by how much its jobs were slowed down."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray

MOST = 20
"""Accounts that are listed, by GPU-hours; the rest is listed as one."""
REST = "(others)"


@dataclass(frozen=True, slots=True)
class Share:
    """One account. ``slowdown``: the mean of its jobs' time in the system over the time that they
    ran when they were recorded; 1: no job waited."""

    account: str
    jobs: int
    gpu_h: float
    mean_jct_h: float
    slowdown: float


def shares(
    accounts: Sequence[str], jct_s: FloatArray, run_s: FloatArray, gpu_s: FloatArray
) -> list[Share]:
    """By account, most GPU-hours first; (J,) arrays, jobs with a nan time left out."""
    known = np.isfinite(jct_s)
    names = np.array(accounts, dtype=object)
    hours = {name: float(gpu_s[known & (names == name)].sum()) for name in dict.fromkeys(accounts)}
    ranked = sorted(hours, key=lambda name: (-hours[name], name))
    if len(ranked) > MOST:
        names = np.where(np.isin(names, ranked[: MOST - 1]), names, REST)
        ranked = [*ranked[: MOST - 1], REST]
    found = []
    for name in ranked:
        mine = known & (names == name)
        if mine.any():
            slow = jct_s[mine] / np.maximum(run_s[mine], 1.0)
            found.append(
                Share(
                    account=name,
                    jobs=int(mine.sum()),
                    gpu_h=float(gpu_s[mine].sum()) / 3600.0,
                    mean_jct_h=float(jct_s[mine].mean()) / 3600.0,
                    slowdown=float(slow.mean()),
                )
            )
    return found


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 where all are equal, 1/n where one has everything (Jain, Chiu and Hawe,
    DEC-TR-301, 1984; recalled). nan for none."""
    each = np.array(values)
    if not len(each) or not each.any():
        return float("nan")
    return float(each.sum() ** 2 / (len(each) * (each**2).sum()))
