"""On which node each job goes, all with their GPUs, CPUs and memory: a linear programme.

Synergy-OPT's second programme [V: from its code]: X_sj is the part of job j on server s, sum_s X_sj
= 1, and no server gives more than it has. There any feasible X will do; here a running job is worth
leaving where it is, and otherwise as few jobs as possible are cut in parts (a corner of the
programme has at most as many cut jobs as servers have scarce resources).
"""

import highspy
import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.solvers.quiet import new_solver

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
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = size, jobs + nodes * kinds
    lp.sense_ = highspy.ObjSense.kMaximize
    # A whole job is worth much more than one that stays; early nodes a little more than late ones.
    lp.col_cost_ = 10.0 + _STAY * (now[job] == node) - _NEAR * node / max(1, nodes)
    lp.col_lower_, lp.col_upper_ = np.zeros(size), np.ones(size)
    lp.row_lower_ = np.full(jobs + nodes * kinds, -highspy.kHighsInf)
    lp.row_upper_ = np.ones(jobs + nodes * kinds)
    scaled = use[job] / np.maximum(capacity[node], 1e-9)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = (np.arange(size + 1) * (kinds + 1)).astype(np.int32)
    rows = jobs + node[:, None] * kinds + np.arange(kinds)
    lp.a_matrix_.index_ = np.concatenate([job[:, None], rows], axis=1).ravel().astype(np.int32)
    lp.a_matrix_.value_ = np.concatenate([np.ones((size, 1)), scaled], axis=1).ravel()
    solver = new_solver()
    solver.setOptionValue("time_limit", _SAFETY_NET_S)
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return none
    part = np.zeros((jobs, nodes))
    part[job, node] = np.array(solver.getSolution().col_value)
    found: IntArray = np.where(part.max(axis=1) > 1e-6, part.argmax(axis=1), -1)
    return found
