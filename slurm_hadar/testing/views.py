"""Views by hand: nodes by their GPUs, jobs by their rates, everything else as is usual; and what
must hold of a plan on one, and what comes of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import BoolArray, IntArray, JobArrays, NodeArrays, View
from slurm_hadar.policies.validity import Place, held_by, problems

NOW = 100_000.0
"""``View.now`` of these views, s."""
ROUND_S = 360.0
"""``View.round_s`` of these views, s."""
_TYPES = ("fast", "middle", "slow")


def nodes_of(
    gpus: Sequence[Sequence[int]],
    cpus: Sequence[int] | None = None,
    mem_mb: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
) -> NodeArrays:
    """Nodes ``n0``, ``n1``, ... by their GPUs (N, R) per type.

    ``cpus``, ``mem_mb`` (MB), ``group``: (N,); CPUs and memory in plenty and one access group where
    they are not given. All nodes are in one rack.
    """
    number = len(gpus)
    kinds = len(gpus[0]) if gpus else len(_TYPES)

    def column(values: Sequence[int] | None, default: int) -> IntArray:
        return np.array([default] * number if values is None else values, dtype=np.int64)

    return NodeArrays(
        names=tuple(f"n{row}" for row in range(number)),
        gpus=np.array(gpus, dtype=np.int64).reshape(number, kinds),
        cpus=column(cpus, 1_000),
        mem_mb=column(mem_mb, 1_000_000),
        group=column(group, 0),
        rack=np.zeros(number, dtype=np.int64),
    )


def jobs_of(rate: ArrayLike, groups: int = 1, **fields: object) -> JobArrays:
    """Jobs ``j0``, ``j1``, ... by their rate (J, R, C), samples/s.

    ``groups``: G, the access groups. ``fields``: those of :class:`JobArrays` by name, one value or
    (J,); ``held`` (K, 4), whose jobs run; ``groups_of``, one value or (J, G). What is not given is
    that of an ordinary waiting job. Raises TypeError for a field that there is not.
    """
    rates = np.array(rate, dtype=np.float64)
    number = len(rates)
    held = np.array(fields.pop("held", []), dtype=np.int64).reshape(-1, 4)
    default: dict[str, tuple[object, type]] = {
        "arrival_s": (NOW - 1000.0, float),
        "weight": (1.0, float),
        "priority": (0.0, float),
        "total": (36_000.0, float),
        "left": (36_000.0, float),
        "running": (False, bool),
        "movable": (True, bool),
        "mixable": (False, bool),
        "since_s": (0.0, float),
        "restart_s": (30.0, float),
        "attained": (0.0, float),
        "cpus_per_gpu": (0.0, float),
        "mem_per_gpu_mb": (0.0, float),
        "max_nodes": (1, np.int64),
    }
    values: dict[str, Any] = {}
    for name, (usual, kind) in default.items():
        given: Any = np.array(fields.pop(name, usual), dtype=kind)
        values[name] = np.broadcast_to(given, (number,)).copy()
    allowed: BoolArray = np.array(fields.pop("groups_of", True), dtype=bool)
    if fields:
        raise TypeError(f"no such field: {', '.join(sorted(fields))}")
    values["running"][held[:, 0]] = True
    return JobArrays(
        ids=tuple(f"j{row}" for row in range(number)),
        rate=rates,
        known=rates > 0,
        held=held,
        groups=np.resize(allowed, (number, groups)),
        **values,
    )


def view_of(
    nodes: NodeArrays,
    jobs: JobArrays,
    counts: Sequence[int] = (1,),
    options: Mapping[str, object] | None = None,
) -> View:
    """A view of these. ``counts``: (C,) GPU counts of the rates' last axis, rising."""
    types = _TYPES[: nodes.gpus.shape[1]]
    return View(NOW, ROUND_S, 0, types, tuple(counts), nodes, jobs, dict(options or {}))


def crowd(seed: int, options: Mapping[str, object]) -> View:
    """40 waiting jobs on 15 nodes of four GPUs, drawn with this seed: larger than what
    :func:`slurm_hadar.testing.strategies.views` makes."""
    random = np.random.default_rng(seed)
    jobs, counts = 40, (1, 2, 4)
    gpus = np.zeros((15, 3), dtype=int)
    gpus[np.arange(15), np.arange(15) % 3] = 4
    speed = random.lognormal(0.0, 0.5, (jobs, 3)) * (4.0, 2.0, 1.0)
    rate = speed[:, :, None] * np.array([1.0, 1.8, 3.1])
    rate *= np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1]])[random.integers(0, 4, jobs)][
        :, None, :
    ]
    left = random.lognormal(9.0, 1.5, jobs)
    arrays = jobs_of(rate, left=left, total=left, cpus_per_gpu=random.uniform(0.5, 7.0, jobs))
    nodes = nodes_of(gpus.tolist(), cpus=[24] * 15)
    return view_of(nodes, arrays, counts, options)


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
