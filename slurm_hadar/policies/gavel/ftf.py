"""Gavel's finish-time fairness: the worst ratio of the finish time to that on an equal share.

Narayanan et al., OSDI 2020, section 4.2, after Themis (NSDI 2020); verified in its code
(finish_time_fairness_perf): min_X max_m (waited_m + left_m / sum_j T_mj X_mj) / (spent_m + left_m /
T_m(isolated)). isolated is X = N_j / (jobs x g_m) scaled to at most 1; spent_m is the time that the
work done so far would have taken on that share. As in that code, weights are ignored.

Solved by linear programmes: a bound rho gives each job a throughput that it needs; the programme
maximises the least ratio of throughput to need; the rho that the solution reaches is the next
bound. Each step is feasible and no worse than the one before.
"""

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import BoolArray, FloatArray, State, View
from slurm_hadar.policies.gavel.rounds import Memory, SharesProblem, decide_by, policy
from slurm_hadar.solvers.shares import max_min_shares

_MOST_STEPS = 12
_ENOUGH = 1e-3


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round."""
    return decide_by(view, state, _shares)


def _shares(problem: SharesProblem, memory: Memory) -> tuple[FloatArray, Memory]:
    isolated, alone = _isolated(problem)
    able = alone > 0
    spent = np.zeros(len(problem.ids))
    for row, id_ in enumerate(problem.ids):
        if id_ in memory:
            before, left, speed = memory[id_]
            spent[row] = before + max(0.0, left - float(problem.left[row])) / max(speed, 1e-12)
    kept: Memory = {
        id_: [float(spent[row]), float(problem.left[row]), float(alone[row])]
        for row, id_ in enumerate(problem.ids)
    }
    if not able.any():
        return isolated, kept
    fair = np.where(able, spent + problem.left / np.where(able, alone, 1.0), np.inf)
    share, rho = isolated, _worst(problem, isolated, fair, able)
    for _ in range(_MOST_STEPS):
        slack = np.maximum(rho * fair - problem.waited_s, 1e-9)
        need = np.where(able, problem.left / slack, 1.0)
        gain = np.where(able[:, None], problem.rate / np.maximum(need, 1e-12)[:, None], 0.0)
        found = max_min_shares(gain, problem.gpus, problem.capacity).share
        reached = _worst(problem, found, fair, able)
        if not reached < rho:
            break
        done = reached > rho * (1.0 - _ENOUGH)
        share, rho = found, reached
        if done:
            break
    return share, kept


def _isolated(problem: SharesProblem) -> tuple[FloatArray, FloatArray]:
    """(J, R) an equal share of the cluster for each job, and (J,) its throughput in samples/s."""
    part = problem.capacity[None, :] / max(1, len(problem.ids)) / problem.gpus[:, None]
    part = part / np.maximum(part.sum(axis=1), 1.0)[:, None]
    return part, (problem.rate * part).sum(axis=1)


def _worst(problem: SharesProblem, share: FloatArray, fair: FloatArray, able: BoolArray) -> float:
    speed = (problem.rate * share).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (problem.waited_s + problem.left / speed) / fair
    return float(np.where(able, ratio, 0.0).max())


POLICY = policy("gavel_ftf", decide, "the worst finish time against an equal part of the cluster")
