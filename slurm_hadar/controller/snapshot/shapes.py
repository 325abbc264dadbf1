"""Plans in the shapes that jobs of several nodes, and of whole ones, can run in.

Policies count GPUs: of a request for two nodes with four GPUs each they may put eight on one node,
or five and three on two. Slurm would not, so such a placement is put into the job's shape with what
the plan leaves, or not carried out.
"""

from dataclasses import replace

import numpy as np

from slurm_hadar.controller.snapshot.forks import held_placements
from slurm_hadar.controller.snapshot.resource_request import ResourceRequest
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import FloatArray, IntArray, View
from slurm_hadar.reports import formats


def has_shape(want: ResourceRequest) -> bool:
    """Whether the job runs on a fixed number of nodes, with as many GPUs on each."""
    return want.whole or (want.form == "node" and want.nodes > 1 and want.copies[1] == 1)


def shaped(plan: Plan, shown: Snapshot) -> Plan:
    """The plan with each placement in its job's shape. A job for which that cannot be done is left
    as it is: waiting, or running where it runs."""
    out = [
        id_
        for id_, placement in plan.placements.items()
        if id_ in shown.schedulable
        and has_shape(shown.schedulable[id_].request)
        and not _in_shape(placement, id_, shown)
    ]
    if not out:
        return plan
    held = held_placements(shown.view)
    placements, waiting = dict(plan.placements), dict(plan.waiting)
    for id_ in out:
        placement = placements.pop(id_)
        want = shown.schedulable[id_].request
        nodes = _laid(placement, id_, shown, _left(placements, shown.view))
        each = formats.counted(placement.gpu_count // want.nodes, "free GPU")
        why = f"no {want.nodes} nodes with {each} each"
        if want.whole:
            why = f"too few whole nodes with {placement.gpu_count // want.nodes} GPUs each are free"
        if nodes:
            placements[id_] = replace(placement, nodes=nodes)
        elif id_ in held:
            # Without a placement it would be stopped.
            placements[id_] = replace(held[id_], reason=f"stays: {why}")
        else:
            waiting[id_] = why
    return replace(plan, placements=placements, waiting=waiting)


def _in_shape(placement: Placement, id_: str, shown: Snapshot) -> bool:
    want = shown.schedulable[id_].request
    each = placement.gpu_count // want.nodes
    if {sum(gpus.values()) for gpus in placement.nodes.values()} != {each}:
        return False
    names = shown.view.nodes.names
    sizes = (
        {shown.node_gpus[names.index(name)] for name in placement.nodes} if want.whole else {each}
    )
    return len(placement.nodes) == want.nodes and sizes == {each}


def _laid(
    placement: Placement, id_: str, shown: Snapshot, left: tuple[IntArray, FloatArray, FloatArray]
) -> dict[str, dict[str, int]]:
    """Nodes for it in its shape, out of what is ``left`` (GPUs, CPUs, MB): its own first, then
    those on which least is left; empty where there are none."""
    view, want = shown.view, shown.schedulable[id_].request
    each, rest = divmod(placement.gpu_count, want.nodes)
    if rest or len(placement.gpus) != 1 or not each:
        return {}
    (kind,) = placement.gpus
    gpus, cpus, memory = left
    row, column = view.jobs.rows[id_], view.types.index(kind)
    fits = view.jobs.groups[row, view.nodes.group] & (gpus[:, column] >= each)
    fits &= cpus >= each * view.jobs.cpus_per_gpu[row]
    fits &= memory >= each * view.jobs.mem_per_gpu_mb[row]
    if want.whole:
        fits &= shown.node_gpus == each
    own = np.isin(np.arange(len(fits)), view.jobs.held[view.jobs.held[:, 0] == row, 1])
    order = np.lexsort((gpus[:, column], ~own))
    chosen = [int(at) for at in order if fits[at]][: want.nodes]
    if len(chosen) < want.nodes:
        return {}
    return {view.nodes.names[at]: {kind: each} for at in chosen}


def _left(placements: dict[str, Placement], view: View) -> tuple[IntArray, FloatArray, FloatArray]:
    """(N, R) GPUs, (N,) CPUs and (N,) MB that these placements leave."""
    at = {name: number for number, name in enumerate(view.nodes.names)}
    gpus = view.nodes.gpus.copy()
    cpus, memory = view.nodes.cpus.astype(float), view.nodes.mem_mb.astype(float)
    for id_, placement in placements.items():
        row = view.jobs.rows[id_]
        each_cpus, each_mb = placement.cpus_per_gpu, placement.mem_per_gpu_mb
        for name, some in placement.nodes.items():
            for kind, count in some.items():
                gpus[at[name], view.types.index(kind)] -= count
                cpus[at[name]] -= count * (
                    view.jobs.cpus_per_gpu[row] if each_cpus is None else each_cpus
                )
                memory[at[name]] -= count * (
                    view.jobs.mem_per_gpu_mb[row] if each_mb is None else each_mb
                )
    return gpus, cpus, memory
