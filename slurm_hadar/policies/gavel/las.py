"""Gavel's least attained service: max-min fairness with the throughput of each job on each type.

Narayanan et al., OSDI 2020, section 4.1; verified in its code (max_min_fairness_perf): max_X min_m
[ g_m / w_m x sum_j T_mj X_mj / (sum_j T_mj N_j / sum N) ] with g_m GPUs and weight w_m of job m,
T_mj its throughput on type j, N_j GPUs of the type. The round mechanism is in ``rounds.py``.
"""

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, State, View
from slurm_hadar.policies.gavel.rounds import Memory, SharesProblem, decide_by, policy
from slurm_hadar.solvers.shares import max_min_shares


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round."""
    return decide_by(view, state, _shares)


def _shares(problem: SharesProblem, memory: Memory) -> tuple[FloatArray, Memory]:
    everywhere = problem.rate @ problem.capacity / max(1, int(problem.capacity.sum()))
    weight = np.maximum(problem.weight, 1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = problem.rate * (problem.gpus / weight / everywhere)[:, None]
    gain = np.where(problem.rate > 0, gain, 0.0)
    return max_min_shares(gain, problem.gpus, problem.capacity).share, memory


POLICY = policy("gavel_las", decide, "max-min fairness that knows each type's speed")
