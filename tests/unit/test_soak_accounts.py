"""A soak says what is wrong: planted here, job by job."""

import json
import os
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.soak import jobs
from benchmarks.soak.books import Books, account
from benchmarks.soak.jobs import Sent
from benchmarks.soak.silence import GRACE_S, Silence
from benchmarks.soak.slurm_log import completing, late_steps, most_bare, revoked
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.domain.job import GpuRequest, Job, JobState
from slurm_hadar.runtime.samples import Segment, digest, order, to_plain

SAMPLES = 80


def a_job(name, end="COMPLETED", **more):
    state = JobState.FINISHED if end else JobState.PENDING
    return Job(
        id="7", raw_id=7, uid=0, user="root", name=name, state=state, slurm_state=end, **more
    )


@pytest.fixture
def books(tmp_path):
    """One plain job and one training that ended as they should."""
    books = Books()
    for number, kind in enumerate(("plain", "training")):
        sent = Sent(f"soak{number}", kind, 1, SAMPLES if kind == "training" else 0)
        books.sent[sent.name] = sent
        books.seen[str(number)] = replace(a_job(sent.name), id=str(number))
        (tmp_path / f"{sent.name}.starts").write_text("0 v1 100\n1 p1 200\n")
    lineage(tmp_path, SAMPLES)
    return books


def lineage(folder, stop):
    bag = digest(order(0, 0, 1500)[:stop].astype(np.int64))
    rows = to_plain([Segment(0, 0, stop, 1, 8, 1, bag)])
    (folder / "soak1.json").write_text(json.dumps({"segments": rows, "dataset_size": 1500}))


def test_nothing_is_wrong_where_all_is_well(books, tmp_path):
    found = account(books, tmp_path, ())
    assert not found.wrong
    assert (found.lineages, found.exact) == (1, 1)
    assert found.ended == {("plain", "COMPLETED"): 1, ("training", "COMPLETED"): 1}


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("FAILED", "ended as FAILED"),
        ("TIMEOUT", "ended as TIMEOUT"),
        ("CANCELLED", "not by us"),
        ("", "still"),
    ],
)
def test_a_job_that_did_not_end_well_is_reported(books, tmp_path, end, says):
    books.seen["0"] = a_job("soak0", end, held=not end)
    assert says in " ".join(account(books, tmp_path, ()).wrong)


RESTARTS = """\
[2026-11-23T02:33:26.438] _sync_nodes_to_comp_job: JobId=604 in completing state
[2026-11-23T02:33:26.438] select/cons_tres: job_res_rm_job: plugin still initializing
[2026-11-23T02:33:26.439] _sync_nodes_to_comp_job: JobId=606 in completing state
[2026-11-23T02:33:26.439] _sync_nodes_to_comp_job: completing 2 jobs
[2026-11-23T02:34:30.264] slurmctld version 22.05.8 started on cluster sandbox
[2026-11-23T02:35:33.165] _sync_nodes_to_comp_job: JobId=611_1(616) in completing state
[2026-11-23T02:35:33.165] _sync_nodes_to_comp_job: completing 1 jobs
"""


def test_a_start_without_a_gpu_is_explained_by_jobs_that_were_completing_at_a_restart():
    """Lines of slurmctld 22.05.8, with shorter job ids."""
    assert completing(RESTARTS) == ["604", "606", "611_1"]
    assert most_bare(RESTARTS, {"604": 1, "606": 1, "611_1": 1, "700": 2}) == 3
    assert most_bare(RESTARTS, {"606": 2}) == 4
    assert most_bare("", {"606": 2}) == 0


LATE_STEPS = """\
[2026-11-23T11:48:15.252] step_partial_comp: JobId=231008 StepID=0 invalid
[2026-11-23T12:06:02.325] step_partial_comp: JobId=231141 pending
[2026-11-23T12:06:02.825] step_partial_comp: JobId=611_1(616) pending
"""


