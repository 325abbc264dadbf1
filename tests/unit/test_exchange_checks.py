"""What the hour of exchanged priorities is judged by."""

import pytest

from benchmarks.exchanges.checks import all_wrong, held_jobs, lost_nices, overtaken
from benchmarks.exchanges.records import Act, Look, Record, Row
from slurm_hadar.domain.job import JobState

INTERVAL_S = 10.0
BASE = 10_000


def row(job, nice, *, managed=True, state=JobState.PENDING, held=False):
    priority = 0 if held else BASE - nice
    return Row(job, "ada", managed, state, priority, nice, held, int(job), 0)


def record(*looks, acts=(), retired=()):
    """Job 1 was submitted with Nice 0, the unmanaged job 2 with 100, job 3 with 200."""
    submitted = [
        Act(0.0, "submit", job, "ada", nice) for job, nice in (("1", 0), ("2", 100), ("3", 200))
    ]
    found = Record(INTERVAL_S, [*submitted, *acts])
    found.looks = [Look(float(at), tuple(rows)) for at, rows in enumerate(looks)]
    found.retired = Look(float(len(looks)), tuple(retired)) if retired else None
    return found


OWN = [row("1", 0), row("2", 100, managed=False), row("3", 200)]
EXCHANGED = [row("1", 200), row("2", 100, managed=False), row("3", 0)]
BOTH_AHEAD = [row("1", 0), row("2", 100, managed=False), row("3", 0)]
STARTED = [row("1", 200), row("2", 100, managed=False), row("3", 0, state=JobState.RUNNING)]


def test_an_exchange_that_is_undone_breaks_nothing():
    whole = record(*[OWN] * 5, *[EXCHANGED] * 60, *[STARTED] * 20, retired=OWN[:2])
    assert all_wrong(whole) == []


def test_two_ahead_of_an_unmanaged_job_where_one_was_are_overtaking():
    assert overtaken(record(*[OWN] * 5, *[BOTH_AHEAD] * 60)) == [
        "unmanaged job 2 had 1 more jobs ahead of it"
    ]
    # While people change something, until the next ticks.
    assert overtaken(record(*[OWN] * 5, *[BOTH_AHEAD] * 20, *[OWN] * 40)) == []


def test_the_place_that_a_started_job_used_is_not_used_twice():
    again = [row("1", 0), row("2", 100, managed=False), row("3", 0, state=JobState.RUNNING)]
    assert overtaken(record(*[OWN] * 5, *[EXCHANGED] * 5, *[again] * 60))


@pytest.mark.parametrize("nice", [0, 200])
def test_a_nice_that_a_person_set_must_be_there_at_the_end(nice):
    set_ = Act(10.0, "nice", "1", "ada", 7)
    whole = record(*[EXCHANGED] * 20, acts=[set_], retired=[row("1", nice), *OWN[1:]])
    assert lost_nices(whole) == [f"job 1 has Nice {nice} at the end, its owner's is 7"]
    kept = record(*[EXCHANGED] * 20, acts=[set_], retired=[row("1", 7), *OWN[1:]])
    assert lost_nices(kept) == []


def test_a_job_that_runs_has_its_owners_nice_after_some_ticks():
    assert lost_nices(record(*[STARTED] * 20)) == []
    assert lost_nices(record(*[STARTED] * 60)) == ["job 3 runs with Nice 0, its owner's is 200"]


def test_a_hold_or_release_of_no_person_is_found():
    held = [row("1", 0, held=True), *OWN[1:]]
    assert held_jobs(record(*[OWN] * 5, *[held] * 5)) == ["job 1 was held by no person"]
    acts = [Act(5.0, "hold", "1", "ada"), Act(15.0, "release", "1", "ada")]
    assert held_jobs(record(*[OWN] * 5, *[held] * 10, *[OWN] * 5, acts=acts)) == []
    assert held_jobs(record(*[OWN] * 5, *[held] * 3, *[OWN] * 8, acts=acts[:1])) == [
        "job 1 was released by no person"
    ]
