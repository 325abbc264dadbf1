"""The simulation at the level of tasks: relaxed rounds against gangs, on cases done by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from slurm_hadar.cli.main import app
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.simulator.tasks.jobs import TaskCosts, TaskJobs, from_workload
from slurm_hadar.simulator.tasks.policies import NAMES, simulate_tasks
from slurm_hadar.simulator.traces import open_trace

FREE = TaskCosts(0.0)
RELAXED = tuple(name for name in NAMES if name.startswith("hare") and name != "hare_available")


def jobs_of(task_s, rounds=1, tasks=1, arrival=0.0, weight=1.0, sync=0.0) -> TaskJobs:
    length = np.array(task_s, dtype=float)
    number = len(length)

    def row(value, kind=float):
        return np.broadcast_to(np.array(value, dtype=kind), (number,)).copy()

    return TaskJobs(
        "test",
        ("fast", "middle", "slow")[: length.shape[1]],
        tuple(str(job) for job in range(number)),
        row(arrival),
        row(weight),
        row(rounds, np.int64),
        row(tasks, np.int64),
        length,
        row(sync),
    )


@pytest.mark.parametrize("policy", RELAXED)
def test_a_round_is_dealt_four_two_one(policy: str) -> None:
    jobs = jobs_of([[1.0, 2.0, 4.0]], rounds=10, tasks=7, sync=0.5)
    out = simulate_tasks(jobs, np.array([1, 1, 1]), policy, FREE)
    assert out.finish_s[0] == pytest.approx(10 * 4.5)
    assert out.busy_s.tolist() == pytest.approx([40.0, 40.0, 40.0])
    assert out.switches == 0


def test_a_gang_needs_its_gpus_of_one_type_at_once() -> None:
    jobs = jobs_of([[1.0, 2.0]], rounds=10, tasks=2, sync=0.5)
    out = simulate_tasks(jobs, np.array([1, 2]), "gang_fifo", FREE)
    assert out.finish_s[0] == pytest.approx(10 * 2.5)
    relaxed = simulate_tasks(jobs, np.array([1, 2]), "hare", FREE)
    # Both on the fast one, one after another, or one on each: two seconds.
    assert relaxed.finish_s[0] == pytest.approx(10 * 2.5)
    with pytest.raises(UsageError, match="needs 3 GPUs of one type"):
        simulate_tasks(replace(jobs, tasks=np.array([3])), np.array([1, 2]), "gang_fifo", FREE)


def test_a_task_waits_for_the_fast_gpu_where_that_ends_sooner() -> None:
    jobs = jobs_of([[1.0, 10.0]], rounds=3, tasks=4)
    out = simulate_tasks(jobs, np.array([1, 1]), "hare", FREE)
    assert out.finish_s[0] == pytest.approx(12.0) and out.busy_s[1] == 0.0


def test_tasks_with_time_to_spare_leave_the_fast_gpu_to_others() -> None:
    # Job 0 is no faster anywhere; job 1 is ten times as fast on the first GPU.
    jobs = jobs_of([[4.0, 4.0], [1.0, 10.0]], rounds=[5, 20], tasks=1)
    plain = simulate_tasks(jobs, np.array([1, 1]), "hare_plain", FREE)
    spare = simulate_tasks(jobs, np.array([1, 1]), "hare", FREE)
    assert spare.finish_s.tolist() == pytest.approx([20.0, 20.0])
    assert plain.finish_s[1] > 20.0


def test_service_decides_at_the_barrier() -> None:
    # 4,000 GPU-seconds are the second queue: the newcomer goes first from the next round on.
    jobs = jobs_of([[1000.0], [1000.0]], rounds=[8, 2], arrival=[0.0, 3500.0])
    out = simulate_tasks(jobs, np.array([1]), "hare", FREE)
    assert out.finish_s.tolist() == pytest.approx([10_000.0, 6_000.0])
    assert out.switches == 2
    slow = simulate_tasks(jobs, np.array([1]), "hare", TaskCosts(10.0))
    assert slow.finish_s.tolist() == pytest.approx([10_030.0, 6_020.0])


def test_gangs_go_by_their_orders() -> None:
    jobs = jobs_of([[1.0]] * 3, rounds=[50, 100, 10], arrival=[0.0, 1.0, 2.0], weight=[1, 30, 1])
    gpus = np.array([1])
    ends = {name: simulate_tasks(jobs, gpus, name, FREE).finish_s.tolist() for name in NAMES}
    assert ends["gang_fifo"] == pytest.approx([50.0, 150.0, 160.0])
    assert ends["gang_srtf"] == pytest.approx([50.0, 160.0, 60.0])
    assert ends["gang_wsrtf"] == pytest.approx([50.0, 150.0, 160.0])
    assert ends["gang_wsrtf_wait"] == pytest.approx([50.0, 150.0, 160.0])


def test_a_gang_is_preempted_when_it_received_more() -> None:
    jobs = jobs_of([[1000.0], [1000.0]], rounds=[8, 2], arrival=[0.0, 1000.0])
    out = simulate_tasks(jobs, np.array([1]), "gang_las", FREE)
    # At 3,250 GPU-seconds it sinks; two rounds of the other, then it goes on.
    assert out.finish_s[1] == pytest.approx(5_250.0, abs=0.1)
    assert out.finish_s[0] == pytest.approx(10_000.0, abs=0.1)


def test_a_running_gang_moves_to_a_faster_type_only_where_that_is_the_rule() -> None:
    jobs = jobs_of([[1.0, 10.0], [1.0, 10.0]], rounds=[10, 10], weight=[1.0, 1.0])
    gpus = np.array([1, 1])
    assert simulate_tasks(jobs, gpus, "gang_las", FREE).finish_s[1] == pytest.approx(100.0)
    assert simulate_tasks(jobs, gpus, "gang_las_move", FREE).finish_s[1] == pytest.approx(19.0)


def test_a_gang_may_wait_for_a_faster_type() -> None:
    jobs = jobs_of([[1.0, 100.0], [1.0, 100.0]], rounds=[10, 10], weight=[2.0, 1.0])
    gpus = np.array([1, 1])
    assert simulate_tasks(jobs, gpus, "gang_wsrtf", FREE).finish_s[1] == pytest.approx(1000.0)
    assert simulate_tasks(jobs, gpus, "gang_wsrtf_wait", FREE).finish_s[1] == pytest.approx(20.0)


def test_hare_available_takes_the_gpu_that_is_free_first() -> None:
    jobs = jobs_of([[1.0, 2.0, 4.0]], rounds=10, tasks=7, sync=0.5)
    out = simulate_tasks(jobs, np.array([1, 1, 1]), "hare_available", FREE)
    finish = simulate_tasks(jobs, np.array([1, 1, 1]), "hare_finish", FREE)
    assert finish.finish_s[0] == pytest.approx(10 * 4.5)
    assert out.finish_s[0] >= finish.finish_s[0]
    # Nothing but the slow one is free for the last task.
    pair = jobs_of([[1.0, 10.0]], rounds=3, tasks=2)
    slow = simulate_tasks(pair, np.array([1, 1]), "hare_available", FREE)
    assert slow.finish_s[0] == pytest.approx(30.0)
    assert simulate_tasks(pair, np.array([1, 1]), "hare_finish", FREE).finish_s[0] == 6.0


def test_a_switch_costs_planned_tasks_time() -> None:
    jobs = jobs_of([[10.0], [10.0]], weight=[2.0, 1.0])
    out = simulate_tasks(jobs, np.array([1]), "hare_available", TaskCosts(1.0))
    # The first task pays it too, as in the other simulations.
    assert out.finish_s.tolist() == pytest.approx([11.0, 22.0])
    assert out.switches == 1


def test_allox_matches_jobs_to_the_types_where_the_sum_of_ends_is_least() -> None:
    # The second type is of no use to job 0 and nearly as good as the first to job 1.
    jobs = jobs_of([[1.0, 100.0], [1.0, 2.0]], rounds=[10, 9])
    gpus = np.array([1, 1])
    assert simulate_tasks(jobs, gpus, "gang_allox", FREE).finish_s.tolist() == [10.0, 18.0]
    assert simulate_tasks(jobs, gpus, "gang_srtf", FREE).finish_s.tolist() == [1000.0, 9.0]


def test_homo_looks_at_no_type() -> None:
    # Alike by their mean lengths; the fast type has fewer free GPUs.
    jobs = jobs_of([[1.0, 9.0], [1.0, 9.0]], rounds=[10, 10], weight=[1.0, 2.0])
    out = simulate_tasks(jobs, np.array([1, 2]), "gang_homo", FREE)
    assert out.finish_s.tolist() == [10.0, 90.0]


@st.composite
def cases(draw: st.DrawFn) -> tuple[TaskJobs, np.ndarray]:
    number, kinds = draw(st.integers(1, 7)), draw(st.integers(1, 3))

    def row(of: st.SearchStrategy[float], length: int) -> np.ndarray:
        return np.array(draw(st.lists(of, min_size=length, max_size=length)))

    length = row(st.sampled_from([1.0, 3.0, 7.0, np.inf]), number * kinds).reshape(number, kinds)
    length[:, 0] = np.where(np.isinf(length).all(axis=1), 2.0, length[:, 0])
    length[:, 0] = np.where(np.isinf(length[:, 0]), 5.0, length[:, 0])
    jobs = jobs_of(
        length,
        row(st.integers(1, 6), number),
        row(st.integers(1, 4), number),
        row(st.sampled_from([0.0, 1.0, 10.0, 100.0]), number),
        row(st.sampled_from([1.0, 5.0]), number),
        row(st.sampled_from([0.0, 0.5]), number),
    )
    gpus = np.array([4, *row(st.integers(0, 4), kinds - 1)], dtype=np.int64)
    return jobs, gpus


@pytest.mark.parametrize("policy", NAMES)
@given(case=cases(), switch=st.sampled_from([0.0, 0.3]))
@settings(max_examples=20, deadline=None)
def test_all_ends_and_no_more_is_used_than_there_is(policy: str, case, switch: float) -> None:
    jobs, gpus = case
    out = simulate_tasks(jobs, gpus, policy, TaskCosts(switch))
    able = np.where(gpus > 0, jobs.task_s, np.inf)
    alone = jobs.rounds * (able.min(axis=1) + jobs.sync_s)
    assert np.isfinite(out.finish_s).all()
    assert (out.finish_s >= jobs.arrival_s + alone - 1e-6).all()
    done = (jobs.rounds * jobs.tasks)[:, None] * able
    assert out.busy_s.sum() >= done.min(axis=1).sum() - 1e-6
    assert (out.busy_s <= gpus * (out.finish_s.max() + 1e-6)).all()
    assert 0.0 < out.utilization <= 1.0
    again = simulate_tasks(jobs, gpus, policy, TaskCosts(switch))
    assert again.finish_s.tolist() == out.finish_s.tolist()


def test_a_trace_becomes_rounds_of_tasks() -> None:
    work = open_trace("mixed_60", ("v100", "p100", "k80"))
    jobs = from_workload(work, 60.0, 0.0)
    assert (jobs.tasks == work.request).all()
    assert np.allclose(jobs.reference_s, 60.0)
    # A gang on its fastest type needs what the trace says, but for the last round's rounding.
    column = np.searchsorted(np.asarray(work.counts), work.request)
    rate = work.rate[np.arange(60), :, column].max(axis=1)
    assert (np.abs(jobs.rounds * 60.0 - work.total / rate) <= 60.0).all()
    assert (from_workload(work, 60.0, 0.0, 3).tasks == 3).all()


def test_the_command_compares_the_policies() -> None:
    words = ["simulate", "tasks", "mixed_60", "--cluster", "v100=8,p100=8,k80=8", "--task", "1200"]
    runner = CliRunner()
    done = runner.invoke(app, [*words, "--json", "--policy", "hare", "--policy", "gang_fifo"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["result"]
    assert [row["policy"] for row in rows] == ["hare", "gang_fifo"]
    assert rows[0]["weighted_avg_jct_h"] < rows[1]["weighted_avg_jct_h"]
    assert "WEIGHTED JCT h" in runner.invoke(app, words).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "nonsense"], "there is no policy 'nonsense' for tasks"),
        (["--task", "0"], "a task takes above 0 s"),
        (["--task", "0.01"], "use a longer --task"),
        (["--switch", "-1"], "at least 0"),
        (["--tasks", "9", "--policy", "gang_fifo", "--task", "999"], "9 GPUs of one type"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(words, message) -> None:
    found = CliRunner().invoke(app, ["simulate", "tasks", "mixed_60", *words])
    assert isinstance(found.exception, UsageError) and message in str(found.exception)
