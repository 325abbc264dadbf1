"""Who may write a checkpoint: the order of attempts, and what they do to each other's files."""

import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.attempts import (
    Attempt,
    AttemptId,
    Superseded,
    attempts_folder,
    later,
    next_attempt,
    present,
)

TOKENS = st.text("0123456789abcdef", min_size=16, max_size=16)
JOBS = st.sampled_from(["none", "7", "8", "84_2"])
IDS = st.builds(AttemptId, st.integers(1, 9), st.integers(0, 5), JOBS, TOKENS)


@given(IDS)
def test_a_name_says_which_attempt_it_is(attempt):
    assert AttemptId.parse(attempt.name) == attempt


@pytest.mark.parametrize("name", ["", "owner", "1.7.0", "1.7.0.xyz", "removed.1.7.0", "1.a.0.{}"])
def test_other_names_are_no_attempts(name):
    assert AttemptId.parse(name.format("0" * 16)) is None


@given(st.integers(1, 9), st.integers(1, 9), TOKENS)
def test_a_later_start_of_a_job_comes_first_whatever_the_numbers(one, two, token):
    stale, mine = AttemptId(one, 1, "7", token), AttemptId(two, 2, "7", token)
    assert mine.supersedes(stale) and not stale.supersedes(mine)
    assert later(mine, [stale, mine]) is None and later(stale, [stale, mine]) == mine
    outside = AttemptId(one, 1, "none", token), AttemptId(one + 1, 0, "none", token)
    assert outside[1].supersedes(outside[0])


@given(st.lists(IDS, max_size=6), JOBS, st.integers(0, 5), TOKENS)
def test_the_next_attempt_is_after_all_and_never_after_a_later_start_of_its_job(
    there, job, restarts, token
):
    overtaken = job != "none" and any(o.job == job and o.restarts > restarts for o in there)
    try:
        mine = next_attempt(job, restarts, there, token)
    except Superseded as superseded:
        assert overtaken and superseded.code == 77
        return
    assert not overtaken
    assert all(mine > other for other in there)
    assert later(mine, [*there, mine]) is None
    assert all(later(other, [*there, mine]) == mine for other in there)


def content(value):
    return {"parts": {"a": torch.tensor([value])}, "random": {}, "state": "{}"}


def value(path):
    return int(checkpoint.read(path)["parts"]["a"])


def test_the_last_to_begin_writes_and_the_others_cannot(tmp_path):
    path = tmp_path / "c.pt"
    first = Attempt.begin(path, "7", 0)
    checkpoint.save(first, content(1))
    second = Attempt.begin(path, "7", 1)
    with pytest.raises(Superseded, match="77"):
        checkpoint.save(first, content(2))
    assert value(path) == 1 and not first.current and second.current
    checkpoint.save(second, content(3))
    assert value(path) == 3 and value(checkpoint.previous(path)) == 1
    with pytest.raises(Superseded) as late:
        Attempt.begin(path, "7", 0)
    assert late.value.reason == "attempt 2 of job 7 (restart 1) has taken over"
    assert second.current and present(path) == [second.identity]


def test_a_folder_that_a_stale_attempt_makes_anew_publishes_nothing(tmp_path):
    """As frameworks do, which make the folder that they save into."""
    path = tmp_path / "c.pt"
    first, second = Attempt.begin(path, "7", 0), Attempt.begin(path, "7", 1)
    first.folder.mkdir()
    written = first.folder / "c.pt"
    torch.save({"hadar": 1, **content(1)}, written)
    with pytest.raises(Superseded):
        checkpoint.publish(first, written)
    assert not path.exists() and second.current
    third = Attempt.begin(path, "7", 2)
    assert present(path) == [third.identity] and not first.folder.exists()


def test_a_folder_that_somebody_removes_is_reported_and_nothing_is_written(tmp_path):
    first = Attempt.begin(tmp_path / "c.pt", "7", 0)
    subprocess.run(["rm", "-r", attempts_folder(tmp_path / "c.pt")], check=True)
    with pytest.raises(Superseded) as removed:
        checkpoint.save(first, content(1))
    assert "was removed" in removed.value.reason and not (tmp_path / "c.pt").exists()


