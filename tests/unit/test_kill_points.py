"""The harness that kills the controller: it finds each statement and dies just before it."""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import chosen, is_failure
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.trial import THEN, Found, Touch
from benchmarks.faults.trials import (
    Case,
    TrialSandboxes,
    distinct,
    has_moved,
    is_sent,
    never_reached,
    not_reached,
    planted,
)
from slurm_hadar.domain.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sqlite3, subprocess, sys
from pathlib import Path
from benchmarks.faults.touches import Touches
from slurm_hadar.exchange.plan_file import JobPlan, write_plan
folder = Path(sys.argv[1])
link = sqlite3.connect(folder / "file", isolation_level=None)
link.execute("CREATE TABLE t (x)")
Touches(folder / "log", sys.argv[2]).watch(link)
link.execute("INSERT INTO t VALUES (1)")
link.execute("INSERT INTO t VALUES (2)")
write_plan(folder, JobPlan("7", gpus={}))
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
        "exchange/plan_file.py write_plan file plan.N.json",
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


def test_it_dies_before_a_file_is_put_in_its_place(tmp_path):
    run(tmp_path, "")
    point = Touch(*json.loads((tmp_path / "log").read_text().splitlines()[2]))
    assert point.name.endswith("write_plan file plan.N.json #1") and point.what == "file"
    there = tmp_path / "there"
    there.mkdir()
    done = run(there, point.name)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (there / "plan.7.json").exists() and (tmp_path / "plan.7.json").exists()


def touch(place, words, times=1):
    return Touch("slurm", words, place, times)


def test_faults_are_planted_after_the_requeue_of_a_move():
    points = [
        touch("controller/observation/observed.py read", "scontrol -a"),
        touch("controller/actuation/apply.py ask_to_save", "INSERT"),
        touch("controller/actuation/running/moves.py follow_open_moves", "squeue"),
        touch("controller/actuation/running/moves.py _requeue", "scontrol"),
        *(
            touch("controller/actuation/running/moves.py follow_open_moves", "squeue", times)
            for times in (2, 3, 4)
        ),
        # A plan file is written when a job is sent on as well, which is the end of its move.
        Touch("file", "plan.N.json", "controller/actuation/apply.py write_plan", 1),
    ]
    cases = planted("hold", points)
    assert [case.at for case in cases[::2]] == [
        f"controller/actuation/running/moves.py follow_open_moves slurm squeue #{times}"
        for times in (2, 3, 4)
    ]
    assert {case.plant for case in cases} == {"hold"}
    assert [point.times for point in distinct(points)] == [1, 1, 1, 1, 2, 3, 1]


def test_faults_of_hints_are_planted_before_these_are_known_to_be_done():
    place = "controller/actuation/apply.py send_hints"
    points = [
        touch("controller/actuation/apply.py refusals", "SELECT job"),
        touch(place, "scontrol"),
        *(touch(place, "UPDATE journal SET", times) for times in (1, 2, 3, 4)),
        touch("controller/actuation/apply.py ask_to_save", "INSERT"),
    ]
    names = [f"{place} slurm UPDATE journal SET #{times}" for times in (2, 3, 4)]
    assert [(case.at, case.then) for case in planted("begin time", points)] == [
        (name, "never") for name in names
    ]
    assert {case.then for case in planted("retire forgets", points)} == {"retired"}
    assert [is_sent(point) for point in points] == [False, *[True] * 6]


def test_a_tick_that_comes_when_all_trainings_are_over_is_not_the_one_to_kill(
    tmp_path, monkeypatch
):
    over = Found(touches=[touch("controller/actuation/running/moves.py advance", "UPDATE")])
    moves = Found(touches=[touch("controller/actuation/running/moves.py _release", "UPDATE")])
    assert has_moved(moves) and not has_moved(over)
    answers: list[Found] = []
    boxes = TrialSandboxes(tmp_path, 1, "user")
    monkeypatch.setattr(boxes, "run", lambda cases: [(case, answers.pop(0)) for case in cases])
    for ticks, found, left in (
        ([over, moves, over], moves, 1),
        ([over, over, over], over, 0),
        ([wrong := Found(wrong=["lost"]), moves], wrong, 1),
    ):
        answers[:] = ticks
        assert boxes.undisturbed() is found and len(answers) == left


def test_what_no_trial_reached_and_what_only_a_trial_met_is_left():
    one, other, more = (
        touch("actuation/running/moves.py", words) for words in ("squeue", "scontrol", "sbatch")
    )
    often = [touch("actuation/running/moves.py", "squeue", times) for times in (2, 3, 4)]
    found = [(Case(one.name, then), Found(killed=True, touches=[one])) for then in THEN]
    assert not_reached(found) == []
    found += [(Case(other.name, then), Found(then == "later", [more, *often])) for then in THEN]
    left = not_reached(found)
    names = [other.name, more.name, often[0].name, often[1].name]
    assert left == [
        Case(name, then) for name in names for then in THEN if (name, then) != (names[0], "later")
    ]
    assert {case.at for case in not_reached(found, "sbatch")} == {other.name, more.name}


def test_a_run_fails_where_a_point_was_never_reached_in_any_way():
    one, other = touch("actuation/running/moves.py", "squeue"), touch("acts/moves.py", "scontrol")
    found = [(Case(one.name, then), Found(killed=then == "later")) for then in THEN]
    found += [(Case(other.name, then), Found()) for then in THEN]
    left = not_reached(found)
    first = {one.name, other.name}
    assert len(left) == 2 * len(THEN) - 1 and never_reached(found, left, first) == [other.name]
    assert is_failure(0, [], 90, [other.name]) and not is_failure(0, [], 90, [])
    assert (
        is_failure(1, [], 90, []) and is_failure(0, ["hold"], 90, []) and is_failure(0, [], 9, [])
    )


def test_one_more_time_of_a_statement_that_only_a_trial_met_need_not_come_again():
    one, again, other = (
        touch("actuation/running/moves.py", *words)
        for words in (("squeue",), ("squeue", 2), ("scontrol",))
    )
    found = [(Case(one.name, then), Found(killed=True, touches=[again, other])) for then in THEN]
    left = not_reached(found)
    assert {case.at for case in left} == {again.name, other.name}
    assert never_reached(found, left, {one.name}) == [other.name]
    assert never_reached(found, left, {one.name, again.name}) == [again.name, other.name]


def test_a_name_that_no_point_has_is_reported():
    points = [touch("actuation/running/moves.py", "squeue"), touch("acts/moves.py", "scontrol")]
    assert chosen(points, "scontrol", 0, 0) == points[1:]
    assert len(chosen(points, "", 1, 0)) == 1
    with pytest.raises(UsageError, match="none of the 2 points has 'typo' in its name"):
        chosen(points, "typo", 0, 0)


def test_a_planted_fault_is_caught_by_its_own_sentence_only():
    failed = "the trial failed: not within 240 s: all jobs end"
    for plant in FAULTS.values():
        assert plant.reported_by([failed, "moves: its starts were []"]) is None
    held = "moves: it is held (JobHeldUser)"
    assert FAULTS["hold"].reported_by([failed, held]) == held
