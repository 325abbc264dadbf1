"""Checks whether a plan can be carried out on its view."""

from collections.abc import Iterator, Mapping

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan, by_type
from slurm_hadar.domain.view import FloatArray, View

_TOLERANCE = 1e-3

Place = dict[tuple[int, int], int]
"""(node, type) -> GPUs."""


def held_by(view: View) -> dict[int, Place]:
    """What each running job holds: job -> (node, type) -> GPUs."""
    held: dict[int, Place] = {}
    for job, node, kind, count in view.jobs.held.tolist():
        if count > 0:
            held.setdefault(job, {})[node, kind] = count
    return held


def problems(view: View, plan: Plan) -> tuple[str, ...]:
    """The problems of a plan, one sentence each; empty if the plan can be carried out.

    A valid plan places each job, or has a reason why it waits. A placement names nodes that are
    open to the job's owner, with a number of GPUs that the job can run with. A job that may not be
    moved keeps what it holds. No node gives more GPUs, CPUs or memory than it has, except that jobs
    may keep what they hold on a node that has shrunk.
    """
    return tuple(_problems(view, plan))


def _problems(view: View, plan: Plan) -> Iterator[str]:
    jobs = view.jobs
    node_at = {name: at for at, name in enumerate(view.nodes.names)}
    kind_at = {name: at for at, name in enumerate(view.types)}
    known = set(jobs.ids)
    for id_ in (*plan.placements, *plan.waiting):
        if id_ not in known:
            yield f"job {id_} is not in the view"
    held = held_by(view)
    stay: dict[int, tuple[Placement, Place]] = {}
    come: dict[int, tuple[Placement, Place]] = {}
    for job, id_ in enumerate(jobs.ids):
        placement = plan.placements.get(id_)
        if placement is None:
            if job in held and not jobs.movable[job]:
                yield f"job {id_} may not be moved and is stopped"
            if not plan.waiting.get(id_):
                yield f"job {id_} is neither placed nor waits with a reason"
            continue
        if id_ in plan.waiting:
            yield f"job {id_} is placed and waits"
        if not placement.reason:
            yield f"job {id_} is placed without a reason"
        place, wrong = _place(placement, node_at, kind_at)
        if wrong:
            yield f"job {id_}: {wrong}"
        elif place == held.get(job):
            stay[job] = placement, place
        elif job in held and not jobs.movable[job]:
            yield f"job {id_} may not be moved and is moved"
        else:
            come[job] = placement, place
            wrong = _unfit(view, job, placement, place)
            if wrong:
                yield f"job {id_}: {wrong}"
    yield from _overfull(view, stay, come)


def _place(
    placement: Placement, node_at: Mapping[str, int], kind_at: Mapping[str, int]
) -> tuple[Place, str]:
    place: Place = {}
    for node, gpus in placement.nodes.items():
        for kind, count in gpus.items():
            if node not in node_at or kind not in kind_at:
                return {}, f"there is no {kind} on a node {node} in the view"
            if count <= 0:
                return {}, f"{count} GPUs on node {node}"
            place[node_at[node], kind_at[kind]] = count
    if not place:
        return {}, "the placement names no nodes"
    if (by_kind := by_type(placement.nodes)) != {
        kind: count for kind, count in placement.gpus.items() if count
    }:
        return {}, f"its nodes give {by_kind} and the placement says {dict(placement.gpus)}"
    return place, ""


def _unfit(view: View, job: int, placement: Placement, place: Place) -> str:
    jobs = view.jobs
    nodes = {node for node, _ in place}
    if not all(jobs.groups[job, view.nodes.group[node]] for node in nodes):
        return "a node is not open to its owner"
    if len(nodes) < len(place):
        return "two GPU types on one node"
    if placement.copies > 1:
        if placement.copies > jobs.copies[job] or placement.copies != len(place):
            most = jobs.copies[job]
            return f"copies={placement.copies}, nodes={len(place)}; the job allows {most}"
        if placement.shares and abs(sum(placement.shares) - 1) > _TOLERANCE:
            return "the shares of its copies do not sum to 1"
        runs = [(kind, count) for (_, kind), count in place.items()]
    else:
        if len(nodes) > jobs.max_nodes[job]:
            return f"{len(nodes)} nodes, of {jobs.max_nodes[job]} at most"
        if len({kind for _, kind in place}) > 1 and not jobs.mixable[job]:
            return "several GPU types, which it cannot mix"
        total = sum(place.values())
        runs = [(kind, total) for _, kind in place]
    for kind, count in runs:
        at = view.counts.index(count) if count in view.counts else -1
        if at < 0 or not jobs.rate[job, kind, at] > 0:
            return f"it cannot run on {count} x {view.types[kind]}"
    return ""


def _overfull(
    view: View,
    stay: Mapping[int, tuple[Placement, Place]],
    come: Mapping[int, tuple[Placement, Place]],
) -> Iterator[str]:
    left = [
        view.nodes.gpus.astype(float),
        view.nodes.cpus.astype(float),
        view.nodes.mem_mb.astype(float),
    ]
    for job, (placement, place) in stay.items():
        _subtract(view, job, placement, place, left)
    left = [np.maximum(one, 0.0) for one in left]
    for job, (placement, place) in come.items():
        _subtract(view, job, placement, place, left)
    for what, one in zip(("GPUs", "CPUs", "memory"), left, strict=True):
        for node in np.unique(np.nonzero(one < -_TOLERANCE)[0]).tolist():
            yield f"node {view.nodes.names[node]} gives more {what} than it has"


def _subtract(
    view: View, job: int, placement: Placement, place: Place, left: list[FloatArray]
) -> None:
    gpus, cpus, mem = left
    each_cpus, each_mem = placement.cpus_per_gpu, placement.mem_per_gpu_mb
    for (node, kind), count in place.items():
        gpus[node, kind] -= count
        cpus[node] -= count * (view.jobs.cpus_per_gpu[job] if each_cpus is None else each_cpus)
        mem[node] -= count * (view.jobs.mem_per_gpu_mb[job] if each_mem is None else each_mem)
