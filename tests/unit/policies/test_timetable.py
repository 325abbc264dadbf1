"""The timetable policy: its plans are valid and settle, its memory is plain, its numbers hold."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.traits import NetworkTrait
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.timetable.plan import job_classes
from slurm_hadar.policies.timetable.policy import decide
from slurm_hadar.policies.timetable.speeds import learn, with_speeds
from slurm_hadar.solvers.gang_assignment import assign
from slurm_hadar.solvers.lower_bounds import bounds
from slurm_hadar.solvers.time_indexed import TimeIndexedWork
from slurm_hadar.testing import applied, crowd, jobs_of, nodes_of, places, view_of
from slurm_hadar.testing import check_plan as check
from slurm_hadar.testing.strategies import views

pytestmark = pytest.mark.filterwarnings("error")

_QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_OPTIONS: st.SearchStrategy[Mapping[str, object]] = st.fixed_dictionaries(
    {},
    optional={
        "min_stay_s": st.sampled_from([0.0, 600.0]),
        "stretch": st.sampled_from([1.0, 1.05, 3.0]),
        "duty": st.sampled_from([0.5, 0.9, 1.0]),
        "critical": st.sampled_from([0.0, 0.9, 2.0]),
        "buckets": st.sampled_from([2, 6, 18]),
        "utility": st.just("makespan"),
    },
)


@given(views(options=_OPTIONS))
@_QUICK
def test_plans_keep_to_what_there_is(view: View) -> None:
    plan, state = decide(view, {})
    check(view, plan)
    assert state == json.loads(json.dumps(state))


@given(views(options=_OPTIONS))
@_QUICK
def test_same_view_same_plan(view: View) -> None:
    assert decide(view, {}) == decide(view, {})


def _gangs_that_no_node_fits(
    gpus: list[int], rate: list[list[float]], left: list[float], **fields: Any
) -> View:
    """Nodes of one type with these GPUs, and jobs on 1 or 3 of one node: the GPUs of a pool are
    enough for all that are chosen, and those of a node are not."""
    jobs = jobs_of(np.array(rate)[:, None, :], left=left, max_nodes=1, **fields)
    return view_of(nodes_of([[each] for each in gpus]), jobs, counts=(1, 3))


_TWO_GANGS = _gangs_that_no_node_fits(
    [2, 4, 1], [[1.0, 1.0], [0.0, 3.0], [1.0, 1.0], [0.0, 1.0]], [5e3, 36e3, 36e3, 36e3],
    movable=[False, True, True, True],
)  # fmt: skip
_A_GANG_RUNS = _gangs_that_no_node_fits(
    [4, 2], [[1.0, 2.0], [0.0, 1.0], [2.0, 3.0], [1.0, 2.0]], [360.0, 5e3, 5e3, 36e3],
    movable=[True, False, True, True], held=[(1, 0, 0, 3)],
)  # fmt: skip


@given(views(degenerate=False))
@example(_TWO_GANGS)
@example(_A_GANG_RUNS)
@_QUICK
def test_second_round_changes_nothing(view: View) -> None:
    # Where a restart costs nothing a job may change to a place that is as good.
    view = replace(view, jobs=replace(view.jobs, restart_s=np.maximum(view.jobs.restart_s, 1.0)))
    first, state = decide(view, {})
    after = applied(view, first, later_s=1.0)
    second, _ = decide(after, json.loads(json.dumps(state)))
    check(after, second)
    assert places(after, second) == places(view, first)


def test_a_running_job_keeps_its_gpus_where_more_do_not_fit_on_a_node() -> None:
    # Three GPUs are free beside the two jobs that stay, on two nodes. The fullest that fits one
    # GPU is not the node on which the job runs.
    view = _gangs_that_no_node_fits(
        [4, 1], [[1.0, 0.0], [1.0, 0.0], [1.0, 5.0]], [36e3] * 3,
        movable=[False, False, True], held=[(0, 0, 0, 1), (1, 0, 0, 1), (2, 0, 0, 1)],
    )  # fmt: skip
    plan, state = decide(view, {})
    assert places(view, plan)["j2"] == {(0, 0): 1}
    assert state["chosen"]["j2"] == 0  # type: ignore[index]


def test_where_no_node_fits_a_second_gang_one_job_gets_fewer_gpus() -> None:
    # Two gangs of three would have all six GPUs, and only the first node has three.
    view = _gangs_that_no_node_fits(
        [4, 2], [[0.0, 2.0], [1.0, 3.0], [0.0, 2.0]], [5e3, 5e3, 36e3]
    )  # fmt: skip
    plan, _ = decide(view, {})
    assert places(view, plan) == {"j0": {(0, 0): 3}, "j1": {(0, 0): 1}}


def test_a_gang_that_no_node_fits_says_so() -> None:
    view = _gangs_that_no_node_fits([3, 2, 1], [[0.0, 3.0], [0.0, 3.0]], [36e3, 36e3])
    plan, _ = decide(view, {})
    assert set(plan.placements) == {"j0"}
    assert "short of GPUs on one node: it needs 3 together" in plan.waiting["j1"]


@given(views(degenerate=False), st.integers(0, 6))
@_QUICK
def test_memory_of_another_queue_does_no_harm(view: View, gone: int) -> None:
    plan, state = decide(view, {})
    after = applied(view, plan)
    keep = np.arange(len(view.jobs.ids)) != gone
    rows = np.flatnonzero(keep)
    fewer = replace(
        after.jobs,
        ids=tuple(after.jobs.ids[row] for row in rows),
        held=np.array(
            [
                (int(np.searchsorted(rows, job)), *rest)
                for job, *rest in after.jobs.held.tolist()
                if keep[job]
            ],
            dtype=np.int64,
        ).reshape(-1, 4),
        **{
            name: getattr(after.jobs, name)[rows]
            for name in after.jobs.__dataclass_fields__
            if name not in ("ids", "held", "cpu_sensitivity", "batches", "network", "prospects")
        },
    )
    smaller = replace(after, jobs=fewer)
    check(smaller, decide(smaller, state)[0])
    check(after, decide(after, decide(smaller, {})[1])[0])


@given(views(running=False, degenerate=False))
@_QUICK
def test_no_gpu_is_idle_that_a_waiting_job_could_use(view: View) -> None:
    plan, _ = decide(view, {})
    free = view.nodes.gpus.copy()
    if view.jobs.cpus_per_gpu.any() or view.jobs.mem_per_gpu_mb.any():
        return
    for place in places(view, plan).values():
        for (node, kind), count in place.items():
            free[node, kind] -= count
    for job, id_ in enumerate(view.jobs.ids):
        if id_ in plan.placements:
            continue
        for kind in range(len(view.types)):
            rates = view.jobs.rate[job, kind]
            open_ = view.jobs.groups[job, view.nodes.group] & (free[:, kind] > 0)
            for column in np.flatnonzero(rates > 0):
                assert (free[open_, kind] < view.counts[column]).all()


@pytest.mark.parametrize("limit", [30_000, 0])
@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_is_served(seed: int, limit: int) -> None:
    view = crowd(seed, {"exact": limit, "coarse": 500})
    plan, state = decide(view, {})
    check(view, plan)
    after = applied(view, plan)
    again, _ = decide(after, state)
    check(after, again)
    assert len(plan.placements) >= 12


def test_a_state_of_version_1_is_read() -> None:
    view = crowd(0, {})
    plan, state = decide(view, {})
    before = {**state, "version": 1, "laid": state["chosen"]}
    del before["chosen"]
    after = applied(view, plan)
    assert decide(after, before) == decide(after, state) != decide(after, {})


def test_each_gets_the_type_on_which_it_has_the_advantage() -> None:
    jobs = jobs_of([[[4.0], [3.5]], [[4.0], [1.0]]])
    plan, _ = decide(view_of(nodes_of([[1, 0], [0, 1]]), jobs), {})
    assert dict(plan.placements["j0"].gpus) == {"middle": 1}
    assert dict(plan.placements["j1"].gpus) == {"fast": 1}


def test_the_short_one_first_unless_the_long_one_has_no_slack() -> None:
    rate = [[[1.0]], [[1.0]], [[1.0]]]
    one = nodes_of([[1]])
    plan, _ = decide(view_of(one, jobs_of(rate, left=[9e4, 1e4, 5e4])), {})
    assert set(plan.placements) == {"j1"}
    assert "other jobs gain more from it" in plan.waiting["j0"]
    # Two GPUs, and a job that needs one of them all the time: the short ones share the other.
    long = jobs_of([[[1.0]]] * 9, left=[8e4] + [1e4] * 8)
    plan, _ = decide(view_of(nodes_of([[2]]), long, options={"stretch": 1.0, "keep": 1.0}), {})
    assert "j0" in plan.placements
    assert "run nearly all the time" in plan.placements["j0"].reason


@pytest.mark.parametrize(
    ("runs", "wrong", "goes_on"), [(True, 0.0, True), (False, 0.0, False), (True, 10.0, False)]
)
def test_a_running_job_is_not_stopped_as_soon_as_it_has_a_little_slack(
    runs: bool, wrong: float, goes_on: bool
) -> None:
    # All the work takes 85,000 s on two GPUs, the long job 82,000 s of them.
    held = [(0, 0, 0, 1)] if runs else []
    jobs = jobs_of([[[1.0]]] * 12, left=[8.2e4] + [8e3] * 11, held=held, restart_s=1.0)
    # ``wrong`` of 20 ended jobs had declared their work wrongly.
    before = {"now": 0.0, "jobs": {}, "measured": {}, "ended": 20.0, "wrong": wrong}
    options = {"stretch": 1.0, "keep": 1.0}
    plan, _ = decide(view_of(nodes_of([[2]]), jobs, options=options), {"speeds": before})
    placed = plan.placements.get("j0")
    assert (placed is not None and "before others" in placed.reason) == goes_on


def test_nobody_moves_for_less_than_the_restart_costs() -> None:
    rate = [[[1.0], [1.1]]]
    nodes = nodes_of([[1, 0], [0, 1]])
    for restart, kind in ((1.0, "middle"), (1e5, "fast")):
        jobs = jobs_of(rate, held=[(0, 0, 0, 1)], restart_s=restart)
        plan, _ = decide(view_of(nodes, jobs), {})
        assert dict(plan.placements["j0"].gpus) == {kind: 1}


@pytest.mark.parametrize("left_s, kind", [(70.0, "middle"), (100.0, "fast")])
def test_the_last_job_moves_to_an_idle_faster_gpu_where_that_saves_two_restarts(
    left_s: float, kind: str
) -> None:
    # It would be there after a quarter of the time; two restarts take 60 s.
    jobs = jobs_of([[[4.0], [1.0]]], held=[(0, 1, 1, 1)], left=left_s, restart_s=30.0)
    placement = decide(view_of(nodes_of([[1, 0], [0, 1]]), jobs), {})[0].placements["j0"]
    assert dict(placement.gpus) == {kind: 1}
    assert ("no other job needs these GPUs" in placement.reason) == (kind == "fast")


def test_of_two_jobs_the_one_that_saves_more_moves_to_the_idle_gpu() -> None:
    held = [(0, 1, 1, 1), (1, 1, 1, 1)]
    jobs = jobs_of([[[3.0], [1.0]], [[4.0], [1.0]]], held=held, left=100.0, restart_s=30.0)
    view = view_of(nodes_of([[1, 0], [0, 2]]), jobs)
    plan, state = decide(view, {})
    kinds = {id_: list(placement.gpus) for id_, placement in plan.placements.items()}
    assert kinds == {"j0": ["middle"], "j1": ["fast"]}
    # It stays there, and the round after it is no new choice.
    after = applied(view, plan, later_s=1.0)
    again, later = decide(after, state)
    assert places(after, again) == places(view, plan)
    assert later["chosen_s"] == state["chosen_s"]


def test_no_job_leaves_its_node_for_idle_gpus_that_are_apart() -> None:
    jobs = jobs_of([[[0.0, 4.0], [0.0, 1.0]]], held=[(0, 2, 1, 2)], left=100.0, restart_s=30.0)
    for nodes, kind in (([[2, 0], [0, 0], [0, 2]], "fast"), ([[1, 0], [1, 0], [0, 2]], "middle")):
        view = view_of(nodes_of(nodes), replace(jobs, max_nodes=np.array([2])), (1, 2))
        assert dict(decide(view, {})[0].placements["j0"].gpus) == {kind: 2}


def test_elastic_jobs_take_what_is_idle_and_give_it_back() -> None:
    rate = [[[1.0, 1.9, 3.5]]]
    plan, _ = decide(view_of(nodes_of([[4]]), jobs_of(rate), counts=(1, 2, 4)), {})
    assert dict(plan.placements["j0"].gpus) == {"fast": 4}
    four = jobs_of(rate * 4)
    plan, _ = decide(view_of(nodes_of([[4]]), four, counts=(1, 2, 4)), {})
    assert [p.gpu_count for p in plan.placements.values()] == [1, 1, 1, 1]


def test_who_did_more_than_declared_is_not_taken_for_nearly_done() -> None:
    # The other four keep any of them from being most of the work.
    jobs = jobs_of([[[1.0]]] * 6, left=[1.0, 2e3, *[2e4] * 4], total=[9e3, 2e3, *[2e4] * 4])
    plan, _ = decide(view_of(nodes_of([[1]]), jobs), {})
    assert set(plan.placements) == {"j1"}


def test_like_jobs_share_a_class_and_the_longest_stand_alone() -> None:
    seconds = np.repeat([[10.0, 20.0], [1000.0, np.inf], [50.0, 40.0]], 30, axis=0)
    seconds[0] = 1e6
    group = job_classes(seconds, 12)
    assert len(set(group.tolist())) <= 12
    assert (group == group[0]).sum() == 1
    assert group[20] == group[21] != group[80]
    assert job_classes(seconds, 100).tolist() == list(range(90))


def test_classes_are_few_although_the_first_jobs_are_alike() -> None:
    seconds = np.concatenate([np.full(500, 10.0), np.geomspace(11.0, 1e4, 200)])[:, None]
    assert 6 < len(set(job_classes(seconds, 12).tolist())) <= 12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stretch": 0.5}, "policy option stretch: 0.5 is not between 1 and 10"),
        ({"duty": "much"}, "policy option duty: 'much' is not a number"),
        ({"buckets": True}, "policy option buckets: True is not a number"),
    ],
)
def test_options_without_meaning(options: Mapping[str, object], words: str) -> None:
    view = view_of(nodes_of([[1]]), jobs_of([[[1.0]]]), options=options)
    with pytest.raises(UsageError, match=words):
        decide(view, {})


def test_nothing_to_do_and_nothing_to_do_it_with() -> None:
    none = jobs_of(np.zeros((0, 2, 1)))
    plan, _ = decide(view_of(nodes_of([[1, 1]]), none), {})
    assert not plan.placements and not plan.waiting and plan.notes
    plan, _ = decide(view_of(nodes_of([[0]]), jobs_of([[[1.0]]])), {})
    assert set(plan.waiting) == {"j0"}
    blank = jobs_of(np.zeros((1, 0, 0)))
    nodes = replace(nodes_of([[1]]), gpus=np.zeros((1, 0), dtype=np.int64))
    plan, _ = decide(view_of(nodes, blank, counts=()), {})
    assert set(plan.waiting) == {"j0"}


@pytest.mark.parametrize(
    ("gpus", "counts", "says"),
    [
        # Jobs that no plan moves have all of the only type that it accepts.
        ([[0, 0], [0, 1]], (1,), "no GPU of fast is open to it now: other jobs that no plan can"),
        ([[1, 0], [0, 1]], (2,), "it needs 2 GPUs, and only 1 x fast are free or held by jobs"),
        ([[1, 0], [1, 0]], (2,), "it needs 2 GPUs on at most 1 node, and those that are free or"),
    ],
)
def test_a_job_that_can_start_nowhere_now_is_not_called_unable_to_run(
    gpus: list[list[int]], counts: tuple[int, ...], says: str
) -> None:
    plan, _ = decide(view_of(nodes_of(gpus), jobs_of([[[1.0], [0.0]]]), counts), {})
    assert plan.waiting["j0"].startswith(says)


def test_a_speed_that_was_reported_wrong_is_measured() -> None:
    jobs = jobs_of([[[2.0], [1.5]]], held=[(0, 0, 0, 1)], restart_s=10.0, left=4e5, total=9e5)
    view = view_of(nodes_of([[1, 0], [0, 1]]), jobs)
    first, state = decide(view, {})
    assert dict(first.placements["j0"].gpus) == {"fast": 1}
    # It did 1 sample/s in place of 2, so the other type is the better one.
    done = replace(jobs, left=jobs.left - 360.0)
    later = replace(view, now=view.now + 360.0, jobs=done)
    seen = learn(later, state)
    assert seen.rate.tolist() == [[[1.0], [1.5]]]
    for _ in range(3):
        second, state = decide(later, state)
        later = replace(later, now=later.now + 3600.0, jobs=replace(done, left=done.left - 3600.0))
        done = later.jobs
    assert dict(second.placements["j0"].gpus) == {"middle": 1}


@pytest.mark.parametrize(
    ("known", "believed"),
    [
        # The view measured where the job runs, and estimates the other type from that.
        ((True, False), 2.0),
        # It knows both, as from a table, or neither, and a figure may be wrong alone.
        ((True, True), 1.0),
        ((False, False), 1.0),
        ((False, True), 1.0),
    ],
)
def test_a_measured_speed_stays_in_line_with_those_estimated_from_it(
    known: tuple[bool, bool], believed: float
) -> None:
    jobs = jobs_of([[[2.0], [1.5]]], held=[(0, 0, 0, 1)], restart_s=10.0, left=4e5, total=9e5)
    jobs = replace(jobs, known=np.array(known).reshape(1, 2, 1))
    view = view_of(nodes_of([[1, 0], [0, 1]]), jobs)
    _, state = decide(view, {})
    done = replace(jobs, left=jobs.left - 360.0)
    seen = learn(replace(view, now=view.now + 360.0, jobs=done), state)
    assert seen.rate.tolist() == [[[believed], [1.5]]]


def test_a_place_that_was_left_is_as_fast_as_the_view_says_now() -> None:
    # A training gets faster as it goes on, and the view with it.
    jobs = jobs_of([[[2.0], [1.5]]], held=[(0, 0, 0, 1)], restart_s=10.0, left=4e5, total=9e5)
    jobs = replace(jobs, known=np.array([[[True], [False]]]))
    view = view_of(nodes_of([[1, 0], [0, 1]]), jobs)
    _, state = decide(view, {})
    done = replace(jobs, left=jobs.left - 360.0)
    state = with_speeds(state, learn(replace(view, now=view.now + 360.0, jobs=done), state))
    held = np.array([(0, 1, 1, 1)])
    moved = replace(done, held=held, rate=2.0 * jobs.rate, since_s=np.array([view.now + 400.0]))
    seen = learn(replace(view, now=view.now + 420.0, jobs=moved), state)
    assert seen.rate.tolist() == [[[4.0], [3.0]]]


def test_a_speed_is_measured_over_minutes_not_over_a_tick() -> None:
    # Reports come every 10 s, ticks every 5 s: over one tick a job does nothing, or twice as much.
    jobs = jobs_of([[[1.0], [0.6]]], held=[(0, 0, 0, 1)], restart_s=10.0, left=9e4, total=9e4)
    view = view_of(nodes_of([[1, 0], [0, 1]]), jobs)
    state: State = {}
    for tick in range(70):
        done = 10.0 * ((tick + 1) // 2)
        now = replace(view, now=view.now + 5.0 * tick, jobs=replace(jobs, left=jobs.left - done))
        seen = learn(now, state)
        assert seen.rate[0, 0, 0] == pytest.approx(1.0, abs=0.04)
        state = with_speeds(state, seen)
    # At half its speed for so long it is believed.
    left = now.jobs.left
    for tick in range(130):
        then = replace(now, now=now.now + 5.0 * tick, jobs=replace(jobs, left=left - 2.5 * tick))
        seen = learn(then, state)
        state = with_speeds(state, seen)
    assert seen.rate[0, 0, 0] == pytest.approx(0.5, abs=0.02)


def test_a_deviation_that_no_report_explains_counts_at_once() -> None:
    jobs = jobs_of([[[1.0], [0.6]]], held=[(0, 0, 0, 1)], restart_s=10.0, left=9e4, total=9e4)
    view = view_of(nodes_of([[1, 0], [0, 1]]), jobs)

    def believed(speed: float, ticks: int, state: State) -> list[float]:
        found = []
        for tick in range(ticks):
            left = jobs.left - 60.0 * speed * tick
            now = replace(view, now=view.now + 60.0 * tick, jobs=replace(jobs, left=left))
            seen = learn(now, state)
            state = with_speeds(state, seen)
            found.append(float(seen.rate[0, 0, 0]))
        return found

    assert believed(0.5, 3, {})[1:] == pytest.approx([0.5, 0.5])
    # 10% may be the age of the reports for a minute, and not for two.
    assert believed(0.9, 3, {}) == pytest.approx([1.0, 1.0, 0.9])
    assert believed(0.97, 7, {}) == pytest.approx([1.0] * 5 + [0.97] * 2)


@pytest.mark.parametrize("at, expected", [((0, 1), 1.0), ((0, 2), 2.0)])
def test_a_speed_far_apart_is_not_that_of_type_and_count(
    at: tuple[int, int], expected: float
) -> None:
    # Two nodes of one rack would do; over both racks it is slow for another reason.
    held = [(0, node, 0, 2) for node in at]
    jobs = jobs_of([[[2.0]]], held=held, restart_s=10.0, left=4e5, total=9e5, max_nodes=4)
    jobs = replace(jobs, network=NetworkTrait(np.array([[1.0, 1.0, 0.3]]), np.ones(1)))
    nodes = replace(nodes_of([[2]] * 4), rack=np.array([0, 0, 1, 1]))
    view = view_of(nodes, jobs, counts=(4,))
    _, state = decide(view, {})
    later = replace(view, now=view.now + 360.0, jobs=replace(jobs, left=jobs.left - 360.0))
    assert learn(later, state).rate.tolist() == [[[expected]]]


def test_declarations_that_were_wrong_are_remembered() -> None:
    jobs = jobs_of([[[1.0]]] * 2, held=[(0, 0, 0, 1), (1, 0, 0, 1)], left=3e4, total=6e4)
    view = view_of(nodes_of([[2]]), jobs)
    _, state = decide(view, {})
    alone = jobs_of([[[1.0]]], held=[(0, 0, 0, 1)], left=3e4, total=6e4)
    seen = learn(replace(view, now=view.now + 360.0, jobs=alone), state)
    assert seen.wrong == pytest.approx(0.1)
    assert seen.guessed.tolist() == [0.0]


@given(views(degenerate=False))
@_QUICK
def test_bounds_hold_for_the_one_machine_of_the_views(view: View) -> None:
    left = view.jobs.left[:, None]
    if not len(left):
        return
    seconds = np.minimum(left, 4e5)
    work = TimeIndexedWork(
        seconds, np.array([1]), np.array([0]), np.array([1]), np.ones(len(left)), np.ones(len(left))
    )
    found = bounds(work, np.zeros(len(left)))
    ends = np.cumsum(np.sort(seconds[:, 0]))
    assert found.makespan_s == pytest.approx(ends[-1], rel=1e-6)
    assert seconds.mean() * (1 - 1e-6) <= found.jct_s <= ends.mean() * (1 + 1e-6)


def test_the_bound_of_many_jobs_is_close() -> None:
    seconds = np.random.default_rng(3).lognormal(8.0, 1.0, (60, 1))
    one = np.ones(60)
    work = TimeIndexedWork(seconds, np.array([1]), np.array([0]), np.array([1]), one, one)
    best = np.cumsum(np.sort(seconds[:, 0])).mean()
    assert 0.97 * best <= bounds(work, np.zeros(60)).jct_s <= best


def test_gangs_are_assigned_for_the_largest_sum() -> None:
    value = np.array([[9.0, 0.0], [8.0, 7.0], [5.0, 4.9]])
    found = assign(value, np.array([1, 1]), np.array([0, 1]), np.array([1, 1]))
    assert found.tolist() == [0, 1, -1]
    gangs = np.array([[5.0], [4.0], [4.0]])
    two = np.array([[5.0, 0.0], [0.0, 3.0], [0.0, 3.0]])
    assert assign(gangs, np.array([4]), np.array([0]), np.array([8])).tolist() == [0, 0, -1]
    assert assign(two, np.array([4, 2]), np.array([0, 0]), np.array([4])).tolist() == [-1, 1, 1]


def test_reasons_give_gain_value_and_price_as_the_glossary_has_them() -> None:
    jobs = jobs_of([[[1.0], [2.0]]] * 3, held=[(0, 0, 0, 1)], restart_s=1.0)
    plan = decide(view_of(nodes_of([[1, 0], [0, 1]]), jobs), {})[0]
    reasons = [*(p.reason for p in plan.placements.values()), *plan.waiting.values()]
    assert len(reasons) == 3 and plan.waiting
    for reason in reasons:
        found = re.search(r"gain (\S+) = value (\S+) - price ([0-9.e+-]+)", reason)
        assert found, reason
        gain, value, price = (float(part) for part in found.groups())
        assert gain == pytest.approx(value - price, abs=0.02 * value)
        assert "gang" not in reason and "hour here" not in reason


def test_a_job_that_stays_says_what_another_placement_would_gain() -> None:
    # The other one has the faster GPU, and this one may not take it.
    jobs = jobs_of([[[2.0], [1.0]], [[2.0], [1.0]]], held=[(0, 0, 0, 1), (1, 1, 1, 1)])
    view = view_of(nodes_of([[1, 0], [0, 1]]), replace(jobs, movable=np.array([False, True])))
    plan = decide(view, {})[0]
    assert f"next best 1 x {view.types[0]}: gain " in plan.placements["j1"].reason
    slower = jobs_of([[[0.5], [1.0]]], held=[(0, 1, 1, 1)])
    reason = decide(view_of(nodes_of([[1, 0], [0, 1]]), slower), {})[0].placements["j0"].reason
    assert reason.startswith("stays on 1 x middle")
    assert "no other placement has more value for it" in reason


def test_a_job_that_moves_where_it_is_slower_says_for_whom() -> None:
    # Both are faster on the one fast GPU, the other one by far more.
    rate, held = [[[1.2], [1.0]], [[4.0], [1.0]]], [(0, 0, 0, 1), (1, 1, 1, 1)]
    jobs = jobs_of(rate, held=held, restart_s=1.0)
    plan = decide(view_of(nodes_of([[1, 0], [0, 1]]), jobs), {})[0]
    gives, gets = (plan.placements[id_] for id_ in ("j0", "j1"))
    assert dict(gives.gpus) == {"middle": 1} and dict(gets.gpus) == {"fast": 1}
    said = r"; it gives 1 x fast, value \S+, to jobs that gain more there"
    assert re.search(said, gives.reason) and "it moves from 1 x middle" in gets.reason


@pytest.mark.parametrize("ago_s, kind", [(1.0, "middle"), (400.0, "fast")])
def test_a_job_moves_onto_idle_gpus_from_the_second_round_of_its_run(
    ago_s: float, kind: str
) -> None:
    jobs = jobs_of([[[4.0], [1.0]]], held=[(0, 1, 1, 1)], left=100.0, restart_s=30.0)
    view = view_of(nodes_of([[1, 0], [0, 1]]), jobs)
    view = replace(view, jobs=replace(jobs, since_s=np.array([view.now - ago_s])))
    assert dict(decide(view, {})[0].placements["j0"].gpus) == {kind: 1}


def test_a_job_that_came_a_moment_ago_says_so() -> None:
    jobs = jobs_of([[[2.0], [1.0]]], held=[(0, 1, 1, 1)])
    view = view_of(nodes_of([[1, 0], [0, 1]]), jobs, options={"min_stay_s": 600.0})
    view = replace(view, jobs=replace(jobs, since_s=np.array([view.now - 60.0])))
    reason = decide(view, {})[0].placements["j0"].reason
    assert reason == "stays on 1 x middle (n1), ends in 10.0 h; it came here less than 10 min ago"
    soon = jobs_of([[[2.0], [1.0]]], held=[(0, 0, 0, 1)], left=90.0)
    last = decide(view_of(nodes_of([[1, 0], [0, 1]]), soon), {})[0]
    assert "(n0), ends in 45 s; " in last.placements["j0"].reason
    assert "all present work is planned to end in " in last.notes[0]
    fixed = replace(view, jobs=replace(view.jobs, movable=np.array([False])))
    assert decide(fixed, {})[0].placements["j0"].reason.endswith("it cannot be moved now")


def test_a_type_on_which_no_job_can_be_moved_is_full_whatever_they_gain() -> None:
    jobs = jobs_of([[[1.0]], [[9.0]]], left=[9e4, 9e4], held=[(0, 0, 0, 1)])
    one = nodes_of([[1]])
    for movable in (False, True):
        view = view_of(one, replace(jobs, movable=np.array([movable, True])))
        waits = decide(view, {})[0].waiting
        full = "it is full, and no job there can be moved now" in "".join(waits.values())
        assert full is not movable, waits


@pytest.mark.parametrize(
    ("rate", "moves"), [(1.0, False), (1.01, False), (0.5, False), (2.0, True)]
)
def test_no_job_restarts_for_a_place_that_gains_it_nothing(rate: float, moves: bool) -> None:
    """The timetable had it on the fast type, for jobs that are yet to come."""
    jobs = jobs_of([[[rate], [1.0]]], left=[5e3], held=[(0, 1, 1, 1)])
    plan = decide(view_of(nodes_of([[4, 0], [0, 4]]), jobs), {})[0]
    assert dict(plan.placements["j0"].gpus) == {("fast" if moves else "middle"): 1}


def test_a_job_still_makes_way_for_one_that_gains_more() -> None:
    jobs = jobs_of([[[1.0], [1.0]], [[9.0], [1.0]]], left=[9e4, 9e4], held=[(0, 0, 0, 1)])
    plan = decide(view_of(nodes_of([[1, 0], [0, 1]]), jobs), {})[0]
    assert dict(plan.placements["j0"].gpus) == {"middle": 1}
    assert dict(plan.placements["j1"].gpus) == {"fast": 1}


@pytest.mark.parametrize("priority", [(1.0, 2.0, 3.0), (3.0, 1.0, 2.0), (2.0, 3.0, 1.0)])
@pytest.mark.parametrize("early", [1, 2, 3])
def test_of_waiting_jobs_that_are_alike_the_first_in_slurms_order_starts(
    priority: tuple[float, ...], early: int
) -> None:
    """The timetable knows ``early`` of them for a while; the value of these has fallen since."""
    nodes = nodes_of([[1]])
    first = view_of(nodes, jobs_of([[[1.0]]] * early, priority=priority[:early]))
    _, state = decide(first, {})
    jobs = jobs_of([[[1.0]]] * 3, priority=priority)
    later = replace(view_of(nodes, jobs), now=first.now + 300.0)
    plan, _ = decide(later, state)
    assert set(plan.placements) == {f"j{priority.index(3.0)}"}
