"""Where the jobs of the last day were: what the ticks saw, and who is shown which part."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from hand_made import NOW, job, observation, running

from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.presentation.overview import Viewer
from slurm_hadar.controller.service import placement_history
from slurm_hadar.controller.service.placement_history import DAY_S, PlacementHistory
from slurm_hadar.domain.job import JobState

ALL = Viewer(0, everything=True)
HOUR = 3600.0


def watched(*ticks):
    found = PlacementHistory()
    for now, jobs in ticks:
        found.record(observation(jobs, now=now))
    return found, ticks[-1][0]


def shown(history, now, viewer=ALL, moves=()):
    day = history.timeline(now, moves, viewer)
    return [(one.job, dict(one.gpus), one.begin_s - NOW, one.end_s - NOW, one.open) for one in
            day.segments]  # fmt: skip


def test_a_job_stands_there_from_its_start_even_before_the_first_tick_and_until_now():
    one = running("1", {"v1": {"v100": 2}}, start_s=NOW - HOUR)
    found = watched((NOW, [one, job("2")]), (NOW + 60, [one, job("2")]))
    assert shown(*found) == [("1", {"v100": 2}, -HOUR, 60.0, True)]


def test_an_end_is_slurms_and_a_move_begins_a_new_stay():
    one = running("1", {"v1": {"v100": 1}}, start_s=NOW - 100)
    there = running("1", {"k1": {"k80": 1}}, start_s=NOW + 150)
    ended = replace(there, state=JobState.FINISHED, gpus={}, end_s=NOW + 200)
    found = watched(
        (NOW, [one]), (NOW + 60, [one]), (NOW + 120, [job("1")]), (NOW + 180, [there]),
        (NOW + 240, [ended]), (NOW + 300, []),
    )  # fmt: skip
    assert shown(*found) == [
        ("1", {"v100": 1}, -100.0, 60.0, False),
        ("1", {"k80": 1}, 150.0, 200.0, False),
    ]


def test_after_a_day_it_is_forgotten_and_the_memory_is_bounded(monkeypatch):
    one = running("1", {"v1": {"v100": 1}}, start_s=NOW - 100)
    history, now = watched((NOW, [one]), (NOW + 60, []), (NOW + DAY_S + 120, []))
    assert shown(history, now) == [] and not history._stays
    monkeypatch.setattr(placement_history, "_MOST", 3)
    many = [running(str(n), {"v1": {"v100": 1}}) for n in range(10)]
    history, now = watched((NOW, many))
    assert len(history._stays) == 3
    long = running("1", {"v1": {"v100": 1}}, start_s=NOW - 2 * DAY_S)
    assert shown(*watched((NOW, [long]))) == [("1", {"v100": 1}, -DAY_S, 0.0, True)]


def restarted(path, *ticks):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        found = PlacementHistory(connection)
        for now, jobs in ticks:
            found.record(observation(jobs, now=now))
    return found


def test_a_restart_keeps_the_day_and_a_longer_gap_is_named(tmp_path):
    path = tmp_path / "state.sqlite"
    one = running("1", {"v1": {"v100": 1}}, start_s=NOW - 100)
    two = running("2", {"k1": {"k80": 2}}, start_s=NOW - 50)
    late = running("3", {"v1": {"v100": 2}}, start_s=NOW + HOUR)
    restarted(path, (NOW, [one, two]), (NOW + 60, [two]))
    history = restarted(path, (NOW + 120, [two]))
    assert shown(history, NOW + 120) == [
        ("1", {"v100": 1}, -100.0, 0.0, False),
        ("2", {"k80": 2}, -50.0, 120.0, True),
    ]
    assert not history.timeline(NOW + 120, (), ALL).gaps
    history = restarted(path, (NOW + 2 * HOUR, [late]))
    assert shown(history, NOW + 2 * HOUR) == [
        ("1", {"v100": 1}, -100.0, 0.0, False),
        ("2", {"k80": 2}, -50.0, 120.0, False),
        ("3", {"v100": 2}, HOUR, 2 * HOUR, True),
    ]
    day = history.timeline(NOW + 2 * HOUR, (), ALL)
    assert day.gaps == [(NOW + 120, NOW + 2 * HOUR)] and day.known_s == NOW
    # Who may see a job of before the restart is known too.
    assert shown(history, NOW + 2 * HOUR, Viewer(1001, hidden_jobs=True)) == []
    history = restarted(path, (NOW + 2 * DAY_S, []))
    assert shown(history, NOW + 2 * DAY_S) == []
    assert history.timeline(NOW + 2 * DAY_S, (), ALL).known_s == NOW + 2 * DAY_S
    with closing(sqlite3.connect(path)) as connection:
        assert not connection.execute("SELECT * FROM stay").fetchall()


def test_what_a_full_disk_did_not_take_is_written_by_a_later_tick(tmp_path):
    path = tmp_path / "state.sqlite"
    many = [running(str(n), {"v1": {"v100": 1}}, name="x" * 900, start_s=NOW) for n in range(40)]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        history = PlacementHistory(connection)
        history.record(observation([], now=NOW))
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            history.record(observation(many, now=NOW + 60))
        connection.execute("PRAGMA max_page_count=100000")
        history.record(observation(many, now=NOW + 120))
    assert len(shown(restarted(path, (NOW + 180, many)), NOW + 180)) == 40
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM stay").fetchone() == (40,)


def test_cells_that_a_bad_disk_changed_are_left_out(tmp_path):
    path = tmp_path / "state.sqlite"
    restarted(path, (NOW, [running(str(n), {"v1": {"v100": 1}}) for n in range(5)]))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for job, cell, value in (("0", "gpus", "[x"), ("1", "gpus", "3"), ("2", "uid", "x"),
                                 ("3", "begin_s", "y")):  # fmt: skip
            connection.execute(f"UPDATE stay SET {cell}=? WHERE job=?", (value, job))
        connection.execute("INSERT INTO watched VALUES ('x', 'y')")
        history = PlacementHistory(connection)
        history.read(NOW)
    assert [row[0] for row in shown(history, NOW)] == ["4"]


def test_under_private_data_a_user_sees_their_own_and_moves_of_others_never():
    mine = running("1", {"v1": {"v100": 1}})
    theirs = running("2", {"k1": {"k80": 1}}, uid=1001, user="bob")
    history, now = watched((NOW, [mine, theirs]))
    moves = [
        Entry(n, id_, "move", "asked", NOW - 60, NOW, {"gpus": {"v100": 1}}, "moved")
        for n, id_ in enumerate(("1", "2", "77"))
    ]
    for viewer, jobs, moved in (
        (ALL, ["1", "2"], ["1", "2", "77"]),
        (Viewer(1000), ["1", "2"], ["1"]),
        (Viewer(1000, hidden_jobs=True), ["1"], ["1"]),
        (Viewer(1002, hidden_jobs=True), [], []),
    ):
        assert [one[0] for one in shown(history, now, viewer)] == jobs
        assert [one.job for one in history.timeline(now, moves, viewer).moves] == moved