def test_a_start_without_a_gpu_is_explained_by_a_step_that_outlived_a_requeue():
    """Lines of slurmctld 22.05.8."""
    assert late_steps(LATE_STEPS) == ["231141", "611_1"]
    assert most_bare(RESTARTS + LATE_STEPS, {"604": 1, "606": 1, "611_1": 1}) == 5


BACK = """\
[2026-11-25T17:26:12.971] error: Registered PENDING JobId=647902 StepId=647902.batch on node v1
[2026-11-25T17:26:12.971] Node v1 now responding
[2026-11-25T17:26:13.120] Killing non-startable batch JobId=647902: Job credential revoked
"""
"""The first two lines are slurmctld's (22.05.8); the third has the text of its source."""


def test_a_start_beside_an_old_step_that_came_back_differs_from_one_that_was_asked_for():
    assert revoked(BACK) == {"647902"}
    assert revoked(BACK.replace("PENDING JobId=647902", "PENDING JobId=611_1(647902)")) == {"611_1"}
    assert not revoked(BACK.replace("17:26:13", "17:26:16"))
    assert not revoked(BACK.replace("17:26:13", "17:26:11"))
    assert not revoked(BACK.splitlines(keepends=True)[2])
    assert not revoked(BACK.replace("batch JobId=647902", "batch JobId=647903"))


def test_a_job_that_slurm_failed_beside_its_old_step_is_counted_apart(books, tmp_path):
    books.seen["0"] = a_job("soak0", "FAILED")
    found = account(books, tmp_path, (), {"7"})
    assert not found.wrong and found.failed_revoked == 1
    assert "ended as FAILED" in account(books, tmp_path, (), {"8"}).wrong[0]
    books.seen["0"] = a_job("soak0", "TIMEOUT")
    assert "ended as TIMEOUT" in account(books, tmp_path, (), {"7"}).wrong[0]


def test_what_trains_on_several_nodes_may_leave_as_many_without_their_gpus(books):
    books.sent["soak1"] = replace(books.sent["soak1"], kind="copies")
    books.seen["1"] = a_job("soak1", "COMPLETED")
    books.seen["0"] = a_job("soak0", "COMPLETED")
    assert books.nodes() == {"1": 2, "0": 1}


BARE = "0 v1 100\n1 p1 200\nbare p1 200\n"
ASKS = GpuRequest(per_node={"p100": 1})


def test_a_job_that_slurm_started_without_its_gpu_is_counted_apart(books, tmp_path):
    books.seen["0"] = a_job("soak0", "FAILED", request=ASKS)
    (tmp_path / "soak0.starts").write_text(BARE)
    found = account(books, tmp_path, ())
    assert not found.wrong and (found.bare, found.failed_bare) == (1, 1)
    assert found.ended["plain", "FAILED"] == 1


def test_a_training_that_failed_without_its_gpu_should_have_asked_for_another_start(
    books, tmp_path
):
    books.seen["1"] = a_job("soak1", "FAILED", request=ASKS)
    (tmp_path / "soak1.starts").write_text(BARE)
    assert "ended as FAILED" in account(books, tmp_path, ()).wrong[0]
    # It asks once, not for ever.
    (tmp_path / "soak1.starts").write_text(BARE + "2 k1 300\nbare k1 300\n")
    found = account(books, tmp_path, ())
    assert not found.wrong and (found.bare, found.failed_bare) == (2, 1)


def test_a_job_without_its_gpu_that_ends_otherwise_is_reported(books, tmp_path):
    books.seen["0"] = a_job("soak0", "TIMEOUT", request=ASKS)
    (tmp_path / "soak0.starts").write_text(BARE)
    found = account(books, tmp_path, ())
    assert "ended as TIMEOUT" in found.wrong[0] and found.failed_bare == 0


