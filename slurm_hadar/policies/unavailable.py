"""Why no GPU type and count is open to a job, for the reasons of policies."""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.view import IntArray, View

NO_GPU = "no GPU that managed jobs may use is free"
"""Of the whole cluster; the controller replaces it, and :data:`NO_GPU_OF`, with the cause."""
NO_GPU_OF = (
    "no GPU of {} is open to it now: other jobs that no plan can move have them, they are kept for "
    "a job ahead, or their nodes are down, drained or closed to it"
)
NOT_RUNNABLE = "no GPU type and count that it can run with"


def unavailable(view: View, job: int) -> str:
    """Why no type and count is open to this row of the view now.

    A view has the GPUs that are free or held by jobs that a plan can move. GPUs of other jobs, GPUs
    kept for a job ahead and nodes that are closed to the job may become available later.
    """
    jobs, nodes = view.jobs, view.nodes
    able = jobs.rate[job] > 0
    if not able.any():
        return NOT_RUNNABLE
    kinds = np.flatnonzero(able.any(axis=1))
    may = jobs.groups[job][nodes.group]
    open_ = nodes.gpus[may].sum(axis=0)[kinds]
    if not open_.any():
        return _none_open([view.types[kind] for kind in kinds], nodes.gpus[~may].sum(axis=0)[kinds])
    least = min(view.counts[count] for count in np.flatnonzero(able.any(axis=0)))
    if (open_ >= least).any():
        most = int(jobs.max_nodes[job])
        nodes_text = "1 node" if most == 1 else f"{most} nodes"
        return (
            f"it needs {least} GPUs on at most {nodes_text}, and those that are free or held by "
            "jobs that a plan can move are on more"
        )
    there = " + ".join(
        f"{number} x {view.types[kind]}"
        for kind, number in zip(kinds, open_, strict=True)
        if number
    )
    return f"it needs {least} GPUs, and only {there} are free or held by jobs that a plan can move"


def _none_open(names: Sequence[str], elsewhere: IntArray) -> str:
    """``elsewhere``: GPUs of each of the types ``names`` on nodes that are closed to the job."""
    closed = [f"{number} x {name}" for name, number in zip(names, elsewhere, strict=True) if number]
    rest = [name for name, number in zip(names, elsewhere, strict=True) if not number]
    causes = []
    if rest:
        causes.append(NO_GPU_OF.format(", ".join(rest)))
    if closed:
        causes.append(
            f"{' + '.join(closed)} that are free or held by jobs that a plan can move are on nodes"
            " that its partitions, its constraint or a reservation exclude"
        )
    return "; ".join(causes)
