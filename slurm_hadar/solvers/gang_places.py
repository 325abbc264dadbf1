"""The node of each job by GPUs, CPUs and memory of all of them: a linear programme.

Synergy-OPT's second programme [V: from its code]: X_sj is the part of job j on server s, sum_s X_sj
= 1, and no server gives more than it has. There any feasible X is accepted; here running jobs
prefer to stay, and otherwise as few jobs as possible are split (a vertex of the programme has at
most as many split jobs as servers have scarce resources).
"""

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.solvers.highs import INFINITY, is_best
from slurm_hadar.solvers.programme import Programme

_SAFETY_NET_S = 30.0
"""Time limit in s, never reached so far: the size of the programme bounds the effort."""
_STAY = 1.0
_NEAR = 1e-3


def places(use: FloatArray, capacity: FloatArray, open_: BoolArray, now: IntArray) -> IntArray:
    """(J,) node that has the whole job, or the largest part of it; -1 if it has none.

    ``use`` (J, K) of K resources, ``capacity`` (N, K), ``open_`` (J, N) nodes that the job may use,
    ``now`` (J,) its present node, -1 for none. A job that does not fit as a whole is placed in
    part.
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
        # Placing a job counts most, then staying; ties go to the first nodes.
        cost=10.0 + _STAY * (now[job] == node) - _NEAR * node / max(1, nodes),
        upper=np.ones(size),
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