@pytest.mark.parametrize(("request_", "text"), [(ASKS, BARE + "2 v1 300\n"), (GpuRequest(), BARE)])
def test_a_job_that_had_its_gpu_or_asks_for_none_any_more_is_reported(
    books, tmp_path, request_, text
):
    books.seen["0"] = a_job("soak0", "FAILED", request=request_)
    (tmp_path / "soak0.starts").write_text(text)
    assert "ended as FAILED" in account(books, tmp_path, ()).wrong[0]


def test_our_own_cancel_is_fine(books, tmp_path):
    books.seen["0"] = a_job("soak0", "CANCELLED by 0")
    books.cancelled.add("7")
    assert not account(books, tmp_path, ()).wrong


@pytest.mark.parametrize(
    ("refused", "ours"),
    [
        (None, True),
        (SlurmError("the answer was lost", retry=True), True),
        (SlurmError("Access denied"), False),
        (HadarError("scancel is not there"), False),
    ],
)
def test_a_cancel_that_was_refused_is_no_cancel_of_ours(books, tmp_path, refused, ours):
    books.seen["0"] = a_job("soak0", "CANCELLED by 0")
    assert books.cancel("7", refused) is ours
    assert bool(account(books, tmp_path, ()).wrong) is not ours


def test_a_job_that_slurm_never_showed_is_reported_unless_it_was_refused(books, tmp_path):
    del books.seen["0"]
    assert "never showed" in " ".join(account(books, tmp_path, ()).wrong)
    books.refused["soak0"] = "slurmctld was away"
    assert not account(books, tmp_path, ()).wrong


def test_a_start_that_came_twice_is_reported(books, tmp_path):
    (tmp_path / "soak0.starts").write_text("0 v1 100\n0 v1 200\n")
    for silences in ([], [Silence("v1", 90.0, 210.0)]):
        assert "start 0 came 2 times" in account(books, tmp_path, silences).wrong[0]


TWICE = "0 v1 100\ntwice p1 200\n1 p1 200\n"


@pytest.mark.parametrize(
    "silence",
    [
        pytest.param(Silence("v1", 150.0, 180.0), id="just back: its steps may take KillWait"),
        pytest.param(Silence("v1", 150.0, 250.0), id="away"),
    ],
)
def test_a_node_that_slurm_could_not_see_may_run_a_job_on(books, tmp_path, silence):
    (tmp_path / "soak0.starts").write_text(TWICE.replace("200", f"{180 + GRACE_S - 1:g}"))
    found = account(books, tmp_path, [Silence("k1", 0.0, 999.0), silence])
    assert not found.wrong and found.hidden == 1


def test_of_a_training_such_a_start_is_counted_apart_and_attempts_that_gave_way_too(
    books, tmp_path
):
    (tmp_path / "soak1.starts").write_text(TWICE)
    (tmp_path / "soak1.ends").write_text("4711 77 210.5\n4712 0 220.5\n")
    found = account(books, tmp_path, [Silence("v1", 150.0, 250.0)])
    assert not found.wrong and (found.hidden, found.hidden_trainings) == (0, 1)
    assert found.superseded == 1
    assert "ran twice" in account(books, tmp_path, []).wrong[0]


@pytest.mark.parametrize(
    "silences",
    [
        pytest.param([], id="none"),
        pytest.param([Silence("v1", 201.0, 220.0)], id="later"),
        pytest.param([Silence("v1", 120.0, 199.0 - GRACE_S)], id="long over"),
        pytest.param([Silence("k1", 150.0, 250.0)], id="of a node that it was never on"),
        pytest.param([Silence("p1", 150.0, 250.0)], id="of the node that it began on"),
        pytest.param([Silence("v1", 1.0, 99.0)], id="over before the earlier start"),
    ],
)
def test_two_attempts_at_a_time_that_slurm_could_see_are_reported(books, tmp_path, silences):
    (tmp_path / "soak0.starts").write_text(TWICE)
    assert "ran twice at a time" in account(books, tmp_path, silences).wrong[0]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("0 v1 100\ntwice p1 105\n1 p1 105\n", id="begun after its return"),
        pytest.param("0 v1 10\n1 k1 70\ntwice p1 105\n2 p1 105\n", id="over before another one"),
    ],
)
def test_an_earlier_attempt_that_cannot_be_the_hidden_one_is_no_excuse(books, tmp_path, lines):
    (tmp_path / "soak0.starts").write_text(lines)
    assert "ran twice" in account(books, tmp_path, [Silence("v1", 50.0, 99.0)]).wrong[0]


