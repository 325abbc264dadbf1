from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import run as synthetic_run

from slurm_hadar.reports import compare, formats
from slurm_hadar.reports.run import ClusterGpu, JobTimes, Run, TimelineSegment, attempts, summarise

GPUS = (
    ClusterGpu("v1", "v100", 0),
    ClusterGpu("v1", "v100", 1),
    ClusterGpu("k1", "k80", 0),
    ClusterGpu("k1", "k80", 1),
)


def made(
    *segments: TimelineSegment, jobs: tuple[JobTimes, ...] = (), lost: int | None = None
) -> Run:
    return Run("r", "", GPUS, jobs, segments, (), lost)


def test_the_figures_of_a_small_run() -> None:
    run = made(
        TimelineSegment("1", "a", "k1", (0, 1), 10, 30, 0, "k80"),
        TimelineSegment("1", "a", "v1", (0,), 40, 100, 1, "v100"),
        TimelineSegment("2", "b", "v1", (1,), 20, 60, 0, "v100"),
        jobs=(JobTimes("1", "a", 0, 100, True), JobTimes("2", "b", 10, 60, True)),
        lost=7,
    )
    found = summarise(run)
    assert (found.jobs, found.completed) == (2, 2)
    assert found.makespan_s == 100
    assert found.avg_jct_s == (100 + 50) / 2
    assert (found.jct_quartiles_s, found.longest_jct_s) == ((62.5, 75, 87.5), 100)
    assert found.median_wait_s == 10
    assert found.utilization == pytest.approx((2 * 20 + 60 + 40) / (4 * 100))
    assert (found.moves, found.restarts, found.samples_lost) == (1, 0, 7)


def test_another_index_of_the_same_node_is_no_move() -> None:
    run = made(
        TimelineSegment("1", "a", "v1", (0,), 0, 10, 0, "v100"),
        TimelineSegment("1", "a", "v1", (1,), 12, 20, 3, "v100"),
        TimelineSegment("1", "a", "v1", (0, 1), 22, 30, 4, "v100"),
    )
    assert [(a.moved, a.restarted) for a in attempts(run.segments)["1"]] == [
        (False, False),
        (False, True),
        (True, False),
    ]


def test_two_nodes_of_one_attempt_are_one_attempt() -> None:
    run = made(
        TimelineSegment("1", "a", "v1", (0,), 0, 10, 0, "v100"),
        TimelineSegment("1", "a", "k1", (0,), 1, 11, 0, "k80"),
    )
    (only,) = attempts(run.segments)["1"]
    assert (only.start_s, only.end_s) == (0, 11)
    assert summarise(run).moves == 0


def test_a_job_that_never_ended_leaves_the_makespan_open() -> None:
    run = made(
        TimelineSegment("1", "a", "v1", (0,), 0, 10, 0, "v100"),
        jobs=(JobTimes("1", "a", 0, 10, True), JobTimes("2", "b", 0, None, False)),
    )
    found = summarise(run)
    assert found.makespan_s is None
    assert found.avg_jct_s == 10
    assert found.median_wait_s == 0


def test_a_run_without_anything_has_no_figures() -> None:
    found = summarise(Run("r", "", (), (), ()))
    assert found.makespan_s is found.avg_jct_s is found.median_wait_s is found.utilization is None


@settings(deadline=None)
@given(st.booleans(), st.permutations(["v100", "p100", "k80"]), st.integers(1, 25))
def test_a_schedule_without_overlap_holds_at_most_all_gpus(
    moves: bool, order: list[str], jobs: int
) -> None:
    found = summarise(synthetic_run("r", tuple(order), moves=moves, jobs=jobs))
    assert found.utilization is not None and 0 < found.utilization <= 1
    assert found.makespan_s is not None and found.avg_jct_s is not None
    assert found.makespan_s >= found.avg_jct_s


def test_whoever_is_best_is_marked_and_a_tie_marks_nobody() -> None:
    fast = synthetic_run("plain", ("v100", "p100", "k80"))
    slow = synthetic_run("slurm-hadar", ("k80", "p100", "v100"))
    rows = {row.label: row for row in compare.rows([summarise(fast), summarise(slow)])}
    assert rows["Makespan"].best == (True, False)
    assert rows["Completed"].best == (False, False)
    assert compare.verdict([fast, slow]).startswith("First to finish all jobs: “plain”")
    assert "“slurm-hadar” took 1." in compare.verdict([fast, slow])
    turned = {row.label: row for row in compare.rows([summarise(slow), summarise(fast)])}
    assert turned["Makespan"].best == (False, True)


def test_a_run_that_completed_fewer_jobs_cannot_be_the_fastest() -> None:
    whole = synthetic_run("whole", ("k80", "p100", "v100"))
    few = synthetic_run("few", ("v100", "p100", "k80"))
    few = replace(few, jobs=(replace(few.jobs[0], completed=False), *few.jobs[1:]))
    rows = {row.label: row for row in compare.rows([summarise(whole), summarise(few)])}
    assert rows["Mean job time"].best == (True, False)
    assert rows["Makespan"].best == (True, False)
    assert rows["Makespan"].cells[1] == "not all ended"
    assert "“few” did not complete them all" in compare.verdict([whole, few])


def test_the_comparison_as_data_has_units_in_its_keys() -> None:
    data = compare.as_dict([synthetic_run("a", ("v100", "p100", "k80"))])
    assert isinstance(data["runs"], list)
    assert {"name", "makespan_s", "avg_jct_s", "utilization", "samples_lost"} <= data["runs"][
        0
    ].keys()


def test_words_lose_what_cannot_be_seen() -> None:
    assert formats.plain("a\x1b[1m\u202eb\udc80\n") == "a [1m b  "
