"""The policies of the simulation at the level of tasks, by name."""

import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import IntArray
from slurm_hadar.simulator.tasks import gang, orders, relaxed
from slurm_hadar.simulator.tasks.gang import GangRule
from slurm_hadar.simulator.tasks.jobs import TaskCosts, TaskJobs, TaskOutcome, check
from slurm_hadar.simulator.tasks.orders import round_jobs
from slurm_hadar.solvers.hare import Rule, list_schedule, paper_order, relax

_RELAXED: Mapping[str, Callable[[TaskJobs, IntArray], orders.Order]] = {
    "hare": orders.hlas,
    relaxed.PLAIN: orders.hlas,
    "hare_weighted": partial(orders.hlas, weighted=True),
    "hare_offline": orders.offline,
    "hare_wsrtf": orders.shortest,
}
_PLANNED: Mapping[str, Rule] = {"hare_available": "available", "hare_finish": "finish"}
_GANGS: Mapping[str, GangRule] = {
    "gang_allox": GangRule("allox"),
    "gang_fifo": GangRule("fifo"),
    "gang_homo": GangRule("homo"),
    "gang_las": GangRule("las"),
    "gang_las_move": GangRule("las", wait=True),
    "gang_srtf": GangRule("srtf"),
    "gang_wsrtf": GangRule("wsrtf"),
    "gang_wsrtf_wait": GangRule("wsrtf", wait=True),
}
NAMES = (*_RELAXED, *_PLANNED, *_GANGS)


def simulate_tasks(
    jobs: TaskJobs, gpus: IntArray, policy: str, costs: TaskCosts | None = None
) -> TaskOutcome:
    """Run all jobs on ``gpus`` (R,) GPUs per type under the policy of that name.

    Raises UsageError for an unknown policy and for a job that can run nowhere.
    """
    costs = costs or TaskCosts()
    if policy in _RELAXED:
        check(jobs, gpus, gangs=False)
        order = _RELAXED[policy](jobs, gpus)
        return relaxed.run(jobs, gpus, order, costs, policy)
    if policy in _PLANNED:
        return _as_planned(jobs, gpus, _PLANNED[policy], costs, policy)
    if policy in _GANGS:
        return gang.run(jobs, gpus, _GANGS[policy], costs, policy)
    raise UsageError(f"there is no policy {policy!r} for tasks; known: {', '.join(NAMES)}")


def _as_planned(
    jobs: TaskJobs, gpus: IntArray, rule: Rule, costs: TaskCosts, policy: str
) -> TaskOutcome:
    """Hare's offline schedule carried out as it was planned, with all jobs known in advance: the
    list schedule in the paper's order. Raises UsageError for a job that can run nowhere.

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