def test_a_third_attempt_beside_the_second_is_reported(books, tmp_path):
    (tmp_path / "soak0.starts").write_text(TWICE + "twice k1 900\n2 k1 900\n")
    found = account(books, tmp_path, [Silence("v1", 150.0, 250.0)])
    assert len(found.wrong) == 1 and "from 900.0 on" in found.wrong[0] and found.hidden == 1


def test_what_a_job_writes_of_its_starts_tells_who_ran_beside_it(tmp_path):
    """Three attempts of one script: the second beside the first, the third beside the second."""
    sent = Sent("soak0", "plain", 1, 0)
    script = jobs.script(tmp_path, sent, 1.0)
    env = {**os.environ, "SLURMD_NODENAME": "v1", "SLURM_JOB_GPUS": "0"}
    begun = []
    try:
        for restart, seconds in enumerate((60, 60, 0)):
            text = script.replace("sleep 1.0", f"sleep {seconds}")
            argv = ["bash", "-c", text]
            begun.append(subprocess.Popen(argv, env={**env, "SLURM_RESTART_COUNT": str(restart)}))
            until = time.monotonic() + 30
            while str(restart) not in (one.word for one in jobs.starts(tmp_path, "soak0")):
                assert time.monotonic() < until
                time.sleep(0.01)
            if restart == 1:
                begun[0].kill()
                begun[0].wait(30)
    finally:
        for process in begun:
            process.kill()
            process.wait()
    found = jobs.starts(tmp_path, "soak0")
    assert [one.word for one in found] == ["0", "twice", "1", "twice", "2"]
    assert abs(found[0].at_s - time.time()) < 60 and {one.node for one in found} == {"v1"}


def test_a_lost_sample_is_reported(books, tmp_path):
    lineage(tmp_path, SAMPLES - 8)
    assert "not exact" in " ".join(account(books, tmp_path, ()).wrong)


def test_a_job_that_is_no_longer_taken_for_ours_is_reported(books, tmp_path):
    books.look([a_job("soak0", "RUNNING")])
    assert "as if it had not" in " ".join(account(books, tmp_path, ()).wrong)


@pytest.mark.parametrize(
    ("more", "delayed"),
    [({"eligible_s": 101.0}, False), ({"eligible_s": 160.0}, True),
     ({"eligible_s": 160.0, "restarts": 1}, False)],
)  # fmt: skip
def test_a_job_that_waits_for_a_begin_time_is_reported(books, tmp_path, more, delayed):
    books.look([replace(a_job("soak0", "", submit_s=100.0, **more), id="0")])
    books.look([replace(a_job("soak0"), id="0", comment="[hadar1 types=any]")])
    wrong = " ".join(account(books, tmp_path, ()).wrong)
    assert ("waited for a begin time" in wrong) is delayed


def test_a_waiting_task_that_was_cancelled_leaves_no_record(books, tmp_path):
    books.sent["soak2"] = Sent("soak2", "array", 1, 0)
    books.look([replace(a_job("soak2", ""), id="9_0", declaration=Declaration())])
    assert [job.id for job in books.alive()] == ["9_0"]
    books.look([])
    assert books.alive()
    books.cancelled.add("9_0")
    books.look([])
    assert not books.alive()
    assert not account(books, tmp_path, ()).wrong
