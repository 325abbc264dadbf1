"""What is beyond the fair shares: where it goes on a node, between nodes and over several ones."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_views import CURVES, HUNGRY, LIGHT, MEMORY, MIDDLE, factor, given_cpus, servers

from slurm_hadar import policies
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import View

pytestmark = pytest.mark.filterwarnings("error")

CHOICES = {
    HUNGRY: ((3, 20, 1.0), (6, 20, 1.9), (12, 20, 3.0)),
    LIGHT: ((1, 20, 1.0),),
    MIDDLE: ((3, 20, 1.0), (6, 20, 1.5)),
    MEMORY: ((3, 60, 1.0), (3, 120, 2.0)),
}
"""CPUs, MB and factor: what each could have, without what is dearer and no faster."""


def tuned(view: View) -> Plan:
    return policies.get("synergy_tune")(view, {})[0]


def work(view: View, plan: Plan) -> float:
    """GPU-seconds a second, at the speed that is asked for."""
    rows = [(row, plan.placements[id_]) for row, id_ in enumerate(view.jobs.ids)]
    return sum(factor(view, row, placement) * placement.gpu_count for row, placement in rows)


@given(
    st.lists(st.tuples(st.sampled_from(CURVES), st.sampled_from([1, 1, 2])), min_size=1, max_size=8)
    .filter(lambda jobs: sum(gpus for _, gpus in jobs) <= 8)
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_on_one_node_no_deal_is_much_better(jobs: list[tuple[str, int]]) -> None:
    view = servers(1, jobs)
    best = 0.0
    for chosen in product(*(CHOICES[curve] for curve, _ in jobs)):
        counts = [gpus for _, gpus in jobs]
        if sum(n * c for n, (c, _, _) in zip(counts, chosen, strict=True)) > 24:
            continue
        if sum(n * m for n, (_, m, _) in zip(counts, chosen, strict=True)) > 480:
            continue
        best = max(best, sum(n * f for n, (_, _, f) in zip(counts, chosen, strict=True)))
    # Greedy by worth per price loses less than the one step that did not fit, for each resource.
    step = {HUNGRY: 1.1, MIDDLE: 0.5, MEMORY: 1.0, LIGHT: 0.0}
    worst = max(gpus * step[curve] for curve, gpus in jobs)
    found = work(view, tuned(view))
    assert best - worst - 1e-6 <= found <= best + 1e-6


def test_a_job_on_several_nodes_has_a_part_of_what_is_left() -> None:
    jobs = [(HUNGRY, 4), *[(LIGHT, 1)] * 12]
    held = [(0, 0, 0, 2), (0, 1, 0, 2)]
    held += [(row, (row - 1) // 6, 0, 1) for row in range(1, 13)]
    now = [(3.0, 20.0)] + [(1.0, 20.0)] * 12
    view = servers(2, jobs, held=held, present=now)
    plan = tuned(view)
    # Each node has 18 CPUs for two of its GPUs: 6 each is a point of its curve, 12 is too much.
    assert given_cpus(plan, "j0") == (6.0, 20)
    assert len(plan.placements["j0"].nodes) == 2
    short = servers(2, jobs, held=held, present=now, left=30.0)
    assert given_cpus(tuned(short), "j0") == (3.0, 20)


def test_the_fullest_of_its_nodes_decides_on_a_job_on_several() -> None:
    jobs = [(HUNGRY, 4), *[(LIGHT, 1)] * 6, *[(HUNGRY, 1)] * 6]
    held = [(0, 0, 0, 2), (0, 1, 0, 2)]
    held += [(row, (row - 1) // 6, 0, 1) for row in range(1, 13)]
    now = [(3.0, 20.0)] + [(1.0, 20.0)] * 6 + [(3.0, 20.0)] * 6
    movable = [True] + [False] * 12
    plan = tuned(servers(2, jobs, held=held, present=now, movable=movable))
    assert given_cpus(plan, "j0")[0] == 3.0


def test_a_part_of_a_job_changes_places_and_nobody_is_on_more_nodes() -> None:
    # The hungry job has six GPUs where the others are hungry as well, two where all are light.
    jobs = [(HUNGRY, 8), *[(LIGHT, 1)] * 6, *[(HUNGRY, 1)] * 2]
    held = [(0, 0, 0, 2), (0, 1, 0, 6)]
    held += [(row, 0, 0, 1) for row in range(1, 7)] + [(row, 1, 0, 1) for row in (7, 8)]
    now = [(3.0, 20.0)] + [(1.0, 20.0)] * 6 + [(3.0, 20.0)] * 2
    view = servers(2, jobs, held=held, present=now)
    plan = tuned(view)
    nodes = {id_: len(placement.nodes) for id_, placement in plan.placements.items()}
    assert nodes == {"j0": 2, **{f"j{row}": 1 for row in range(1, 9)}}
    stayed = servers(2, jobs, held=held, present=now, left=600.0)
    assert work(view, plan) > work(stayed, tuned(stayed)) + 1.0
    assert any("n1" in plan.placements[f"j{row}"].nodes for row in range(1, 7))
