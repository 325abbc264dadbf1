"""Racks that the network policy keeps for the gangs that would otherwise end last."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from slurm_hadar import policies
from slurm_hadar.domain.traits import NetworkTrait
from slurm_hadar.domain.view import View
from slurm_hadar.testing import NOW, applied, jobs_of, nodes_of, view_of
from slurm_hadar.testing import check_plan as check

pytestmark = pytest.mark.filterwarnings("error")

COUNTS = (2, 4, 6, 8)
TWO, HALF, SIX, GANG = ([row] for row in np.eye(4).tolist())
HELD = [(0, 0, 0, 4), (0, 1, 0, 4), (1, 2, 0, 4), (1, 3, 0, 2)]
"""j0 fills the first rack; j1 leaves two GPUs of the second one."""
OFF = {"critical": 2.0}


def racks(
    rate: ArrayLike,
    left: Sequence[float],
    held: Sequence[tuple[int, int, int, int]],
    slowed: Sequence[float] = (),
    gpus: Sequence[int] = (4, 4, 4, 4),
    **more: Any,
) -> View:
    """Racks of two nodes with four GPUs; jobs do 1 sample/s, over several racks 0.3."""
    rack = np.arange(len(gpus), dtype=np.int64) // 2
    nodes = replace(nodes_of([[n] for n in gpus]), rack=rack)
    since = {"since_s": NOW - 7200.0, "arrival_s": 0.0}
    arrays = jobs_of(rate, max_nodes=4, left=left, held=held, **(since | more))
    pace = np.array([*slowed, *[1.0] * len(left)])[: len(left)]
    trait = NetworkTrait(np.tile([1.0, 1.0, 0.3], (len(left), 1)), pace)
    return view_of(replace(nodes, whole=nodes), replace(arrays, network=trait), COUNTS)


def waits_for_a_rack(small_s: float, gang_s: float = 2e4) -> View:
    """j2 needs a whole rack, the second one is free in 1,000 s; j3 would fit in at once."""
    return racks([GANG, SIX, GANG, TWO], [9e3, 1e3, gang_s, small_s], HELD, movable=False)


def test_a_rack_is_kept_for_the_gang_that_would_end_last() -> None:
    decide = policies.get("network")
    plan, _ = decide(waits_for_a_rack(5e3), {})
    assert "kept for job j2, which would end last of all" in plan.waiting["j3"]
    assert any("a rack is kept for job j2, free in 17 min" in note for note in plan.notes)
    # Who ends before the rack is free is in nobody's way.
    plan, _ = decide(waits_for_a_rack(900.0), {})
    assert set(plan.placements["j3"].nodes) == {"n3"}
    plan, _ = decide(replace(waits_for_a_rack(5e3), options=OFF), {})
    assert "j3" in plan.placements


def test_no_rack_is_kept_while_the_gang_would_end_in_time() -> None:
    # All the work takes 5,500 s and half of the gang's time at the least.
    plan, _ = policies.get("network")(waits_for_a_rack(5e3, 8.8e3), {})
    assert "j3" in plan.placements and not plan.notes
    plan, _ = policies.get("network")(waits_for_a_rack(5e3, 9.2e3), {})
    assert "j3" in plan.waiting


def test_short_gangs_one_behind_the_other_decide_the_end_too() -> None:
    # None of the three needs half of the 9,900 s; the second rack has to take them all.
    rate = [GANG, SIX, GANG, GANG, GANG, TWO]
    view = racks(rate, [9e3, 1e3, 3e3, 3e3, 3e3, 4e3], HELD, movable=False)
    plan, _ = policies.get("network")(view, {})
    assert "kept for job j2" in plan.waiting["j5"]
    view = racks(rate, [9e3, 1e3, 3e3, 3e3, 1e3, 4e3], HELD, movable=False)
    plan, _ = policies.get("network")(view, {})
    assert "j5" in plan.placements


def test_one_gang_that_is_late_on_its_own_says_nothing_of_the_others() -> None:
    # j2 gets the second rack in 1,000 s; j4 would be in time in the first one.
    rate, left = [HALF, SIX, GANG, TWO, GANG], [9e3, 1e3, 9e4, 2e4, 3e3]
    held = [(0, 0, 0, 4), (1, 2, 0, 4), (1, 3, 0, 2)]
    plan, _ = policies.get("network")(racks(rate, left, held, movable=False), {})
    assert set(plan.placements["j3"].nodes) == {"n1"}
    assert len(plan.notes) == 1 and "job j2" in plan.notes[0]


def test_gangs_of_which_two_fit_in_a_rack_are_kept_none() -> None:
    rate, left = [GANG, SIX, HALF, TWO], [9e3, 1e3, 2e4, 5e3]
    nodes_of_two = racks(rate, left, HELD, movable=False)
    assert nodes_of_two.jobs.network is not None
    each = replace(nodes_of_two.jobs.network, per_node=np.array([0, 0, 2, 0]))
    view = replace(nodes_of_two, jobs=replace(nodes_of_two.jobs, network=each))
    plan, _ = policies.get("network")(view, {})
    assert "j3" in plan.placements


def test_it_takes_no_far_place_where_it_would_end_later_than_in_its_rack() -> None:
    # Half of each rack is free. Far away it would end in 66,667 s, in its rack in 21,000.
    held = [(0, 0, 0, 4), (1, 2, 0, 4)]
    view = racks([HALF, HALF, GANG], [2e3, 1e3, 2e4], held, movable=False)
    view = replace(view, now=1e6)
    plan, _ = policies.get("network")(view, {})
    assert "a rack is kept for it, in which it can start in 17 min" in plan.waiting["j2"]
    plan, _ = policies.get("network")(replace(view, options=OFF), {})
    assert plan.placements["j2"].tier == "network"


def test_gangs_whose_racks_are_free_at_once_start_at_once() -> None:
    # The longest is promised the first rack, which is found for whoever comes first.
    view = racks([GANG] * 4, [2e3, 2.5e3, 3e3, 1e3], [], gpus=(4,) * 6)
    plan, _ = policies.get("network")(view, {})
    assert set(plan.placements) == {"j0", "j1", "j2"} and "j3" in plan.waiting


def test_no_rack_is_kept_that_would_stay_too_small_for_the_gang() -> None:
    # On n3 somebody else has all CPUs but two.
    view = waits_for_a_rack(5e3)
    cpus = np.array([4.0, 4.0, 4.0, 2.0])
    each = replace(view.jobs, cpus_per_gpu=np.array([1.0, 0.0, 1.0, 1.0]))
    free = replace(view.nodes, cpus=cpus)
    plan, _ = policies.get("network")(replace(view, jobs=each, nodes=free), {})
    assert set(plan.placements["j3"].nodes) == {"n3"}


def test_gpus_of_another_type_in_that_rack_are_open_to_all() -> None:
    view = waits_for_a_rack(5e3)
    rate = np.zeros((4, 2, 4))
    rate[:3, :1], rate[3, 1:] = view.jobs.rate[:3], TWO
    jobs = replace(view.jobs, rate=rate, known=rate > 0)
    nodes = replace(view.nodes, gpus=np.array([[4, 0], [4, 0], [4, 0], [4, 2]]))
    nodes = replace(nodes, whole=nodes)
    plan, _ = policies.get("network")(view_of(nodes, jobs, COUNTS), {})
    assert "j2" in plan.waiting
    assert plan.placements["j3"].nodes == {"n3": {"middle": 2}}


def test_nobody_moves_into_a_rack_that_is_kept() -> None:
    # j3 lies far apart; the second rack has room for the whole of it, until j2 starts there.
    held = [(0, 0, 0, 4), (0, 1, 0, 3), (1, 2, 0, 4), (3, 1, 0, 1), (3, 4, 0, 1)]
    view = racks(
        [SIX, HALF, GANG, TWO], [9e3, 1e3, 2e4, 8e3], held, [1.0, 1.0, 1.0, 0.3], (4, 4, 4, 4, 1),
        movable=[False, False, True, True],
    )  # fmt: skip
    plan, _ = policies.get("network")(replace(view, options={"preempt": False}), {})
    assert set(plan.placements["j3"].nodes) == {"n1", "n4"}
    plan, _ = policies.get("network")(replace(view, options={"preempt": False, **OFF}), {})
    assert set(plan.placements["j3"].nodes) == {"n3"}


def test_nobody_gives_way_to_a_job_that_may_not_have_the_place() -> None:
    # j4 would be near on what j3 borrows, in the rack that j2 gets in 5,000 s.
    held = [(0, 0, 0, 4), (0, 1, 0, 3), (1, 2, 0, 4), (3, 1, 0, 1), (3, 3, 0, 3)]
    view = racks(
        [SIX, HALF, GANG, HALF, TWO], [9e3, 1e3, 2e4, 1e3, 8e3], held, [1.0, 1.0, 1.0, 0.2],
        movable=[False, False, True, True, True], restart_s=1e6,
    )  # fmt: skip
    plan, _ = policies.get("network")(view, {})
    assert plan.placements["j3"].nodes == {"n1": {"fast": 1}, "n3": {"fast": 3}}
    assert "j4" in plan.waiting
    plan, _ = policies.get("network")(replace(view, options=OFF), {})
    assert set(plan.placements["j4"].nodes) == {"n3"}


@given(
    left=st.lists(st.sampled_from([10.0, 1e3, 1e4, 1e5, float("inf")]), min_size=4, max_size=12),
    ends=st.lists(st.sampled_from([1.0, 1e3, 1e5, float("inf")]), min_size=2, max_size=2),
    sizes=st.lists(st.sampled_from([TWO, HALF, SIX, GANG]), min_size=12, max_size=12),
)
@settings(max_examples=40, deadline=None)
def test_plans_with_promises_keep_to_what_there_is(
    left: list[float], ends: list[float], sizes: list[Any]
) -> None:
    view = racks([GANG, SIX, *sizes[: len(left)]], [*ends, *left], HELD)
    decide = policies.get("network")
    plan, state = decide(view, {})
    check(view, plan)
    assert (plan, state) == decide(view, {})
    after = applied(view, plan)
    check(after, decide(after, state)[0])