@pytest.mark.parametrize("restarts", [(0, 0, 0, 0), (0, 1, 2, 3)])
def test_of_all_that_begin_at_once_one_can_write(tmp_path, restarts):
    path = tmp_path / "c.pt"

    def begin(number):
        try:
            return Attempt.begin(path, "7", number)
        except Superseded:
            return None

    for _ in range(20):
        with ThreadPoolExecutor(4) as pool:
            found = [one for one in pool.map(begin, restarts) if one is not None]
        alive = [one for one in found if one.current]
        assert len(alive) == 1 and present(path) == [alive[0].identity]
        if len(set(restarts)) > 1:
            restarts = tuple(one + 4 for one in restarts)


BEGIN = """
import os, signal, sys
from pathlib import Path
left = int(sys.argv[2])
def watch(event, arguments):
    global left
    if event in ("os.mkdir", "os.rename", "os.rmdir", "os.remove", "open", "os.listdir") and (
        sys.argv[1] in str(arguments[0])
    ):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), getattr(signal, sys.argv[3]))
from slurm_hadar.runtime.attempts import Attempt
sys.addaudithook(watch)
Attempt.begin(Path(sys.argv[1]) / "c.pt", "7", 0)
sys.exit(5)
"""


@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL"])
def test_stopped_or_killed_while_it_takes_over_it_blocks_no_later_attempt(tmp_path, how):
    """At each of its calls, in turn; a second attempt begins at once, then the first goes on."""
    for point in range(1, 100):
        folder = tmp_path / str(point)
        folder.mkdir()
        Attempt.begin(folder / "c.pt", "6", 0)
        first = subprocess.Popen(
            [sys.executable, "-c", BEGIN, folder, str(point), how], stderr=subprocess.DEVNULL
        )
        _, status = os.waitpid(first.pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            first.returncode = os.WEXITSTATUS(status)
            assert first.returncode == 5 and point > 8, "no point was met"
            return
        began = time.monotonic()
        second = Attempt.begin(folder / "c.pt", "7", 1)
        assert time.monotonic() - began < 10
        if how == "SIGSTOP":
            first.send_signal(signal.SIGCONT)
        code = first.wait(30) if how == "SIGSTOP" else -os.WTERMSIG(status)
        assert code == (77 if how == "SIGSTOP" else -signal.SIGKILL), point
        assert second.current
        checkpoint.save(second, content(point))
        assert value(folder / "c.pt") == point
    raise AssertionError("too many points")


def test_what_cannot_be_written_is_one_sentence_at_the_start(tmp_path):
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(UsageError, match=r"folder.pt could not be saved: it is a folder"):
        Attempt.begin(tmp_path / "folder.pt", "7", 0)
    with pytest.raises(UsageError, match="File name too long"):
        Attempt.begin(tmp_path / ("x" * 239), "7", 0)
    longest = Attempt.begin(tmp_path / ("x" * 238), "7", 0)
    checkpoint.save(longest, content(1))
    shutil.rmtree(longest.folder.parent)
    longest.path.unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(UsageError, match="could not be saved: File too large"):
            Attempt.begin(tmp_path / "c.pt", "7", 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_group_that_shares_the_folder_shares_the_attempts(tmp_path):
    tmp_path.chmod(0o2775)
    attempt = Attempt.begin(tmp_path / "c.pt", "7", 0)
    for folder in (attempt.folder, attempt.folder.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o2775


def test_without_hard_links_the_previous_one_is_kept_too(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    attempt = Attempt.begin(tmp_path / "c.pt", "7", 0)
    for number in (1, 2):
        checkpoint.save(attempt, content(number))
    assert (value(tmp_path / "c.pt"), value(tmp_path / "c.pt.previous")) == (2, 1)
    assert [path.name for path in attempt.folder.iterdir()] == ["owner"]


def test_no_listing_of_another_folder_decides(tmp_path, monkeypatch):
    """However many files lie in the exchange folder, and beside the checkpoint."""
    listed = []
    real = os.listdir

    def listdir(path="."):
        listed.append(Path(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    first = Attempt.begin(tmp_path / "c.pt", "7", 0)
    Attempt.begin(tmp_path / "c.pt", "7", 1)
    with pytest.raises(Superseded):
        first.check()
    assert {path for path in listed if path.exists()} == {attempts_folder(tmp_path / "c.pt")}
