"""Views for the tests of policies, random and by hand, and what must hold of a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import JobArrays, NodeArrays, View

NOW = 100_000.0
ROUND_S = 360.0
_TYPES = ("fast", "middle", "slow")
_TOLERANCE = 1e-3


def nodes_of(
    gpus: Sequence[Sequence[int]],
    cpus: Sequence[int] | None = None,
    mem_mb: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
) -> NodeArrays:
    """Nodes by their GPUs per type; CPUs and memory in plenty where they are not given."""
    number = len(gpus)
    kinds = len(gpus[0]) if gpus else len(_TYPES)

    def column(values: Sequence[int] | None, default: int) -> np.ndarray:
        return np.array([default] * number if values is None else values, dtype=np.int64)

    return NodeArrays(
        names=tuple(f"n{row}" for row in range(number)),
        gpus=np.array(gpus, dtype=np.int64).reshape(number, kinds),
        cpus=column(cpus, 1_000),
        mem_mb=column(mem_mb, 1_000_000),
        group=column(group, 0),
        rack=np.zeros(number, dtype=np.int64),
    )


def jobs_of(rate: Sequence[object], groups: int = 1, **arrays: object) -> JobArrays:
    """Jobs by their rate (J, R, C); the rest by name, else that of ordinary waiting jobs."""
    rates = np.array(rate, dtype=np.float64)
    number = len(rates)
    held = np.array(arrays.pop("held", []), dtype=np.int64).reshape(-1, 4)
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
    values: dict[str, np.ndarray] = {}
    for name, (usual, kind) in default.items():
        given = np.array(arrays.pop(name, usual), dtype=kind)
        values[name] = np.broadcast_to(given, (number,)).copy()
    allowed = np.array(arrays.pop("groups_of", True), dtype=bool)
    assert not arrays, f"no such array: {sorted(arrays)}"
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
    """A view of these."""
    types = _TYPES[: nodes.gpus.shape[1]]
    return View(NOW, ROUND_S, 0, types, tuple(counts), nodes, jobs, dict(options or {}))


@st.composite
def views(
    draw: st.DrawFn,
    options: st.SearchStrategy[Mapping[str, object]] | None = None,
    most_jobs: int = 7,
    running: bool = True,
    degenerate: bool = True,
) -> View:
    """Small random views. ``degenerate``: also work without an end or without any, weight 0,
    nodes that offer less than is held."""
    # Half of the views are generous, or little would fit and less would move.
    generous = draw(st.booleans())
    kinds = draw(st.integers(1, 3))
    number = draw(st.integers(2 if generous else 0, 4))
    groups = 1 if generous else draw(st.integers(1, 2))
    counts = draw(st.sampled_from([(1,), (1, 2), (2, 4), (1, 2, 4), (1, 3, 8)]))

    def row(of: st.SearchStrategy[object], length: int) -> list[object]:
        return draw(st.lists(of, min_size=length, max_size=length))

    offered = st.sampled_from([0, 1, 2, 4] if generous else [0, 0, 1, 2, 4])
    nodes = nodes_of(
        [row(offered, kinds) for _ in range(number)],  # type: ignore[misc]
        None if generous else row(st.integers(0, 16), number),  # type: ignore[arg-type]
        None if generous else row(st.integers(0, 64), number),  # type: ignore[arg-type]
        row(st.integers(0, groups - 1), number),  # type: ignore[arg-type]
    )
    if not number:
        nodes = replace(nodes, gpus=np.zeros((0, kinds), dtype=np.int64))
    jobs = draw(st.integers(0, most_jobs))
    rates = st.sampled_from([0.0, 1.0, 2.0, 3.0, 7.5] if generous else [0.0, 0.0, 0.0, 1.0, 4.0])
    rate = np.array(row(rates, jobs * kinds * len(counts))).reshape(jobs, kinds, len(counts))
    held: list[tuple[int, int, int, int]] = []
    if running and number:
        free = nodes.gpus.copy()
        for job in range(jobs):
            node, kind = draw(st.integers(0, number - 1)), draw(st.integers(0, kinds - 1))
            at = draw(st.integers(-1, len(counts) - 1))
            shrunk = degenerate and draw(st.integers(0, 9)) == 0
            if at >= 0 and (shrunk or counts[at] <= free[node, kind]):
                held.append((job, node, kind, counts[at]))
                free[node, kind] -= counts[at]
                if generous:
                    rate[job, kind, at] = draw(st.sampled_from([0.5, 2.0]))
    odd = [0.0, float("inf")] if degenerate else []
    left = st.sampled_from([*odd, 1.0, 360.0, 5_000.0, 36_000.0, 400_000.0])
    arrays = jobs_of(
        rate,
        groups,
        arrival_s=row(st.floats(0.0, NOW), jobs),
        weight=row(st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0][0 if degenerate else 1 :]), jobs),
        priority=row(st.integers(0, 3), jobs),
        left=row(left, jobs),
        total=row(st.floats(1.0, 1e6), jobs),
        movable=row(st.booleans(), jobs),
        mixable=row(st.booleans(), jobs),
        restart_s=row(st.sampled_from([0.0, 10.0, 120.0]), jobs),
        cpus_per_gpu=0.0 if generous else row(st.sampled_from([0.0, 1.0, 2.5, 4.0]), jobs),
        mem_per_gpu_mb=0.0 if generous else row(st.sampled_from([0.0, 3.0, 16.0]), jobs),
        max_nodes=row(st.integers(1, 3), jobs),
        groups_of=True if generous else row(st.booleans(), jobs * groups),
        held=held,
    )
    return view_of(nodes, arrays, counts, draw(options) if options is not None else {})


def crowd(seed: int, options: Mapping[str, object]) -> View:
    """40 jobs on 15 nodes of four GPUs, all waiting: larger than what :func:`views` makes."""
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


Place = dict[tuple[int, int], int]
"""(node, type) -> GPUs."""


def place_of(view: View, placement: Placement) -> Place:
    """Where a placement is, by index."""
    return {
        (view.nodes.names.index(node), view.types.index(kind)): count
        for node, gpus in placement.nodes.items()
        for kind, count in gpus.items()
    }


def held_by(view: View) -> dict[int, Place]:
    """What each running job holds."""
    held: dict[int, Place] = {}
    for job, node, kind, count in view.jobs.held.tolist():
        held.setdefault(job, {})[node, kind] = count
    return held


def places(view: View, plan: Plan) -> dict[str, Place]:
    """What each placed job gets."""
    return {id_: place_of(view, placement) for id_, placement in plan.placements.items()}


def check(view: View, plan: Plan) -> None:
    """What must hold of every plan of every policy that names nodes."""
    jobs, held = view.jobs, held_by(view)
    assert sorted([*plan.placements, *plan.waiting]) == sorted(jobs.ids)
    assert all(plan.waiting.values())
    gpus = view.nodes.gpus.astype(float)
    cpus, mem = view.nodes.cpus.astype(float), view.nodes.mem_mb.astype(float)
    come: list[int] = []
    for job, id_ in enumerate(jobs.ids):
        if job in held and not jobs.movable[job]:
            assert id_ in plan.placements, "a job that may not be moved was stopped"
        placement = plan.placements.get(id_)
        if placement is None:
            continue
        assert placement.reason
        place = place_of(view, placement)
        assert sum(place.values()) == placement.gpu_count
        for kind, count in placement.gpus.items():
            assert count == sum(n for (_, r), n in place.items() if view.types[r] == kind)
        if place == held.get(job):
            continue
        assert job not in held or jobs.movable[job], "a job that may not be moved was moved"
        come.append(job)
        _check_new(view, job, place)
    for job, id_ in enumerate(jobs.ids):
        if id_ in plan.placements and job not in come:
            _subtract(view, job, place_of(view, plan.placements[id_]), gpus, cpus, mem)
    gpus, cpus, mem = (np.maximum(left, 0.0) for left in (gpus, cpus, mem))
    for job in come:
        _subtract(view, job, place_of(view, plan.placements[jobs.ids[job]]), gpus, cpus, mem)
    for left in (gpus, cpus, mem):
        assert (left >= -_TOLERANCE).all(), "more is given than there is"


def _check_new(view: View, job: int, place: Place) -> None:
    jobs = view.jobs
    count = sum(place.values())
    assert count in view.counts, "a gang is not complete"
    column = view.counts.index(count)
    nodes, kinds = {node for node, _ in place}, {kind for _, kind in place}
    assert all(jobs.rate[job, kind, column] > 0 for kind in kinds)
    assert all(jobs.groups[job, view.nodes.group[node]] for node in nodes)
    assert len(nodes) <= jobs.max_nodes[job]
    assert len(nodes) == len(place), "two types on one node"
    assert len(kinds) == 1 or jobs.mixable[job]
    assert all(number > 0 for number in place.values())


def _subtract(
    view: View, job: int, place: Place, gpus: np.ndarray, cpus: np.ndarray, mem: np.ndarray
) -> None:
    for (node, kind), count in place.items():
        gpus[node, kind] -= count
        cpus[node] -= count * view.jobs.cpus_per_gpu[job]
        mem[node] -= count * view.jobs.mem_per_gpu_mb[job]


def applied(view: View, plan: Plan, later_s: float = ROUND_S) -> View:
    """The view after the plan was carried out, with nothing trained in between."""
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
