"""On which node each job goes, all with their GPUs, CPUs and memory: a linear programme.

Synergy-OPT's second programme [V: from its code]: X_sj is the part of job j on server s, sum_s X_sj
= 1, and no server gives more than it has. There any feasible X will do; here a running job is worth
leaving where it is, and otherwise as few jobs as possible are cut in parts (a corner of the
programme has at most as many cut jobs as servers have scarce resources).
"""

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.solvers.programme import INFINITY, Programme, is_best

_SAFETY_NET_S = 30.0
"""Never met so far: the effort is bounded by the programme's size."""
_STAY = 1.0
_NEAR = 1e-3


def places(use: FloatArray, capacity: FloatArray, open_: BoolArray, now: IntArray) -> IntArray:
    """(J,) node that has the whole job, or the largest part of it; -1 where it has no place.

    ``use`` (J, K) of K resources, ``capacity`` (N, K), ``open_`` (J, N) nodes that the job may
    use, ``now`` (J,) where it is, -1 for nowhere. A job that cannot have a place as a whole gets
    one in part.
    """
    jobs, nodes = open_.shape
    kinds = capacity.shape[1]
    job, node = np.nonzero(open_)
    none: IntArray = np.full(jobs, -1, dtype=np.int64)
    if not len(job):
        return none
    size = len(job)
    rows = jobs + node[:, None] * kinds + np.arange(kinds)
    scaled = use[job] / np.maximum(capacity[node], 1e-9)
    solver = Programme(
        # A whole job is worth much more than one that stays; early nodes a little more than late
        # ones.
        cost=10.0 + _STAY * (now[job] == node) - _NEAR * node / max(1, nodes),
        most=np.ones(size),
        low=np.full(jobs + nodes * kinds, -INFINITY),
        high=np.ones(jobs + nodes * kinds),
        index=np.concatenate([job[:, None], rows], axis=1),
        value=np.concatenate([np.ones((size, 1)), scaled], axis=1),
    ).solve(time_limit=_SAFETY_NET_S)
    if not is_best(solver):
        return none
    part = np.zeros((jobs, nodes))
    part[job, node] = np.array(solver.getSolution().col_value)
    found: IntArray = np.where(part.max(axis=1) > 1e-6, part.argmax(axis=1), -1)
    return found
