import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend import machines, on, scripted, work

from slurm_hadar import policies
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.estimates import estimate
from slurm_hadar.simulator.workload import Workload, resampled

ONE = [[[2.0], [1.0]]]
"""One job, twice as fast on the fast type."""


def test_a_job_ends_when_its_work_is_done_and_its_gpu_is_free_at_the_next_round() -> None:
    jobs = work(ONE * 2, total=[800.0, 200.0])
    first = scripted({0.0: {"j0": on("fast")}, 720.0: {"j1": on("fast")}})
    out = simulate(jobs, machines(), first)
    assert out.finish_s.tolist() == [400.0, 820.0]
    assert out.makespan_s == 820.0
    assert out.avg_jct_s == 610.0
    assert out.attained.tolist() == [400.0, 100.0]
    assert out.utilization == pytest.approx(500.0 / (2 * 820.0))
    assert out.moves.sum() == 0


def test_a_move_pauses_the_job_and_its_gpus_are_held_meanwhile() -> None:
    script = scripted({0.0: {"j0": on("slow")}, 360.0: {"j0": on("fast")}})
    out = simulate(
        work(ONE), machines(), script, RoundSetting(costs=Costs(restart_s=30.0, checkpoint_s=10.0))
    )
    # 360 done on the slow one, 40 s lost, 640 left at 2/s.
    assert out.finish_s.tolist() == [360.0 + 40.0 + 320.0]
    assert out.attained.tolist() == [720.0]
    assert out.moves.tolist() == [1]


def test_a_job_that_was_stopped_pays_for_its_restart_on_the_same_gpus() -> None:
    script = scripted({0.0: {"j0": on("fast")}, 360.0: {}, 720.0: {"j0": on("fast")}})
    out = simulate(work(ONE), machines(), script, RoundSetting(costs=Costs(restart_s=20.0)))
    assert out.finish_s.tolist() == [720.0 + 20.0 + 140.0]
    assert out.moves.tolist() == [1]


def test_a_restart_longer_than_a_round_goes_on_in_the_next() -> None:
    script = scripted({0.0: {"j0": on("slow")}, 360.0: {"j0": on("fast")}})
    out = simulate(work(ONE), machines(), script, RoundSetting(costs=Costs(restart_s=500.0)))
    assert out.finish_s.tolist() == [360.0 + 500.0 + 320.0]


def test_naming_the_nodes_it_has_already_is_no_move() -> None:
    named = on("fast", nodes={"fast-1": {"fast": 1}})
    script = scripted({0.0: {"j0": on("fast")}, 360.0: {"j0": named}})
    out = simulate(work(ONE), machines(), script, RoundSetting(costs=Costs(restart_s=99.0)))
    assert out.finish_s.tolist() == [500.0]
    assert out.moves.tolist() == [0]


def test_an_arrival_within_a_round_waits_for_the_next_one() -> None:
    jobs = work(ONE * 2, total=[5000.0, 100.0], arrival=[0.0, 10.0])
    seen: list[float] = []

    def decide(view: View, state: State) -> tuple[Plan, State]:
        seen.append(view.now)
        kinds = ("fast", "slow")
        return Plan({id_: on(kinds[int(id_[1])]) for id_ in view.jobs.ids}), state

    out = simulate(jobs, machines(), decide)
    assert out.finish_s.tolist() == [2500.0, 460.0]
    assert seen == [360.0 * i for i in range(7)]


def test_an_idle_cluster_jumps_to_the_next_arrival() -> None:
    jobs = work(ONE * 2, arrival=[50.0, 90_000.0])
    out = simulate(jobs, machines(), policies.get("srtf"))
    assert out.finish_s.tolist() == [550.0, 90_500.0]
    assert len(out.decide_s) == 4
    assert out.makespan_s == 90_450.0


def test_events_decide_at_arrivals_and_finishes() -> None:
    jobs = work(ONE * 3, total=[300.0, 500.0, 100.0], arrival=[0.0, 0.0, 40.0])
    seen: list[float] = []

    def decide(view: View, state: State) -> tuple[Plan, State]:
        seen.append(view.now)
        return policies.get("fifo")(view, state)

    out = simulate(jobs, machines(), decide, RoundSetting(clock=Clock(0.0)))
    # j0 on the fast one until 150, then j2 there; j1 on the slow one until 500.
    assert out.finish_s.tolist() == [150.0, 500.0, 200.0]
    assert seen == [0.0, 40.0, 150.0, 200.0]


