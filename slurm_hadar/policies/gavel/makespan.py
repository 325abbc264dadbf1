"""Gavel's shortest makespan: all present work ends as early as possible.

Narayanan et al., OSDI 2020, section 4.2 (minimize makespan); verified in its code
(min_total_duration_perf): sum_j T_mj X_mj >= left_m / T for a short T. With z = 1 / T the shortest
T is one linear programme. Gavel's code bisects an interval until its ends are within 5%, and takes
the solution of its interior-point solver there, the centre of the feasible shares at that T. Its
slack lets short jobs end earlier, so the same T is used here.
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
    gain = problem.rate / np.maximum(problem.left, 1e-9)[:, None]
    return max_min_shares(gain, problem.gpus, problem.capacity, _halved).share, memory


def _halved(best: float) -> float:
    """1 / T that Gavel's bisection finds if 1 / ``best`` is the shortest T, s."""
    low, high, most = 100.0, 1e6, 1e6
    shortest = 1.0 / (best * (1.0 - 1e-5))
    found = 0.0
    while not found:
        while 1.05 * low < high:
            middle = (low + high) / 2
            if middle >= shortest:
                found = high = middle
            else:
                low = middle
        if not found:
            low, high, most = most, most * 10, most * 10
    return 1.0 / found


POLICY = policy("gavel_makespan", decide, "all present work ends as early as it can")
