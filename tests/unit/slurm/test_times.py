import time
from dataclasses import replace
from datetime import datetime
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.slurm import records, times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("5:30", 330),
        ("1:00:00", 3600),
        ("00:00:01", 1),
        ("365-00:00:00", 365 * 86400),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-2:3:4", 93784),
        ("UNLIMITED", inf),
        ("INFINITE", inf),
        ("infinite", inf),
        ("INVALID", None),
        ("Partition_Limit", None),
        ("NONE", None),
        ("N/A", None),
        ("NOT_SET", None),
        ("", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert times.parse_duration(text) == seconds


@given(st.integers(0, 5_000_000))
def test_what_slurm_prints_comes_back(seconds: int) -> None:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    assert times.parse_duration(f"{days}-{clock}" if days else clock) == seconds


@given(st.floats(1, 1e9))
def test_a_limit_is_never_shortened(seconds: float) -> None:
    back = times.parse_duration(times.format_minutes(seconds))
    assert back is not None
    assert seconds <= back < seconds + 60


def test_no_limit() -> None:
    assert times.format_minutes(inf) == "UNLIMITED"


@given(st.text())
def test_any_text_gives_seconds_or_a_clear_error(text: str) -> None:
    for parse in (times.parse_duration, times.parse_date):
        try:
            value = parse(text)
        except HadarError as error:
            assert "not understood" in str(error)
        else:
            assert value is None or value >= 0 or parse is times.parse_date


def test_dates_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert times.parse_date("2026-11-21T01:00:00") == 1795219200
    finally:
        monkeypatch.undo()
        time.tzset()
    now = datetime(2026, 5, 1, 12, 30)
    assert times.parse_date(now.isoformat()) == now.timestamp()


@pytest.mark.parametrize("text", ["Unknown", "None", "N/A", "(null)", ""])
def test_no_date(text: str) -> None:
    assert times.parse_date(text) == 0


def test_a_requeued_job_does_not_start_in_the_second_of_its_requeue() -> None:
    fresh = Job("1", 1, 0, "u", "n", JobState.PENDING, "PENDING", submit_s=1000.0)
    again = replace(fresh, restarts=1)
    assert times.at_once(fresh, 1000.2) == "now"
    assert times.startable_s(fresh) <= 1000.0 < times.startable_s(again)
    assert times.at_once(again, 1000.2) == times.at_once(again, 1001.9) == "uts1001"
    assert times.at_once(again, 1002.0) == "now"


def test_a_job_starts_when_its_last_attempt_has_left() -> None:
    again = Job("1", 1, 0, "u", "n", JobState.PENDING, "PENDING", submit_s=1000.0, restarts=1)
    leaving = replace(again, not_before_s=1040.0)
    assert times.at_once(leaving, 1010.0) == "uts1040"
    assert times.at_once(leaving, 1041.0) == "now"


def test_a_clock_that_was_set_back_keeps_no_job_waiting() -> None:
    again = Job("1", 1, 0, "u", "n", JobState.PENDING, "PENDING", submit_s=4600.0, restarts=1)
    assert times.set_back(again, 1000.0) and not times.set_back(again, 4599.0)
    assert times.at_once(again, 1000.0) == "now+2"


@pytest.mark.parametrize(
    ("settings", "delay_s"),
    [
        ({}, 121.0),
        ({"AuthInfo": "(null)"}, 121.0),
        ({"AuthInfo": "cred_expire=20,socket=/run/munge"}, 21.0),
        ({"AuthInfo": "socket=/run/munge,cred_expire=600"}, 601.0),
        ({"AuthInfo": "cred_expire=20", "SchedulerParameters": "x=1,requeue_delay=300"}, 301.0),
        ({"AuthInfo": "cred_expire=soon"}, inf),
    ],
)
def test_how_long_slurm_delays_a_requeued_job(settings: dict[str, str], delay_s: float) -> None:
    assert records.requeue_delay_s(settings) == delay_s


@pytest.mark.parametrize(
    ("begins_s", "now", "set_by_others"),
    [
        (1121.0, 1002.0, False),
        (1125.0, 1002.0, False),
        (2800.0, 1002.0, True),
        # Slurm's own, long after the requeue or seen by a clock that was set forth or back.
        (1121.0, 5000.0, False),
        (1121.0, -2600.0, False),
        # Ours, before an update that was not answered.
        (1180.0, 1120.0, False),
        (1182.0, 1120.0, False),
        (1190.0, 1120.0, True),
    ],
)
def test_a_begin_time_later_than_slurms_own_was_set_by_somebody(
    begins_s: float, now: float, set_by_others: bool
) -> None:
    again = Job("1", 1, 0, "u", "n", JobState.PENDING, "PENDING", submit_s=1000.0, restarts=1)
    again = replace(again, eligible_s=begins_s)
    assert times.begins_as_set(again, now, 121.0) is set_by_others
    assert not times.begins_as_set(again, now, inf)
    assert not times.begins_as_set(replace(again, restarts=0), now, 121.0)


@pytest.mark.parametrize(
    ("options", "depth"),
    [
        ("", 100),
        ("(null)", 100),
        ("default_queue_depth=1000", 500),
        ("bf_max_job_test=2000,default_queue_depth=1000", 1000),
        ("bf_max_job_test=30", 30),
        ("default_queue_depth=many,bf_max_job_test=", 100),
    ],
)
def test_how_many_jobs_slurm_looks_at(options: str, depth: int) -> None:
    assert records.queue_depth({"SchedulerParameters": options} if options else {}) == depth