def test_whole_steps_as_gavel_counts_them() -> None:
    # int(0.99 x 360) = 356 steps a round, which take 359.6 s; the next round follows at once.
    jobs = work([[[0.99], [0.0]]], total=400.0)
    out = simulate(
        jobs, machines(), policies.get("srtf"), RoundSetting(clock=Clock(360.0, whole_steps=True))
    )
    assert out.finish_s[0] == pytest.approx(356 / 0.99 + 44 / 0.99)
    assert out.timeline.end_s[0] == pytest.approx(356 / 0.99)


def test_whole_steps_do_not_stop_a_job_that_is_slower_than_a_step_a_round() -> None:
    jobs = work([[[0.001], [0.0]]], total=1.0)
    out = simulate(
        jobs, machines(), policies.get("srtf"), RoundSetting(clock=Clock(360.0, whole_steps=True))
    )
    assert out.finish_s[0] == pytest.approx(1000.0)


def test_several_nodes_and_racks_cost_what_they_are_said_to() -> None:
    jobs = work([[[0.0, 8.0]]], counts=(1, 4), types=("fast",))
    costs = Costs(node_loss=0.5, rack_loss=0.2)
    for per_node, per_rack, speed in (("4", 0, 8.0), ("2", 0, 4.0), ("2", 2, 4.0), ("2", 1, 3.2)):
        pretend = machines("fast=4", per_node, per_rack)
        out = simulate(jobs, pretend, policies.get("srtf"), RoundSetting(costs=costs))
        assert out.finish_s[0] == pytest.approx(1000.0 / speed)


def test_cpus_and_memory_count_where_their_cost_is_on() -> None:
    half = scripted({0.0: {"j0": on("fast", cpus_per_gpu=1.0, mem_per_gpu_mb=250)}})
    for costs, speed in (
        (Costs(), 2.0),
        (Costs(cpu_exponent=1.0), 1.0),
        (Costs(mem_exponent=0.5), 1.0),
        (Costs(cpu_exponent=1.0, mem_exponent=0.5), 0.5),
    ):
        out = simulate(work(ONE), machines(), half, RoundSetting(costs=costs))
        assert out.finish_s[0] == pytest.approx(1000.0 / speed)


def test_mixed_types_run_at_the_slowest_ones_pace() -> None:
    jobs = work([[[0.0, 8.0], [0.0, 2.0]]], counts=(1, 2))
    both = scripted({0.0: {"j0": Placement(gpus={"fast": 1, "slow": 1})}})
    assert simulate(jobs, machines("fast=2,slow=2"), both).finish_s[0] == 500.0


def test_copies_add_up_and_wait_for_each_other() -> None:
    nodes = {"fast-1": {"fast": 1}, "slow-1": {"slow": 1}}
    gpus = {"fast": 1, "slow": 1}
    for shares, speed in (
        ((), 3.0),
        ((2 / 3, 1 / 3), 3.0),
        ((0.5, 0.5), 2.0),
        ((0.9, 0.1), 20 / 9),
    ):
        copies = Placement(gpus=gpus, nodes=nodes, copies=2, shares=shares)
        out = simulate(work(ONE).forked(2), machines(), scripted({0.0: {"j0": copies}}))
        assert out.finish_s[0] == pytest.approx(1000.0 / speed)


@pytest.mark.parametrize(("tasks", "speed"), [(1, 3.0), (2, 2.0), (3, 3.0), (4, 8 / 3)])
def test_a_job_of_several_tasks_deals_them_whatever_the_shares(tasks: int, speed: float) -> None:
    nodes = {"fast-1": {"fast": 1}, "slow-1": {"slow": 1}}
    gpus = {"fast": 1, "slow": 1}
    job = replace(work(ONE).forked(2), tasks=np.array([tasks]))
    for shares in ((), (2 / 3, 1 / 3)):
        copies = Placement(gpus=gpus, nodes=nodes, copies=2, shares=shares)
        out = simulate(job, machines(), scripted({0.0: {"j0": copies}}))
        assert out.finish_s[0] == pytest.approx(1000.0 / speed)


