"""The harness that kills the controller: it finds each statement and dies just before it."""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.trial import THEN, Found, Touch
from benchmarks.faults.trials import Case, distinct, not_reached, planted

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sqlite3, subprocess, sys
from pathlib import Path
from benchmarks.faults.touches import Touches
folder = Path(sys.argv[1])
link = sqlite3.connect(folder / "file", isolation_level=None)
link.execute("CREATE TABLE t (x)")
Touches(folder / "log", sys.argv[2]).watch(link)
link.execute("INSERT INTO t VALUES (1)")
link.execute("INSERT INTO t VALUES (2)")
subprocess.run(["touch", str(folder / "done")], check=True)
"""


def run(folder, at):
    argv = [sys.executable, "-c", SCRIPT, str(folder), at]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)


def names(folder):
    found = [Touch(*json.loads(line)) for line in (folder / "log").read_text().splitlines()]
    return [f"{touch.place} {touch.what} {touch.words.split('/')[0].strip()}" for touch in found]


def test_every_statement_and_every_program_is_a_point(tmp_path):
    done = run(tmp_path, "")
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == [
        "? journal INSERT INTO t",
        "? journal INSERT INTO t",
        "? slurm touch",
    ]


@pytest.mark.parametrize("rows", [0, 1])
def test_it_dies_before_the_statement(tmp_path, rows):
    done = run(tmp_path, f"? journal INSERT INTO t #{rows + 1}")
    assert done.returncode == -signal.SIGKILL, done.stderr
    with sqlite3.connect(tmp_path / "file") as link:
        assert link.execute("SELECT COUNT(*) FROM t").fetchone() == (rows,)
    assert not (tmp_path / "done").exists()
    assert len(names(tmp_path)) == rows + 1


def touch(place, words, times=1):
    return Touch("slurm", words, place, times)


def test_faults_are_planted_after_the_requeue_of_a_move():
    points = [
        touch("controller/seen/observed.py read", "scontrol -a"),
        touch("controller/acts/acting.py ask_to_save", "INSERT"),
        touch("controller/acts/moves.py settle", "squeue"),
        touch("controller/acts/moves.py _requeue", "scontrol"),
        *(touch("controller/acts/moves.py settle", "squeue", times) for times in (2, 3, 4)),
    ]
    cases = planted("hold", points)
    assert [case.at for case in cases[::2]] == [
        f"controller/acts/moves.py settle slurm squeue #{times}" for times in (2, 3, 4)
    ]
    assert {case.plant for case in cases} == {"hold"}
    assert [point.times for point in distinct(points)] == [1, 1, 1, 1, 2, 3]


def test_what_no_trial_reached_and_what_only_a_trial_met_is_left():
    one, other, more = (touch("acts/moves.py", words) for words in ("squeue", "scontrol", "sbatch"))
    often = [touch("acts/moves.py", "squeue", times) for times in (2, 3, 4)]
    found = [(Case(one.name, then), Found(killed=True, touches=[one])) for then in THEN]
    assert not_reached(found) == []
    found += [(Case(other.name, then), Found(then == "later", [more, *often])) for then in THEN]
    left = not_reached(found)
    names = [other.name, more.name, often[0].name, often[1].name]
    assert left == [
        Case(name, then) for name in names for then in THEN if (name, then) != (names[0], "later")
    ]
    assert {case.at for case in not_reached(found, "sbatch")} == {other.name, more.name}
