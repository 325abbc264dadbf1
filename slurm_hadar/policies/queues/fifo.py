"""First in, first out: a baseline. Priority first, then age; no job overtakes another or moves."""

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.options import PolicyOptions
from slurm_hadar.policies.queues.list_scheduler import serve
from slurm_hadar.policies.record import Policy


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Running jobs keep their placements."""
    jobs = view.jobs
    order = np.lexsort((np.arange(len(jobs.ids)), jobs.arrival_s, -jobs.priority)).tolist()
    return serve(view, order, strict=True), dict(state)


POLICY = Policy(
    name="fifo",
    decide=decide,
    options=PolicyOptions,
    title="by priority, then first come; no job overtakes another or moves",
)