@pytest.mark.parametrize(
    ("placements", "words"),
    [
        ({"j0": on("fast", 2)}, "1 more than are free"),
        ({"j0": on("fast"), "j1": on("fast")}, "more than are free"),
        ({"j0": on("fast", nodes={"slow-1": {"fast": 1}})}, "more than are free"),
        ({"j0": on("fast", nodes={"fast-1": {"fast": 2}})}, "do not agree"),
        ({"j0": on("fast", nodes={"moon": {"fast": 1}})}, "on moon"),
        ({"j0": on("gold")}, "gold"),
        ({"j1": on("slow")}, "cannot run"),
        ({"nobody": on("fast")}, "not there"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(placements: dict[str, Placement], words: str) -> None:
    jobs = work([*ONE, [[1.0], [0.0]]])
    with pytest.raises(HadarError, match=words):
        simulate(jobs, machines(), lambda view, state: (Plan(placements), state))


def test_a_gang_over_more_nodes_than_it_may_use_is_refused() -> None:
    jobs = work([[[0.0, 8.0]]], counts=(1, 4), types=("fast",), most_nodes=2)
    with pytest.raises(UsageError, match=r"line 2.*fits nowhere"):
        simulate(jobs, machines("fast=4", "1"), policies.get("srtf"))
    loose = scripted({0.0: {"j0": on("fast", 4)}})
    assert simulate(jobs, machines("fast=4", "2"), loose).finished == 1


def test_jobs_that_are_never_placed_are_counted_and_named() -> None:
    jobs = work(ONE * 3)
    out = simulate(jobs, machines(), scripted({0.0: {"j1": on("fast")}}))
    assert out.finished == 1
    assert out.unfinished == ("j0", "j2")
    figures = out.summary()
    assert figures["jobs"] == 3
    assert figures["avg_jct_h"] == pytest.approx(500 / 3600)
    nobody = simulate(jobs, machines(), lambda view, state: (Plan(), state)).summary()
    assert nobody["finished"] == 0
    assert nobody["avg_jct_h"] is None
    json.dumps(nobody, allow_nan=False)


def test_endless_restarts_come_to_an_end() -> None:
    def restless(view: View, state: State) -> tuple[Plan, State]:
        kind = ("fast", "slow")[len(state)]
        return Plan({"j0": on(kind)}), {} if state else {"turn": 1}

    out = simulate(
        work(ONE, total=9e9), machines(), restless, RoundSetting(costs=Costs(restart_s=400.0))
    )
    assert out.unfinished == ("j0",)


def test_what_a_policy_sees() -> None:
    views: list[View] = []

    def look(view: View, state: State) -> tuple[Plan, State]:
        views.append(view)
        kind = "fast" if view.now < 700 or "j0" not in view.jobs.ids else "slow"
        return Plan({view.jobs.ids[0]: on(kind)}), state

    jobs = work([[[2.0], [1.0]], [[1.0], [0.0]]], total=3000.0, arrival=[0.0, 100.0])
    simulate(
        jobs,
        machines(),
        look,
        RoundSetting(
            costs=Costs(restart_s=10.0, checkpoint_s=5.0), seed=7, options={"colour": "red"}
        ),
    )
    first, second, third, fourth = views[:4]
    assert first.jobs.ids == ("j0",)
    assert not first.jobs.running.any()
    assert first.jobs.held.shape == (0, 4)
    assert second.jobs.ids == ("j0", "j1")
    assert second.jobs.arrival_s.tolist() == [0.0, 100.0]
    assert second.jobs.left.tolist() == [2280.0, 3000.0]
    assert second.jobs.attained.tolist() == [360.0, 0.0]
    assert second.jobs.held.tolist() == [[0, 0, 0, 1]]
    assert second.jobs.running.tolist() == [True, False]
    assert second.jobs.movable.all()
    assert second.jobs.known.all()
    assert second.jobs.restart_s.tolist() == [15.0, 15.0]
    assert second.options == {"colour": "red"}
    assert (second.seed, second.round_s, second.types) == (7, 360.0, ("fast", "slow"))
    assert third.jobs.since_s.tolist() == [0.0, 0.0]
    assert fourth.jobs.since_s.tolist() == [720.0, 0.0]
    assert fourth.jobs.held.tolist() == [[0, 1, 1, 1]]


def test_estimates_are_what_the_policy_sees_and_the_truth_is_what_happens() -> None:
    jobs = work(ONE * 40)
    seen = estimate(jobs, noise=0.2, steps_error=2.0, seed=3)
    ratio = seen.rate / jobs.rate
    assert ((ratio >= 0.8) & (ratio <= 1.2)).all()
    assert ratio.std() > 0.05
    off = seen.total / jobs.total
    assert sorted(set(off.tolist())) == [0.5, 1.0, 2.0]
    assert (off == 1.0).sum() == 20
    again = estimate(jobs, noise=0.2, steps_error=2.0, seed=3)
    assert np.array_equal(seen.rate, again.rate)
    assert np.array_equal(seen.total, again.total)
    assert not np.array_equal(seen.rate, estimate(jobs, noise=0.2, seed=4).rate)
    known: list[bool] = []

    def look(view: View, state: State) -> tuple[Plan, State]:
        known.append(bool(view.jobs.known.any()))
        assert (view.jobs.left >= 1.0).all()
        return Plan({view.jobs.ids[0]: on("fast")}), state

    out = simulate(jobs, machines(), look, RoundSetting(seen=seen))
    assert not any(known)
    assert out.finish_s[0] == 500.0
    with pytest.raises(UsageError, match="noise"):
        estimate(jobs, noise=1.0)
    with pytest.raises(UsageError, match="steps-error"):
        estimate(jobs, steps_error=0.5)


@pytest.mark.parametrize(
    "values", [{"restart_s": -1.0}, {"node_loss": 1.0}, {"cpu_exponent": float("nan")}]
)
def test_costs_without_meaning_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(values))):
        Costs(**values)
    for round_s in (-1.0, float("nan")):
        with pytest.raises(UsageError, match="--round"):
            Clock(round_s)


def test_a_resampled_trace_is_drawn_with_replacement() -> None:
    jobs = work(ONE * 30, total=list(range(1, 31)), arrival=list(range(30)))
    drawn = resampled(jobs, 100, seed=1)
    assert len(set(drawn.ids)) == 100
    assert (np.diff(drawn.arrival_s) >= 0).all()
    assert set(drawn.total.tolist()) <= set(jobs.total.tolist())
    assert np.array_equal(drawn.total, drawn.arrival_s + 1)
    assert not np.array_equal(drawn.total, resampled(jobs, 100, seed=2).total)


@st.composite
def _workloads(draw: st.DrawFn) -> Workload:
    jobs = draw(st.integers(1, 12))
    cells = st.sampled_from([0.0, 0.5, 1.0, 3.0])
    rate = np.array(draw(st.lists(cells, min_size=jobs * 4, max_size=jobs * 4)))
    rate = rate.reshape(jobs, 2, 2)
    rate[:, 0, 0] = np.maximum(rate[:, 0, 0], 0.25)
    span = st.floats(1.0, 5000.0)
    total = draw(st.lists(span, min_size=jobs, max_size=jobs))
    arrival = draw(st.lists(st.floats(0.0, 4000.0), min_size=jobs, max_size=jobs))
    return work(rate, total, arrival, counts=(1, 2))


@settings(max_examples=30, deadline=None)
@given(
    jobs=_workloads(),
    name=st.sampled_from(["fifo", "srtf", "tiresias", "hadar", "gavel_las", "gavel_makespan"]),
    round_s=st.sampled_from([0.0, 60.0, 360.0]),
    cost=st.sampled_from([0.0, 10.0]),
)
def test_whatever_the_policy_time_and_work_add_up(
    jobs: Workload, name: str, round_s: float, cost: float
) -> None:
    pretend = machines("fast=3,slow=2", "2")
    out = simulate(
        jobs, pretend, policies.get(name), RoundSetting(costs=Costs(cost), clock=Clock(round_s))
    )
    workload = out.workload
    assert out.finished == len(workload.ids)
    best = workload.rate.max(axis=(1, 2))
    assert (out.jct_s >= workload.total / best * (1 - 1e-9) - 1e-6).all()
    frugal = np.where(workload.rate > 0, workload.rate / np.array([1, 2]), 0).max(axis=(1, 2))
    assert (out.attained >= workload.total / frugal * (1 - 1e-9) - 1e-6).all()
    assert 0.0 < out.utilization <= 1.0 + 1e-9
    line = out.timeline
    spans = np.array(line.end_s) - np.array(line.start_s)
    used = np.array(line.gpu_s)
    assert (used <= spans[:, None] * pretend.capacity + 1e-6).all()
    assert used.sum() == pytest.approx(out.attained.sum())
    again = simulate(
        replace(workload),
        pretend,
        policies.get(name),
        RoundSetting(costs=Costs(cost), clock=Clock(round_s)),
    )
    assert np.array_equal(out.finish_s, again.finish_s)
    assert np.array_equal(out.moves, again.moves)
