"""Hare's offline schedule carried out as it was planned, with all jobs known in advance."""

import time

import numpy as np

from slurm_hadar.domain.view import IntArray
from slurm_hadar.simulator.tasks import TaskCosts, TaskJobs, TaskOutcome, check
from slurm_hadar.simulator.tasks_orders import round_jobs
from slurm_hadar.solvers.hare_list import Rule, list_schedule
from slurm_hadar.solvers.hare_relaxation import paper_order, relax


def run(jobs: TaskJobs, gpus: IntArray, rule: Rule, costs: TaskCosts, policy: str) -> TaskOutcome:
    """The list schedule in the paper's order. Raises UsageError for a job that can run nowhere.

    A GPU's tasks stay in the planned order, so it waits for a task that is not ready, as the proof
    of the bound has it; the switches cost time that the plan does not know.
    """
    check(jobs, gpus, gangs=False)
    began = time.perf_counter()
    known = round_jobs(jobs)
    order = paper_order(known, relax(known, gpus), gpus)
    plan = list_schedule(order, known, gpus, rule, costs.switch_s)
    busy_s = np.zeros(len(gpus))
    for rounds in plan.starts:
        for tasks in rounds:
            for kind, start, end in tasks:
                busy_s[kind] += end - start
    wall = time.perf_counter() - began
    return TaskOutcome(policy, jobs, gpus, plan.finish_s, busy_s, plan.switches, wall)
