"""Where the jobs of the last day were: what the ticks saw, and who is shown which part."""

from dataclasses import replace

from hand_made import NOW, job, running, seen

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
        found.record(seen(jobs, now=now))
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
