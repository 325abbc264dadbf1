"""What must hold of a plan, and what comes of it."""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import View
from slurm_hadar.policies.validity import Place, held_by, problems
from slurm_hadar.testing.views import ROUND_S


def check_plan(view: View, plan: Plan) -> None:
    """Raises AssertionError with all that keeps a plan from being carried out on its view.

    The same is asked of every plan of another package's policy before a controller follows it.
    """
    wrong = problems(view, plan)
    if wrong:
        raise AssertionError("; ".join(wrong))


def place_of(view: View, placement: Placement) -> Place:
    """Where a placement is: (row of the node, row of the type) -> GPUs."""
    return {
        (view.nodes.names.index(node), view.types.index(kind)): count
        for node, gpus in placement.nodes.items()
        for kind, count in gpus.items()
    }


def places(view: View, plan: Plan) -> dict[str, Place]:
    """What each placed job gets: id -> (row of the node, row of the type) -> GPUs."""
    return {id_: place_of(view, placement) for id_, placement in plan.placements.items()}


def applied(view: View, plan: Plan, later_s: float = ROUND_S) -> View:
    """The view ``later_s`` after the plan was carried out, with nothing trained in between."""
    jobs, before = view.jobs, held_by(view)
    rows: list[tuple[int, int, int, int]] = []
    since = jobs.since_s.copy()
    running = np.zeros(len(jobs.ids), dtype=bool)
    for job, id_ in enumerate(jobs.ids):
        if id_ not in plan.placements:
            continue
        place = place_of(view, plan.placements[id_])
        rows += [(job, node, kind, count) for (node, kind), count in place.items()]
        running[job] = True
        if place != before.get(job):
            since[job] = view.now
    held = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return replace(
        view, now=view.now + later_s, jobs=replace(jobs, held=held, since_s=since, running=running)
    )
