"""A soak says what is wrong: planted here, job by job."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.soak.books import Books, account
from benchmarks.soak.jobs import Sent
from benchmarks.soak.memory import MOST_MB, Memory
from slurm_hadar.domain.declaration import Declaration
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
        (tmp_path / f"{sent.name}.starts").write_text("0 v1\n1 p1\n")
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
def test_a_job_that_did_not_end_well_is_told(books, tmp_path, end, says):
    books.seen["0"] = a_job("soak0", end, held=not end)
    assert says in " ".join(account(books, tmp_path, ()).wrong)


BARE = "0 v1\n1 p1\nbare p1\n"
ASKS = GpuRequest(per_node={"p100": 1})


def test_a_job_that_slurm_started_without_its_gpu_is_counted_apart(books, tmp_path):
    books.seen["0"] = a_job("soak0", "FAILED", request=ASKS)
    (tmp_path / "soak0.starts").write_text(BARE)
    found = account(books, tmp_path, ())
    assert not found.wrong and (found.bare, found.failed_bare) == (1, 1)
    assert found.ended["plain", "FAILED"] == 1


def test_a_job_without_its_gpu_that_ends_otherwise_is_told(books, tmp_path):
    books.seen["0"] = a_job("soak0", "TIMEOUT", request=ASKS)
    (tmp_path / "soak0.starts").write_text(BARE)
    found = account(books, tmp_path, ())
    assert "ended as TIMEOUT" in found.wrong[0] and found.failed_bare == 0


@pytest.mark.parametrize(("request_", "text"), [(ASKS, BARE + "2 v1\n"), (GpuRequest(), BARE)])
def test_a_job_that_had_its_gpu_or_asks_for_none_any_more_is_told(books, tmp_path, request_, text):
    books.seen["0"] = a_job("soak0", "FAILED", request=request_)
    (tmp_path / "soak0.starts").write_text(text)
    assert "ended as FAILED" in account(books, tmp_path, ()).wrong[0]


def test_our_own_cancel_is_fine(books, tmp_path):
    books.seen["0"] = a_job("soak0", "CANCELLED by 0")
    books.cancelled.add("7")
    assert not account(books, tmp_path, ()).wrong


def test_a_job_that_slurm_never_showed_is_told_unless_it_was_refused(books, tmp_path):
    del books.seen["0"]
    assert "never showed" in " ".join(account(books, tmp_path, ()).wrong)
    books.refused["soak0"] = "slurmctld was away"
    assert not account(books, tmp_path, ()).wrong


@pytest.mark.parametrize("lines", ["0 v1\n0 v1\n", "0 v1\ntwice p1\n1 p1\n"])
def test_a_double_start_is_told(books, tmp_path, lines):
    (tmp_path / "soak0.starts").write_text(lines)
    assert account(books, tmp_path, ()).wrong


def test_a_node_that_slurm_could_not_see_may_run_a_job_on(books, tmp_path):
    (tmp_path / "soak0.starts").write_text("0 v1\ntwice p1\n1 p1\n")
    assert not account(books, tmp_path, {"v1"}).wrong


def test_a_lost_sample_is_told(books, tmp_path):
    lineage(tmp_path, SAMPLES - 8)
    assert "not exact" in " ".join(account(books, tmp_path, ()).wrong)


def test_a_job_that_is_no_longer_taken_for_ours_is_told(books, tmp_path):
    books.look([a_job("soak0", "RUNNING")])
    assert "as if it had not" in " ".join(account(books, tmp_path, ()).wrong)


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


def weighed(*mb):
    memory = Memory()
    for second, one in enumerate(mb):
        memory.note(1, float(5 * second), one)
    return memory


def test_memory_that_grows_is_told():
    assert not weighed(*[60.0] * 30).wrong()
    assert not weighed(*[20.0, 40.0], *[60.0] * 30).wrong()
    grown = weighed(*(60.0 + MOST_MB / 10 * n for n in range(30)))
    assert "grew" in grown.wrong()[0]


def test_a_life_too_short_to_be_weighed_is_told():
    assert "too short" in weighed(60.0, 60.0).wrong()[0]
