"""Jobs in doubt: what the timetable policy does where counts are untried or work is not known."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.traits import Prospects
from slurm_hadar.domain.view import FloatArray, JobArrays, View
from slurm_hadar.policies.allocation import resource_pools
from slurm_hadar.policies.timetable.doubt import (
    Doubt,
    alike_where_slowest,
    concave,
    doubt_of,
    need_factor,
    optimistic_rates,
    restart_factor,
)
from slurm_hadar.policies.timetable.policy import decide
from slurm_hadar.policies.timetable.work import Options, options_of
from slurm_hadar.testing import NOW, applied, check_plan, jobs_of, nodes_of, places, view_of
from slurm_hadar.testing.strategies import views

pytestmark = pytest.mark.filterwarnings("error")
_COUNTS = (1, 2, 4, 8)


def _with(jobs: JobArrays, **arrays: ArrayLike) -> JobArrays:
    """The jobs with prospects, of which ``arrays`` names those that are not the usual ones."""
    number = len(jobs.ids)
    usual: dict[str, ArrayLike] = {
        "rate_error": np.full(jobs.rate.shape, np.nan),
        "restarts": np.zeros(number, dtype=np.int64),
        "first_start_s": np.full(number, np.nan),
        "work_unknown": np.zeros(number, dtype=bool),
        "movable_from_s": np.zeros(number),
        "batch_in_place": np.zeros(number, dtype=bool),
    }
    filled = {
        name: np.broadcast_to(np.asarray(arrays.get(name, value)), np.shape(value)).copy()
        for name, value in usual.items()
    }
    return replace(jobs, prospects=Prospects(**filled))


def _gpus(plan: Plan) -> dict[str, int]:
    return {id_: placement.gpu_count for id_, placement in plan.placements.items()}


@pytest.mark.parametrize("restarts, kind", [(0, "middle"), (5, "fast")])
def test_who_was_moved_often_must_gain_much(restarts: int, kind: str) -> None:
    jobs = jobs_of([[[1.0], [1.5]]], held=[(0, 0, 0, 1)], restart_s=100.0)
    jobs = _with(jobs, restarts=restarts, work_unknown=True)
    view = view_of(nodes_of([[1, 0], [0, 1]]), jobs)
    placement = decide(view, {})[0].placements["j0"]
    assert dict(placement.gpus) == {kind: 1}
    assert ("it has had 5 restarts" in placement.reason) == (kind == "fast")


def test_where_restarts_took_all_its_time_no_other_placement_gains_more_than_one_costs() -> None:
    jobs = jobs_of([[[1.0], [1.5]]], held=[(0, 0, 0, 1)], restart_s=100.0)
    jobs = _with(jobs, restarts=12, work_unknown=True)
    reason = decide(view_of(nodes_of([[1, 0], [0, 1]]), jobs), {})[0].placements["j0"].reason
    assert reason.endswith(
        "so no other placement gains more than a further restart costs, as it has had 12 restarts "
        "of 100 s"
    )


def test_the_reason_of_a_job_of_unknown_work_is_two_short_sentences() -> None:
    jobs = jobs_of([[[1.0], [1.5]]], held=[(0, 0, 0, 1)], restart_s=100.0)
    jobs = replace(jobs, end_known=np.zeros(1, dtype=bool))
    nodes = nodes_of([[1, 0], [0, 1]])
    found = [
        decide(view_of(nodes, _with(jobs, restarts=restarts, work_unknown=True)), {})[0]
        for restarts in (5, 0)
    ]
    stays, moves = (plan.placements["j0"].reason for plan in found)
    assert stays == (
        "stays on 1 x fast (n0), end unknown; gain 0.576 = value 0.576 - price 0; next best "
        "1 x middle, value 0.81 - price 0; when places were last chosen it was taken, or not worth "
        "a move (100 s). Its work is "
        "not known, so only a placement 2.2 times as fast gains more than a further restart costs, "
        "as it has had 5 restarts of 100 s"
    )
    assert moves == (
        "1 x middle (n1), end unknown; gain 0.81 = value 0.81 - price 0; it moves from 1 x fast, "
        "value 0.576. Its work is not known, so it counts for less the more GPU time it has had"
    )


def test_without_a_restart_so_far_no_reason_speaks_of_one() -> None:
    jobs = jobs_of([[[1.0], [1.05]]], held=[(0, 0, 0, 1)], restart_s=500.0)
    jobs = _with(jobs, restarts=0, work_unknown=True)
    reason = decide(view_of(nodes_of([[1, 0], [0, 1]]), jobs), {})[0].placements["j0"].reason
    assert reason.endswith(
        "so only a placement 1.5 times as fast gains more than a restart of 500 s costs, as it "
        "was submitted 17 min ago"
    )


def test_the_restart_factor_is_that_of_the_source() -> None:
    # Each came 1,000 s ago: max(1000 - n 100, 0) / 1100.
    jobs = _with(jobs_of([[[1.0]]] * 3, restart_s=100.0), restarts=[0, 4, 12])
    found = restart_factor(view_of(nodes_of([[1]]), jobs))
    assert found == pytest.approx([1000 / 1100, 600 / 1100, 0.0])
    assert restart_factor(view_of(nodes_of([[1]]), replace(jobs, prospects=None)))[2] > 0.9


@pytest.mark.parametrize("tried, since, gets", [(0, 0, 1), (1, 0, 2), (2, 0, 4), (4, 0, 8)])
def test_counts_grow_by_what_was_tried(tried: int, since: float, gets: int) -> None:
    jobs = jobs_of([[[1.0, 2.0, 4.0, 8.0]]])
    jobs = replace(jobs, known=np.asarray(_COUNTS)[None, None, :] <= tried)
    plan, _ = decide(view_of(nodes_of([[8]]), jobs, _COUNTS), {})
    assert _gpus(plan) == {"j0": gets}
    gpus = "1 GPU" if gets == 1 else f"{gets} GPUs"
    said = f"it gets at most {gpus} until it has been tried on so many"
    assert (said in plan.placements["j0"].reason) == (gets < 8)


@pytest.mark.parametrize("since, gets", [(NOW - 100.0, 1), (NOW - 400.0, 2)])
def test_who_reports_nothing_grows_with_time(since: float, gets: int) -> None:
    jobs = jobs_of([[[1.0, 2.0, 4.0, 8.0]]], held=[(0, 0, 0, 1)], since_s=since, restart_s=10.0)
    jobs = replace(jobs, known=np.zeros(jobs.rate.shape, dtype=bool))
    plan, _ = decide(view_of(nodes_of([[8]]), jobs, _COUNTS), {})
    assert _gpus(plan) == {"j0": gets}


def test_a_job_with_one_count_is_not_held_back_by_what_is_estimated() -> None:
    jobs = jobs_of([[[0.0, 0.0, 4.0, 0.0]]])
    jobs = replace(jobs, known=np.zeros(jobs.rate.shape, dtype=bool))
    plan, _ = decide(view_of(nodes_of([[8]]), jobs, _COUNTS), {})
    assert _gpus(plan) == {"j0": 4}
    assert "tried" not in plan.placements["j0"].reason


@pytest.mark.parametrize("unknown", [False, True])
def test_work_that_is_assumed_does_not_go_first(unknown: bool) -> None:
    long = jobs_of([[[1.0]]] * 9, left=[8e4] + [1e4] * 8)
    long = _with(long, work_unknown=[unknown] + [False] * 8)
    options = {"stretch": 1.0, "keep": 1.0, "doubt_stretch": 1.0}
    plan, _ = decide(view_of(nodes_of([[2]]), long, options=options), {})
    ahead = [id_ for id_, p in plan.placements.items() if "run nearly all the time" in p.reason]
    assert ahead == ([] if unknown else ["j0"])


def _doubt(work: list[bool], unplanned: list[bool]) -> Doubt:
    nothing = np.zeros(len(work), dtype=np.int64)
    return Doubt(np.full(len(work), True), np.array(work), np.array(unplanned), nothing)


def _options(seconds: FloatArray) -> Options:
    jobs = len(seconds)
    return Options(
        np.array(_COUNTS), np.zeros(4, dtype=np.int64), np.array([8]), seconds, np.ones(jobs),
        np.full(jobs, -1), np.zeros(jobs, dtype=bool), {}, (), {},
    )  # fmt: skip


def test_who_needs_or_has_had_more_gpu_time_counts_for_less() -> None:
    jobs = jobs_of([[[1.0]]] * 5, attained=[0.0, 10_000.0, 1e6, 1e6, 1e6])
    view = view_of(nodes_of([[1]]), jobs)
    doubt = _doubt([True, True, False, False, False], [True, True, True, True, False])
    # At the least 1 x 400, 2 x 100 and 1 x 900 GPU-seconds.
    seconds = np.full((5, 4), np.inf)
    seconds[2, 0], seconds[3, :2], seconds[4, 0] = 400.0, [900.0, 100.0], 900.0
    found = need_factor(view, _options(seconds), doubt)
    # The means are 5,000 and 300 GPU-seconds, and one more that keeps them above 0.
    declared = np.sqrt([301 / 701, 301 / 501])
    assert found == pytest.approx([1.0, np.sqrt(5_001 / 15_001), *declared, 1.0])


def test_who_has_had_more_waits_where_work_is_assumed() -> None:
    jobs = jobs_of([[[1.0]]] * 3, attained=[0.0, 10_000.0, 1e6])
    view = view_of(nodes_of([[1]]), jobs)
    for unknown, first in ((True, "j0"), (False, "j2")):
        some = replace(jobs, left=np.array([9e4, 9e4, 1e3]))
        plan, _ = decide(replace(view, jobs=_with(some, work_unknown=unknown)), {})
        assert list(plan.placements) == [first], unknown


@pytest.mark.parametrize(
    "other_left, wrong, fast", [(1e4, 0.0, "j0"), (1e6, 0.0, "j1"), (1e4, 5.0, "j1")]
)
def test_who_decides_when_all_ends_counts_in_full(
    other_left: float, wrong: float, fast: str
) -> None:
    # The fast GPU was not tried. The first has ten times the work of the second; the third, which
    # cannot have the fast GPU, ends before both or after both. Of 20 jobs that ended some had
    # declared wrong work.
    jobs = jobs_of([[[4.0], [1.0]]] * 2 + [[[0.0], [1.0]]], left=[1e5, 1e4, other_left])
    jobs = _with(replace(jobs, known=np.array([[[False], [True]]] * 3)))
    past = {"now": NOW - 1.0, "jobs": {}, "measured": {}, "ended": 20.0, "wrong": wrong}
    plan, _ = decide(view_of(nodes_of([[1, 0], [0, 5]]), jobs), {"speeds": past})
    assert [id_ for id_, p in plan.placements.items() if "fast" in p.gpus] == [fast]
    reason = plan.placements["j0"].reason
    assert ("it decides when all the work ends" in reason) == (fast == "j0")
    assert ("for less the more work it has left" in reason) == (fast == "j1")


def test_jobs_without_a_plan_are_worth_the_same_where_they_are_slowest() -> None:
    gain = np.array([[1.0, 4.0], [0.0, 6.0], [3.0, 5.0]])
    doubt = _doubt([False, True, False], [True, True, False])
    alike_where_slowest(gain, np.array([1.0, 2.0, 1.0]), doubt)
    # Per weight 1 and 3: 2 each.
    assert gain == pytest.approx(np.array([[2.0, 8.0], [0.0, 4.0], [3.0, 5.0]]))


@pytest.mark.parametrize(
    "gpus, untried, plans",
    [(4, True, False), (4, False, True), (3, True, True)],
    ids=["untried and half of the GPUs", "tried", "untried and more than half"],
)
def test_the_plan_decides_where_all_is_tried_or_the_cluster_is_full(
    gpus: int, untried: bool, plans: bool
) -> None:
    jobs = jobs_of([[[1.0, 1.5]]] * 2)
    jobs = _with(replace(jobs, known=np.array([[[True, not untried]]] * 2)))
    view = view_of(nodes_of([[gpus]]), jobs, (1, 2))
    pools = resource_pools(view)
    found = doubt_of(view, pools, options_of(view, pools, jobs.rate, 0.0))
    assert found.unplanned.tolist() == [not plans] * 2 and not found.work.any()
    text = " ".join(p.reason for p in decide(view, {})[0].placements.values())
    assert plans or "of the coming time" not in text
    assert ("Some of its speeds are not known, so" in text) is not plans


@pytest.mark.parametrize("left_s, kind", [(50.0, "middle"), (400.0, "middle"), (2_000.0, "fast")])
def test_a_job_near_its_end_does_not_restart_for_less_than_the_restart_costs(
    left_s: float, kind: str
) -> None:
    # Three times as fast on the other GPU, where it was not tried; it came ten hours ago.
    jobs = jobs_of([[[3.0], [1.0]]], held=[(0, 1, 1, 1)], left=left_s, total=36_000.0 + left_s)
    jobs = replace(
        jobs,
        known=np.array([[[False], [True]]]),
        restart_s=np.full(1, 250.0),
        arrival_s=np.full(1, NOW - 36_000.0),
        since_s=np.full(1, NOW - 36_000.0),
    )
    plan, _ = decide(view_of(nodes_of([[2, 0], [0, 2]]), _with(jobs)), {})
    (gpus,) = (dict(p.gpus) for p in plan.placements.values())
    assert list(gpus) == [kind]


def _scattered(**prospects: ArrayLike) -> View:
    """One GPU of each of two nodes is held, and a gang of four wants a node."""
    rate = [[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 4.0]]]
    jobs = jobs_of(rate, held=[(0, 0, 0, 1), (1, 1, 0, 1)], max_nodes=2, arrival_s=NOW - 9e3)
    return view_of(nodes_of([[4], [4]]), _with(jobs, **prospects), (1, 4))


def test_a_gang_gets_one_node_though_a_smaller_job_changes_its_own() -> None:
    view = _scattered(work_unknown=True)
    plan, _ = decide(view, {})
    check_plan(view, plan)
    nodes = {id_: set(placement.nodes) for id_, placement in plan.placements.items()}
    assert len(nodes["j2"]) == 1 and nodes["j0"] == nodes["j1"] != nodes["j2"]
    assert "it changes nodes" in " ".join(p.reason for p in plan.placements.values())


@pytest.mark.parametrize("prospects", [{"work_unknown": True, "restarts": 40}, {}])
def test_no_job_changes_nodes_where_it_restarted_often_or_nothing_is_in_doubt(
    prospects: Mapping[str, ArrayLike],
) -> None:
    plan, _ = decide(_scattered(**prospects), {})
    assert len(plan.placements["j2"].nodes) == 2


@pytest.mark.parametrize("unknown", [False, True])
def test_nobody_is_stopped_while_there_is_a_gpu_for_each(unknown: bool) -> None:
    # The first is 16 times as fast on both GPUs; in proportion the second would wait. The third
    # decides how late that may be.
    rate = [[[1.0, 16.0], [0.0, 0.0]], [[1.0, 1.01], [0.0, 0.0]], [[0.0, 0.0], [0.1, 0.0]]]
    held = [(0, 0, 0, 1), (1, 0, 0, 1), (2, 1, 1, 1)]
    jobs = jobs_of(rate, held=held, arrival_s=0.0, restart_s=1.0)
    view = view_of(nodes_of([[2, 0], [0, 1]]), _with(jobs, work_unknown=unknown), (1, 2))
    plan, _ = decide(view, {})
    assert _gpus(plan) == ({"j0": 1, "j1": 1, "j2": 1} if unknown else {"j0": 2, "j2": 1})


def test_each_further_gpu_counts_for_less() -> None:
    seconds = np.array([[80.0, 40.0, 20.0, 10.0], [np.inf, 40.0, 50.0, np.inf]])
    options = _options(seconds)
    worth = concave(options, -0.5)[0] / seconds[0] * 80.0
    assert worth == pytest.approx([1.0 + 2.0 * (1.0 - x**-0.5) for x in (1, 2, 4, 8)])
    logs = concave(options, 0.0)[0] / seconds[0] * 80.0
    assert logs == pytest.approx(1.0 + np.log([1, 2, 4, 8]))
    # A further GPU that makes it slower is worth no more than its speed.
    slower = concave(options, -0.5)[1] / seconds[1] * 50.0
    assert slower[1:3] == pytest.approx([1.0 + 2.0 * (1.0 - (50 / 40) ** -0.5), 1.0])
    assert slower[[0, 3]].tolist() == [0.0, 0.0]
    assert concave(options, 1.0).tolist() == np.ones((2, 4)).tolist()


@pytest.mark.parametrize("unknown, times", [([False] * 4, 1.03), ([True] * 4, 2.0),
                                            ([True, False, True, False], 1.515)])  # fmt: skip
def test_the_horizon_is_as_far_as_the_doubt(unknown: list[bool], times: float) -> None:
    jobs = _with(jobs_of([[[1.0]]] * 4), work_unknown=unknown)
    _, state = decide(view_of(nodes_of([[2]]), jobs), {})
    horizon, least = state["deadline_s"], state["least_s"]
    assert isinstance(horizon, float) and isinstance(least, float)
    assert (horizon - NOW) / least == pytest.approx(times)


def test_what_a_trial_may_teach_counts_while_work_is_left() -> None:
    jobs = jobs_of([[[1.0, 1.2]]] * 3, left=[1e4, 5e3, 1e4], total=1e4)
    jobs = replace(jobs, known=np.array([[[True, False]]] * 2 + [[[True, True]]]))
    view = view_of(nodes_of([[2]]), _with(jobs, rate_error=0.4), (1, 2))
    found = optimistic_rates(view, jobs.rate, 1.0)
    assert found[:, 0, 0].tolist() == [1.0, 1.0, 1.0]
    assert found[:, 0, 1] == pytest.approx([1.2 * np.exp(0.4), 1.2 * np.exp(0.2), 1.2])
    assert optimistic_rates(replace(view, jobs=jobs), jobs.rate, 1.0) is jobs.rate


def test_a_count_of_which_little_is_known_is_tried() -> None:
    # Twice the GPUs seem to give 1.2 times the speed, less than what they give another job.
    rate = [[[1.0, 1.2]], [[1.0, 1.4]]]
    for error, more in ((0.01, "j1"), (0.6, "j0")):
        jobs = jobs_of(rate, held=[(0, 0, 0, 1), (1, 0, 0, 1)], arrival_s=0.0, since_s=1.0)
        known = np.array([[[True, False]], [[True, True]]])
        jobs = _with(replace(jobs, known=known), rate_error=error)
        plan, _ = decide(view_of(nodes_of([[3]]), jobs, (1, 2)), {})
        assert _gpus(plan)[more] == 2, error


@given(views(), st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_plans_are_valid_whatever_is_in_doubt(view: View, seed: int, part: float) -> None:
    random = np.random.default_rng(seed)
    jobs = view.jobs
    known = (jobs.rate > 0) & (random.random(jobs.rate.shape) >= part)
    number = len(jobs.ids)
    jobs = _with(
        replace(jobs, known=known),
        rate_error=random.uniform(0.0, 3.0, jobs.rate.shape),
        restarts=random.integers(0, 50, number),
        work_unknown=random.random(number) < part,
    )
    view = replace(view, jobs=jobs)
    plan, state = decide(view, {})
    check_plan(view, plan)
    after = applied(view, plan)
    again, _ = decide(after, state)
    check_plan(after, again)
    bound = [id_ for id_, movable in zip(jobs.ids, jobs.movable, strict=True) if not movable]
    before, now = places(view, plan), places(after, again)
    assert all(now[id_] == before[id_] for id_ in bound if id_ in before)
