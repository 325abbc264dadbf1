"""Gavel's largest total throughput.

Narayanan et al., OSDI 2020, appendix (maximize total throughput); verified in its code
(max_sum_throughput_perf): max sum_mj T_mj X_mj with unscaled throughputs, so that jobs with many
samples/s come first. Not fair, by design.
"""

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, State, View
from slurm_hadar.policies.gavel.rounds import Memory, SharesProblem, decide_by, policy
from slurm_hadar.solvers.shares import max_total_shares


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round."""
    return decide_by(view, state, _shares)


def _shares(problem: SharesProblem, memory: Memory) -> tuple[FloatArray, Memory]:
    return max_total_shares(problem.rate, problem.gpus, problem.capacity).share, memory


POLICY = policy("gavel_throughput", decide, "the largest total throughput")
