"""AlloX's choice of a type for each waiting gang: a matching of jobs to places in queues.

Le et al., AlloX, EuroSys 2020: the job that is the k-th from the end on a machine delays k jobs,
itself included, so it adds k times its length there to the sum of completion times, and a matching
of the least sum says machine and place (the cost k x p is verified in Gavel's AlloX). That is for
jobs of one GPU. For gangs (ours): a type counts as so many machines as gangs of the mean width fit
into it. A machine that is busy has its remaining time added (recalled; Gavel's looks at free
machines only). AlloX's filter for fairness is left out (its share is 1 for the least mean JCT).
"""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.matching import cheapest_matching

_CELLS = 1_500_000
"""Most pairs of a job and a place; with more, queues are taken to be shorter."""


def places(seconds: FloatArray, need: IntArray, when: Sequence[Sequence[float]]) -> IntArray:
    """(N, 2) type of each waiting job and its place from the end of a queue there, 1 the last.

    ``seconds`` (N, R) time left on a type, inf where the gang does not fit; ``need`` (N,) GPUs;
    ``when``: per type, rising, in how many seconds each of its GPUs is free.
    """
    jobs = len(need)
    kinds: list[int] = []
    delay: list[float] = []
    for kind, row in enumerate(when):
        fits = np.isfinite(seconds[:, kind])
        if not fits.any() or not len(row):
            continue
        width = float(need[fits].mean())
        machines = max(1, int(len(row) / width))
        kinds += [kind] * machines
        last = np.ceil(np.arange(1, machines + 1) * width).astype(np.int64)
        delay += [row[at] for at in np.clip(last, 1, len(row)) - 1]
    machine_type = np.array(kinds)
    most = int(np.clip(_CELLS // (jobs * len(kinds)), -(-jobs // len(kinds)), jobs))
    place = np.repeat(np.arange(1, most + 1), len(kinds))
    length = np.tile(seconds[:, machine_type], most)
    cost = length * place + np.tile(np.array(delay), most)
    finite = np.isfinite(cost)
    # Dearer than every other matching as a whole.
    cost[~finite] = (float(cost[finite].max(initial=0.0)) + 1.0) * (jobs + 1)
    column = cheapest_matching(cost)
    return np.stack([machine_type[column % len(kinds)], place[column]], axis=1)
