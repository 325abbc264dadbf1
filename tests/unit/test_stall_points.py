"""Trials of saves and the watch over stalled trainings: their pure parts, with faults planted."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import chosen
from benchmarks.faults.saver import WISH
from benchmarks.faults.saves import (
    HOWS,
    SaveCase,
    SaveFound,
    SavePoint,
    answer_faults,
    caught,
    exit_fault,
    left_over,
    summary,
)
from benchmarks.faults.trial import STALLED, Found, Touch
from benchmarks.faults.trials import THENS, Case, not_reached
from benchmarks.soak.jobs import Ended, ends
from benchmarks.soak.publications import Course, Publications, Published
from benchmarks.soak.stalls import Saver, Stall, Stalls, outcome
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.progress import Ack, Progress
from slurm_hadar.runtime.attempts import AttemptId, attempts_folder

ROOT = Path(__file__).resolve().parents[2]
NEWEST = "3.12.2.0123456789abcdef"
ATTEMPTS = ".c.pt.attempts"


@pytest.mark.parametrize(
    ("code", "completed", "wrong"),
    [(77, False, False), (77, True, False), (0, True, False), (0, False, True), (1, True, True),
     (-9, False, True), (None, False, True)],
)  # fmt: skip
def test_a_stale_attempt_ends_with_77_or_had_nothing_left_to_write(code, completed, wrong):
    assert bool(exit_fault(code, completed=completed)) is wrong


def test_an_attempt_that_was_moved_may_end_as_after_term_when_it_has_saved():
    assert exit_fault(143, completed=True, end=143) is None
    assert exit_fault(143, completed=False, end=143) and exit_fault(0, completed=True, end=143)


@pytest.mark.parametrize(
    ("restarts", "samples", "faults"),
    [(0, 50, 0), (1, 50, 1), (0, 51, 1), (1, 51, 2)],
)  # fmt: skip
def test_an_answer_is_of_the_attempt_that_was_asked_and_comes_after_the_save(
    restarts, samples, faults
):
    report = Progress("12", 1.0, restarts, "n1", 1, True, 1.0, "", samples, 0.0, 0.0, 8, 1)
    assert answer_faults([report], 50) == []
    report = replace(report, ack=Ack(WISH, 1.0, samples))
    assert len(answer_faults([report], 50)) == faults


def test_only_the_newest_attempt_keeps_a_folder():
    kept = ["c.pt", "c.pt.previous", "lineage.json", "out", ATTEMPTS, f"{ATTEMPTS}/{NEWEST}"]
    kept.append(f"{ATTEMPTS}/{NEWEST}/owner")
    assert left_over(kept, NEWEST) == []
    strange = [f"{ATTEMPTS}/2.12.1.0123456789abcdef", f"{ATTEMPTS}/{NEWEST}/x.c.pt", ".c.pt.aside"]
    assert left_over(kept + strange, NEWEST) == sorted(strange)


STOPS = """
import os, signal, sqlite3, sys
from pathlib import Path
from benchmarks.faults.touches import Touches
link = sqlite3.connect(Path(sys.argv[1]) / "file", isolation_level=None)
link.execute("CREATE TABLE t (x)")
Touches(Path(sys.argv[1]) / "log", "? journal INSERT INTO t #1", signal.SIGSTOP).watch(link)
link.execute("INSERT INTO t VALUES (1)")
"""


def test_a_controller_stops_before_the_statement_and_goes_on(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", STOPS, str(tmp_path)], cwd=ROOT)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    with sqlite3.connect(tmp_path / "file") as link:
        assert link.execute("SELECT COUNT(*) FROM t").fetchone() == (0,)
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 0
        assert link.execute("SELECT COUNT(*) FROM t").fetchone() == (1,)


def test_points_where_no_controller_was_stopped_are_left():
    point = Touch("slurm", "scontrol", "actuation/running/moves.py", 1)
    found = [(Case(point.name, STALLED[0]), Found(killed=True, touches=[point]))]
    assert not_reached(found, "", STALLED) == [Case(point.name, STALLED[1])]
    assert {then for case in THENS.values() for then in case} >= {*STALLED, "never"}


def test_stalls_and_kills_are_counted_apart():
    points = [SavePoint("first", "os.mkdir #1"), SavePoint("again", "os.rename #1")]
    answers = [
        (SaveCase(point, how), SaveFound(True, 77 if how == "stall" else -9, 0.5))
        for point in points
        for how in HOWS
    ]
    answers[0][1].wrong.append("it changed c.pt")
    stall, kill = summary(answers)
    assert stall.startswith(
        "saves, stall: 2 trials at 2 points, 1 broke a promise; 2 ended with 77"
    )
    assert kill.startswith("saves, kill: 2 trials at 2 points, 0 broke a promise; the next")
    assert summary(answers[1::2]) == [kill]
    assert chosen(points, "rename", 0, 0) == points[1:]
    with pytest.raises(UsageError, match="none of the 2 points"):
        chosen(points, "typo", 0, 0)


def test_a_planted_fault_is_caught_by_its_own_sentence():
    point = SavePoint("again", "os.rename #1")
    late = SaveFound(wrong=["the next attempt did not complete within 10 s"])
    found = caught([(SaveCase(point, "stall", "a lock"), late),
                    (SaveCase(point, "stall", "left behind"), late)])  # fmt: skip
    assert found["a lock"] == late.wrong[0] and found["left behind"] is None


def attempt(number, restarts=0):
    return AttemptId(number, restarts, "12", f"{number:016x}")


def test_what_a_stale_attempt_publishes_is_seen_though_the_next_one_has_not_saved_yet():
    course = Course(last=Published(1, 80))
    course.note([attempt(1), attempt(2)])
    # The later one has not removed the folder of the earlier one yet.
    assert course.fault(Published(1, 160)) is None
    course.note([attempt(2)])
    assert course.fault(Published(1, 160)) == "attempt 1 published after attempt 2 had taken over"
    assert course.fault(Published(2, 80)) is None


@pytest.mark.parametrize("new", [Published(2, 79), Published(1, 160)])
def test_a_checkpoint_never_goes_back(new):
    assert "went back from attempt 2, 80 samples" in Course(Published(2, 80)).fault(new)


def test_published_checkpoints_are_read_as_they_change(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "soak1.pt"
    looks = Publications(tmp_path)
    looks.look(["soak1"])
    for number, samples in ((1, 80), (2, 160), (1, 240)):
        folder = attempts_folder(path) / attempt(number).name
        folder.mkdir(parents=True, exist_ok=True)
        state = json.dumps({"attempt": number, "samples": samples})
        torch.save({"hadar": 1, "state": state}, tmp_path / "aside")
        (tmp_path / "aside").replace(path)
        looks.look(["soak1", "soak2"])
        looks.look(["soak1"])
    assert looks.seen == 3
    assert looks.wrong == [
        "soak1: the checkpoint went back from attempt 2, 160 samples, to attempt 1, 240 samples"
    ]


def stall(folder, pid=4711, *, in_save=True):
    saver = Saver("soak1", folder / "soak1.pt", attempt(1), pid, "1", "v1")
    return Stall(saver, 100.0, in_save)


@pytest.mark.parametrize(
    ("ended", "in_save", "how"),
    [
        ([Ended(4711, 77, 120.0)], True, "ended with 77"),
        ([], True, "killed"),
        ([Ended(4711, 77, 50.0), Ended(4712, 0, 120.0)], True, "killed"),
        ([Ended(4711, 143, 120.0)], False, "had nothing left to write"),
        ([Ended(4711, 143, 120.0)], True, "not 77 but 143"),
        ([Ended(4711, 0, 120.0)], True, "not 77 but 0"),
        ([Ended(4711, 1, 120.0)], False, "not 77 but 1"),
    ],
)
def test_how_a_superseded_attempt_ended(tmp_path, ended, in_save, how):
    assert outcome(stall(tmp_path, in_save=in_save), ended) == how


def test_a_superseded_attempt_that_trains_on_is_wrong(tmp_path):
    alive = stall(tmp_path, os.getpid())
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    alive.saver = Saver("soak1", tmp_path / "soak1.pt", attempt(1), os.getpid(), fields[19], "v1")
    assert outcome(alive, []) == "not ended"


def test_a_saver_is_superseded_by_a_later_start_and_saves_while_its_file_is_there(tmp_path):
    saver = stall(tmp_path).saver
    mine = attempts_folder(saver.path) / saver.attempt.name
    mine.mkdir(parents=True)
    assert not saver.superseded and not saver.saving
    (mine / "0123456789abcdef.soak1.pt").touch()
    assert saver.saving
    mine.with_name(attempt(2, 1).name).mkdir()
    assert saver.superseded


@pytest.mark.parametrize("ended", [False, True])
def test_what_slurm_continued_and_ended_before_was_not_superseded(tmp_path, ended):
    process = subprocess.Popen(["sleep", "60"])
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    saver = Saver("soak1", tmp_path / "soak1.pt", attempt(1), process.pid, fields[19], "v1")
    (attempts_folder(saver.path) / attempt(2).name).mkdir(parents=True)
    stalls, one = Stalls(tmp_path, random.Random(0), lambda: False), Stall(saver, 100.0, True)
    if ended:
        process.kill()
        process.wait()
    stalls.end(one)
    assert (one.gone, one.superseded) == (ended, not ended)
    process.kill()
    process.wait()


@pytest.mark.parametrize(("body", "code"), [("pass", 0), ("sys.exit(77)", 77), ("1 / 0", 1)])
def test_the_end_of_a_program_is_noted(tmp_path, body, code):
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nassert sys.argv == [{str(program)!r}, '--x']\n{body}\n")
    noted = ROOT / "benchmarks" / "soak" / "noted.py"
    argv = [sys.executable, str(noted), str(tmp_path / "soak1.ends"), str(program), "--x"]
    began = time.time()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    (line,) = ends(tmp_path, "soak1")
    assert line.code == code and began <= line.at_s <= time.time()
    assert ends(tmp_path, "soak2") == []
