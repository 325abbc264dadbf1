"""Random views for hypothesis, which only this module imports."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from slurm_hadar.domain.view import NodeArrays, View
from slurm_hadar.testing.views import NOW, jobs_of, nodes_of, view_of


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

    def row(of: st.SearchStrategy[object], length: int) -> list[Any]:
        return draw(st.lists(of, min_size=length, max_size=length))

    nodes = _nodes(row, (number, kinds, groups), generous)
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


def _nodes(
    row: Callable[[st.SearchStrategy[object], int], list[Any]],
    size: tuple[int, int, int],
    generous: bool,
) -> NodeArrays:
    """``size``: nodes, types and groups."""
    number, kinds, groups = size
    offered = st.sampled_from([0, 1, 2, 4] if generous else [0, 0, 1, 2, 4])
    nodes = nodes_of(
        [row(offered, kinds) for _ in range(number)],
        None if generous else row(st.integers(0, 16), number),
        None if generous else row(st.integers(0, 64), number),
        row(st.integers(0, groups - 1), number),
    )
    return nodes if number else replace(nodes, gpus=np.zeros((0, kinds), dtype=np.int64))
