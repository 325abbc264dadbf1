"""Shortest remaining time first: a baseline. The time is that on the job's fastest GPUs."""

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.options import PolicyOptions
from slurm_hadar.policies.queues.list_scheduler import seconds_left, serve
from slurm_hadar.policies.record import Policy, Trait


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Running jobs keep their placements; jobs overtake those that do not fit."""
    shortest = seconds_left(view).min(axis=(1, 2), initial=np.inf)
    order = np.lexsort((np.arange(len(shortest)), view.jobs.arrival_s, shortest)).tolist()
    return serve(view, order, strict=False), dict(state)


POLICY = Policy(
    name="srtf",
    decide=decide,
    options=PolicyOptions,
    uses=frozenset({Trait.ORDER}),
    title="shortest remaining time first; no running job moves",
)
