"""Hadar on small views by hand: which job goes where, who moves, who is stopped."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import JobArrays, NodeArrays, View
from slurm_hadar.policies.hadar import policy as hadar
from slurm_hadar.policies.reason_text import move_reason
from slurm_hadar.testing import NOW, jobs_of, nodes_of, place_of, view_of
from slurm_hadar.testing import check_plan as check

pytestmark = pytest.mark.filterwarnings("error")

_NEVER_CRITICAL: Mapping[str, object] = {"critical": 1e6}


def _decide(view: View) -> Plan:
    plan, _ = hadar.decide(view, {})
    check(view, plan)
    return plan


def _run(
    nodes: NodeArrays,
    jobs: JobArrays,
    counts: tuple[int, ...] = (1,),
    **options: Any,
) -> Plan:
    return _decide(view_of(nodes, jobs, counts, {**_NEVER_CRITICAL, **options}))


def test_each_job_gets_the_type_on_which_it_has_the_advantage() -> None:
    # Both are faster on the first type; j1 loses little on the second.
    jobs = jobs_of([[[10.0], [1.0]], [[10.0], [9.0]]], left=[36_000.0, 30_000.0])
    plan = _run(nodes_of([[1, 0], [0, 1]]), jobs)
    assert plan.placements["j0"].gpus == {"fast": 1}
    assert plan.placements["j1"].gpus == {"middle": 1}


def test_more_weight_goes_first() -> None:
    one, twins = nodes_of([[1]]), [[[1.0]], [[1.0]]]
    assert set(_run(one, jobs_of(twins, weight=[1.0, 2.0])).placements) == {"j1"}
    assert set(_run(one, jobs_of(twins, weight=[2.0, 1.0])).placements) == {"j0"}


def test_without_weight_nothing_runs_and_the_reason_says_so() -> None:
    plan = _decide(view_of(nodes_of([[2]]), jobs_of([[[1.0]], [[1.0]]], weight=[0.0, 1.0])))
    assert set(plan.placements) == {"j1"}
    assert "its weight is 0" in plan.waiting["j0"]


def test_a_job_that_decides_when_all_ends_goes_first() -> None:
    one, jobs = nodes_of([[1]]), jobs_of([[[1.0]], [[1.0]]], left=[360_000.0, 3_600.0])
    assert set(_run(one, jobs, critical=0.8).placements) == {"j0"}
    assert set(_run(one, jobs).placements) == {"j1"}


@pytest.mark.parametrize(("critical", "first"), [(0.8, "gangs"), (1e6, "singles")])
def test_gangs_that_leave_each_other_no_slack_go_first(critical: float, first: str) -> None:
    # Four gangs of 8 need 10 h each: 20 h on the 16 of 20 GPUs that gangs of 8 can use, while
    # all the work by GPU-hours is 18 h. None of them is critical by itself.
    rates = [[[0.0, 1.0]]] * 4 + [[[1.0, 0.0]]] * 40
    jobs = jobs_of(rates, left=[36_000.0] * 4 + [3_600.0] * 40, max_nodes=[2] * 4 + [1] * 40)
    plan = _run(nodes_of([[4]] * 5), jobs, (1, 8), critical=critical)
    sizes = sorted(placement.gpu_count for placement in plan.placements.values())
    assert sizes == ([1, 1, 1, 1, 8, 8] if first == "gangs" else [1] * 20)
    ahead = "ahead because it decides when all the work ends"
    assert (ahead in plan.placements.get("j0", next(iter(plan.placements.values()))).reason) is (
        first == "gangs"
    )


def test_where_all_are_gangs_they_keep_their_order() -> None:
    jobs = jobs_of([[[1.0]]] * 3, left=[36_000.0, 3_600.0, 30_000.0], max_nodes=2)
    plan = _run(nodes_of([[4], [4]]), jobs, (8,), critical=0.8)
    assert set(plan.placements) == {"j1"}
    assert "ahead" not in plan.placements["j1"].reason


def test_one_node_is_preferred_to_two() -> None:
    jobs = jobs_of([[[1.0]]], max_nodes=2)
    assert set(_run(nodes_of([[1], [2], [1]]), jobs, (2,)).placements["j0"].nodes) == {"n1"}


def test_a_small_job_goes_where_it_breaks_no_empty_node() -> None:
    plan = _run(nodes_of([[4], [1], [2]]), jobs_of([[[1.0]]]))
    assert set(plan.placements["j0"].nodes) == {"n1"}


@pytest.mark.parametrize(("most", "fits"), [(1, False), (2, False), (3, True)])
def test_no_more_nodes_than_the_job_can_use(most: int, fits: bool) -> None:
    plan = _run(nodes_of([[2], [1], [1]]), jobs_of([[[1.0]]], max_nodes=most), (4,))
    assert ("j0" in plan.placements) is fits


def test_a_gang_takes_a_running_jobs_node_where_idle_ones_would_be_too_many() -> None:
    jobs = jobs_of(
        [[[0.0, 0.0, 9.0]], [[0.0, 1e-3, 0.0]]],
        held=[(1, 0, 0, 3)],
        max_nodes=[2, 1],
        restart_s=0.0,
    )
    plan = _run(nodes_of([[3], [1], [1]]), jobs, (1, 3, 4), preempt=True, min_stay_s=0.0)
    assert plan.placements["j0"].nodes == {"n0": {"fast": 3}, "n1": {"fast": 1}}


@pytest.mark.parametrize(("mixable", "most"), [(True, 2), (False, 2), (True, 1)])
def test_types_are_mixed_only_over_nodes_and_only_where_that_is_allowed(
    mixable: bool, most: int
) -> None:
    jobs = jobs_of([[[2.0], [1.0]]], mixable=mixable, max_nodes=most)
    plan = _run(nodes_of([[1, 0], [0, 1]]), jobs, (2,))
    if mixable and most > 1:
        assert plan.placements["j0"].nodes == {"n0": {"fast": 1}, "n1": {"middle": 1}}
    else:
        assert "j0" in plan.waiting


@pytest.mark.parametrize("mixable", [True, False])
def test_what_is_left_of_two_types_is_mixed_only_where_that_is_allowed(mixable: bool) -> None:
    jobs = jobs_of(
        [[[0.0, 2.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]],
        held=[(1, 0, 0, 1), (2, 1, 1, 1)],
        movable=False,
        mixable=mixable,
        max_nodes=2,
    )
    plan = _run(nodes_of([[2, 0], [0, 2]]), jobs, (1, 2))
    assert ("j0" in plan.placements) is mixable


def test_a_node_with_two_types_gives_one_of_them() -> None:
    jobs = jobs_of([[[2.0], [1.0]]], mixable=True, max_nodes=2)
    assert "j0" in _run(nodes_of([[1, 1]]), jobs, (2,)).waiting


def test_a_mix_is_as_fast_as_its_slowest_type() -> None:
    # A mix would be slower than the two slow GPUs of one node, for their network between.
    jobs = jobs_of([[[2.0], [1.0]]], mixable=True, max_nodes=2)
    plan = _run(nodes_of([[1, 0], [0, 2]]), jobs, (2,))
    assert plan.placements["j0"].nodes == {"n1": {"middle": 2}}


def _moves(gain_s: float, **options: Any) -> bool:
    """Whether a job with 3,600 s left moves to a place where it needs that much less."""
    rate = [[[3_600.0 / (3_600.0 - gain_s)], [1.0]]]
    jobs = jobs_of(rate, left=3_600.0, restart_s=100.0, held=[(0, 1, 1, 1)])
    return _run(nodes_of([[1, 0], [0, 1]]), jobs, **options).placements["j0"].gpus != {"middle": 1}


def test_a_move_must_save_its_restart_several_times_over() -> None:
    # At the new place it needs the restart too.
    assert not _moves(290.0, least_gain=0.0)
    assert _moves(310.0, least_gain=0.0)
    assert _moves(290.0, least_gain=0.0, gain_over_cost=1.5)


def test_a_move_must_save_a_part_of_the_time_left() -> None:
    assert not _moves(1_000.0, least_gain=0.3)
    assert _moves(1_300.0, least_gain=0.3)


def test_no_move_soon_after_the_last_one() -> None:
    rate = [[[10.0], [1.0]]]
    for since, gpus in ((NOW - 599.0, {"middle": 1}), (NOW - 601.0, {"fast": 1})):
        jobs = jobs_of(rate, held=[(0, 1, 1, 1)], since_s=since)
        assert _run(nodes_of([[1, 0], [0, 1]]), jobs).placements["j0"].gpus == gpus


@pytest.mark.parametrize("preempt", [False, True])
def test_a_running_job_is_stopped_only_where_that_is_switched_on(preempt: bool) -> None:
    jobs = jobs_of([[[1.0]], [[1.0]]], left=[360_000.0, 3_600.0], held=[(0, 0, 0, 1)])
    plan = _run(nodes_of([[1]]), jobs, preempt=preempt)
    assert set(plan.placements) == ({"j1"} if preempt else {"j0"})
    if preempt:
        assert "stopped for jobs that gain more" in plan.waiting["j0"]


def test_nobody_is_stopped_on_a_node_that_has_less_than_is_held() -> None:
    # What a stopped job would leave there is partly gone already.
    jobs = jobs_of([[[0.0, 1e-3]], [[9.0, 0.0]]], held=[(0, 0, 0, 4)])
    assert set(_run(nodes_of([[2]]), jobs, (2, 4), preempt=True).placements) == {"j0"}
    assert set(_run(nodes_of([[4]]), jobs, (2, 4), preempt=True).placements) == {"j1"}


@pytest.mark.parametrize(("patience", "on_slow"), [(0.5, "j2"), (0.0, "j1")])
def test_patience_leaves_a_place_to_whom_it_suits(patience: float, on_slow: str) -> None:
    # j0 and j1 come first and are ten times slower on the second type; j2 can use only that.
    jobs = jobs_of(
        [[[10.0], [1.0]], [[10.0], [1.0]], [[0.0], [1.0]]], left=[3_600.0, 3_700.0, 80_000.0]
    )
    plan = _run(nodes_of([[1, 0], [0, 1]]), jobs, patience=patience)
    assert plan.placements["j0"].gpus == {"fast": 1}
    assert plan.placements[on_slow].gpus == {"middle": 1}
    # The effective throughput there, in units of the job's best.
    assert f"= value {1 if on_slow == 'j2' else 0.1} -" in plan.placements[on_slow].reason


def test_a_place_freed_by_a_move_is_used_in_the_same_round() -> None:
    # Only j0 can use the fast GPU, only j1 waits for the one that j0 leaves.
    jobs = jobs_of([[[10.0], [1.0]], [[0.0], [1.0]]], left=[9e5, 1e3], held=[(0, 1, 1, 1)])
    plan = _run(nodes_of([[1, 0], [0, 1]]), jobs)
    assert {id_: dict(p.gpus) for id_, p in plan.placements.items()} == {
        "j0": {"fast": 1},
        "j1": {"middle": 1},
    }


def _first(**options: Any) -> str:
    """Which of two jobs gets the only GPU: j0 is short and new, j1 long and old."""
    jobs = jobs_of(
        [[[1.0]], [[1.0]]],
        left=[3_600.0, 5_000.0],
        total=[3_600.0, 5_000.0],
        arrival_s=[NOW, NOW - 90_000.0],
    )
    (id_,) = _run(nodes_of([[1]]), jobs, **options).placements
    return id_


def test_each_utility_prefers_whom_its_name_says() -> None:
    assert _first(utility="throughput") == "j0"
    assert _first(utility="makespan") == "j1"
    assert _first(utility="fairness") == "j1"


def test_fairness_is_for_those_who_waited_and_not_simply_for_long_jobs() -> None:
    for waited, winner in (([90_000.0, 0.0], "j0"), ([0.0, 90_000.0], "j1")):
        jobs = jobs_of([[[1.0]], [[1.0]]], arrival_s=NOW - np.array(waited))
        assert set(_run(nodes_of([[1]]), jobs, utility="fairness").placements) == {winner}


def test_lifetime_counts_the_waiting_and_throughput_does_not() -> None:
    # The paper's effective throughput over the whole life falls while a job waits.
    jobs = jobs_of([[[1.0]], [[1.0]]], total=36_000.0, arrival_s=[NOW - 90_000.0, NOW])
    one = nodes_of([[1]])
    assert set(_run(one, jobs, utility="throughput").placements) == {"j0"}  # a tie, by age
    assert set(_run(one, jobs, utility="lifetime").placements) == {"j1"}


def test_reasons_name_the_gain_the_price_and_the_alternative() -> None:
    jobs = jobs_of([[[10.0], [1.0]], [[10.0], [9.0]], [[4.0], [4.0]]], left=[3.6e4, 3.6e4, 3.6e6])
    view = view_of(nodes_of([[1, 0], [0, 1]]), jobs, (1,), _NEVER_CRITICAL)
    plan = _decide(view)
    assert set(plan.waiting) == {"j2"}
    for id_, other in (("j0", "middle"), ("j1", "fast")):
        reason = plan.placements[id_].reason
        for part in ("gain", "value", "price", f"next best 1 x {other}", "ends in"):
            assert part in reason
        kind, count = next(iter(plan.placements[id_].gpus.items()))
        assert re.match(f"{count} x {kind} on n\\d+: ends in ", reason), "first what owners ask for"
        assert re.search(
            r"number [12] of 3 in the policy's queue, in the order of gain per price;", reason
        )
    assert "GPUs: it needs 1, 0 are free" in plan.waiting["j2"]
    assert "best for it: 1 x" in plan.waiting["j2"]
    assert any("per GPU-hour" in note for note in plan.notes)
    assert any("all present work ends in" in note for note in plan.notes)


def test_the_numbers_of_a_reason_belong_together() -> None:
    jobs = jobs_of([[[float(rate)]] for rate in range(1, 7)], left=3.6e4)
    plan = _run(nodes_of([[1], [1], [1]]), jobs)
    assert len(plan.placements) == 3
    for placement in plan.placements.values():
        found = re.search(r"gain (\S+) = value (\S+) - price ([^\s;]+)", placement.reason)
        assert found is not None
        gain, value, price = map(float, found.groups())
        assert gain == pytest.approx(value - price, abs=2e-2)
        assert 0.0 < gain <= value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate": 0.0}, "no GPU type and count that it can run with"),
        (
            {"groups_of": False},
            "1 x fast that are free or held by jobs that a plan can move are on",
        ),
        ({"cpus_per_gpu": 2_000.0}, "CPUs"),
        ({"mem_per_gpu_mb": 2e6}, "memory"),
    ],
)
def test_reasons_to_wait_name_what_is_short(changes: dict[str, Any], words: str) -> None:
    rate = changes.pop("rate", 1.0)
    plan = _run(nodes_of([[1]]), jobs_of([[[rate]]], **changes))
    assert words in plan.waiting["j0"]


def test_gpus_that_other_jobs_have_do_not_make_a_job_unable_to_run() -> None:
    """They are missing in the view; it may start there a moment later."""
    full = _run(nodes_of([[0, 0], [0, 1]]), jobs_of([[[1.0], [0.0]]]))
    assert full.waiting["j0"].startswith("no GPU of fast is open to it now")
    few = _run(nodes_of([[1, 0], [0, 2]]), jobs_of([[[1.0], [1.0]]]), (4,))
    assert few.waiting["j0"] == (
        "it needs 4 GPUs, and only 1 x fast + 2 x middle are free or held by jobs that a plan can"
        " move"
    )


def test_idle_gpus_on_nodes_closed_to_a_job_are_not_called_taken() -> None:
    nodes = replace(nodes_of([[0, 0], [0, 4]]), group=np.array([0, 1]))
    jobs = replace(jobs_of([[[1.0], [1.0]]]), groups=np.array([[True, False]]))
    assert _run(nodes, jobs).waiting["j0"] == (
        "no GPU of fast is open to it now: other jobs that no plan can move have them, they are"
        " kept for a job ahead, or their nodes are down, drained or closed to it; 4 x middle"
        " that are free or held by jobs that a plan can move are on nodes that its partitions, its"
        " constraint or a reservation exclude"
    )


def test_short_of_gpus_together_and_of_nodes() -> None:
    two = nodes_of([[1], [1]])
    assert "GPUs on one node" in _run(two, jobs_of([[[1.0]]]), (2,)).waiting["j0"]
    three, jobs = nodes_of([[1], [1], [1]]), jobs_of([[[1.0]]], max_nodes=2)
    assert "at most 2 nodes" in _run(three, jobs, (3,)).waiting["j0"]


def test_a_running_job_says_why_it_stays() -> None:
    for changes, words in (
        ({"movable": False}, "it cannot be moved now"),
        ({"since_s": NOW - 60.0}, "it came here less than 10 min ago"),
        ({}, "no free placement is worth a restart of 30 s"),
    ):
        jobs = jobs_of([[[1.0], [1.0]]], held=[(0, 0, 0, 1)], **changes)
        assert words in _run(nodes_of([[1, 0], [0, 1]]), jobs).placements["j0"].reason


@pytest.mark.parametrize(
    ("limit_s", "says"),
    [(1_200.0, "reaches its time limit in 20 min;"), (40_000.0, "ends in 10.0 h;"),
     (np.inf, "ends in 10.0 h;")],
)  # fmt: skip
def test_a_job_whose_time_limit_comes_first_is_not_said_to_end(limit_s: float, says: str) -> None:
    jobs = jobs_of([[[1.0], [1.0]]], held=[(0, 0, 0, 1)])
    jobs = replace(jobs, limit_s=np.array([limit_s]))
    reason = _run(nodes_of([[1, 0], [0, 1]]), jobs).placements["j0"].reason
    assert reason.startswith(f"stays on 1 x fast (n0), {says}")


def test_a_job_of_unknown_work_is_not_said_to_reach_its_limit() -> None:
    jobs = jobs_of([[[1.0], [1.0]]], held=[(0, 0, 0, 1)])
    jobs = replace(jobs, limit_s=np.array([60.0]), end_known=np.array([False]))
    reason = _run(nodes_of([[1, 0], [0, 1]]), jobs).placements["j0"].reason
    assert "end unknown" in reason and "limit" not in reason


def test_a_move_says_what_it_gains() -> None:
    jobs = jobs_of([[[10.0], [1.0]]], held=[(0, 1, 1, 1)])
    reason = _run(nodes_of([[1, 0], [0, 1]]), jobs).placements["j0"].reason
    assert "it moves, as where it is it ends in 10.0 h" in reason


def test_more_gpus_only_while_nobody_else_wants_them() -> None:
    rate = [[[1.0, 1.9, 3.0]]]
    alone = _run(nodes_of([[4]]), jobs_of(rate), (1, 2, 4))
    assert alone.placements["j0"].gpus == {"fast": 4}
    four = _run(nodes_of([[4]]), jobs_of(rate * 4), (1, 2, 4))
    assert [p.gpu_count for p in four.placements.values()] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("utility", "speed"), ("preempt", 1), ("beam", -1), ("patience", "much"), ("effort", True)],
)
def test_options_that_make_no_sense(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"policy option {name}: "):
        _run(nodes_of([[1]]), jobs_of([[[1.0]]]), **{name: value})


def test_options_of_others_are_ignored() -> None:
    assert _run(nodes_of([[1]]), jobs_of([[[1.0]]]), queues=[1, 2]).placements


def test_the_state_is_plain() -> None:
    view = view_of(nodes_of([[1, 0], [0, 1]]), jobs_of([[[1.0], [2.0]]]))
    _, state = hadar.decide(view, {})
    assert isinstance(state["horizon_s"], float)
    assert place_of(view, hadar.decide(view, state)[0].placements["j0"]) == {(1, 1): 1}


def test_a_move_names_no_factor_that_rounds_to_one() -> None:
    jobs = replace(jobs_of([[[1.0]]]), end_known=np.array([False]))
    unknown = view_of(nodes_of([[1]]), jobs, (1,), {})
    assert move_reason(unknown, 0, 100.0, 104.0) == "; it moves"
    assert move_reason(unknown, 0, 100.0, 150.0).endswith("expected to be 1.5 times as fast there")
