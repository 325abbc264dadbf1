"""How much is sent to Slurm in a minute, and what is taken for too much."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm import updates
from slurm_hadar.slurm.traffic import Paused, Traffic


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def asked(traffic: Traffic) -> bool:
    try:
        with traffic.request("jobs"):
            return True
    except Paused:
        return False


@given(st.integers(1, 12), st.lists(st.floats(0, 30), max_size=80))
@example(1, [1.1065048449565182, 30.0, 30.0])
def test_no_minute_ever_sees_more_than_the_limit(limit: int, pauses: list[float]) -> None:
    clock = Clock()
    traffic = Traffic(clock)
    traffic.limit = limit
    sent: list[float] = []
    with traffic.rate_limited():
        for pause in pauses:
            clock.now += pause
            wait = traffic.seconds_until_allowed(1)
            assert asked(traffic) == (wait == 0)
            if wait == 0:
                sent.append(clock.now)
            assert sum(clock.now - 60 < t <= clock.now for t in sent) <= limit
            assert traffic.queries["jobs"] == len(sent)


@given(st.integers(1, 12), st.lists(st.floats(0, 59), max_size=12), st.integers(1, 12))
def test_after_the_wait_there_is_room(limit: int, ages: list[float], wanted: int) -> None:
    clock = Clock()
    traffic = Traffic(clock)
    traffic.limit = limit
    traffic.remember([clock.now - age for age in ages])
    clock.now += traffic.seconds_until_allowed(min(wanted, limit)) + 1e-6
    assert traffic.requests_left() >= min(wanted, limit)


def test_what_another_process_sent_counts_unless_the_machine_was_started_anew() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    traffic.limit = 20
    traffic.remember([990.0, 995.0, 900.0, 5000.0])
    assert traffic.sent() == [990.0, 995.0] and traffic.requests_left() == 18


@pytest.mark.parametrize(
    ("said", "strained"),
    [
        ("squeue gave no answer within 30 s; Slurm may be busy or down", True),
        ("squeue: Socket timed out on send/recv operation", True),
        ("squeue: Rate limit exceeded, please retry momentarily", True),
        ("squeue: Unable to contact slurm controller (connect failure)", False),
        ("scontrol: Munge encode failed: no such file", False),
    ],
)
def test_after_no_answer_a_tick_sends_no_more_and_the_next_one_does(
    said: str, strained: bool
) -> None:
    traffic = Traffic(Clock())
    with traffic.rate_limited():
        with pytest.raises(SlurmError), traffic.request("jobs"):
            raise SlurmError(said, retry=True)
        assert bool(traffic.strain) == strained
        assert not asked(traffic)
    assert asked(traffic), "a person's commands are not held up"
    with traffic.rate_limited():
        assert asked(traffic) and not traffic.strain


@pytest.mark.parametrize("kind", ["limits", "users"])
def test_a_silent_slurmdbd_stops_and_slows_what_it_answers_only(kind: str) -> None:
    clock = Clock()
    traffic = Traffic(clock)
    with traffic.rate_limited():
        with pytest.raises(SlurmError), traffic.request(kind):
            clock.now += 30
            raise SlurmError(f"sacctmgr gave no answer within 30 s ({kind})", retry=True)
        assert not traffic.strain and asked(traffic)
        with pytest.raises(Paused, match="slurmdbd did not answer"), traffic.request("limits"):
            pass
    with traffic.rate_limited(), traffic.request(kind):
        clock.now += 30
    assert traffic.slowest_s == 0.0


def test_a_refusal_is_an_answer() -> None:
    traffic = Traffic(Clock())
    with traffic.rate_limited():
        with pytest.raises(SlurmError), traffic.request("update"):
            raise SlurmError("scontrol update: Invalid job id specified")
        assert asked(traffic) and not traffic.strain


def test_the_slowest_answer_is_known_by_its_kind() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    with traffic.rate_limited():
        for kind, took, measured in (("jobs", 2.0, True), ("nodes", 3.0, True), ("x", 9.0, False)):
            with traffic.request(kind, measured):
                clock.now += took
    assert (traffic.slowest, traffic.slowest_s) == ("nodes", 3.0)


def test_one_slow_refusal_is_not_waited_for_seven_times() -> None:
    clock = Clock()
    tried: list[float] = []

    def attempt() -> SlurmError:
        tried.append(clock.now)
        clock.now += 9.0
        return SlurmError("Unable to contact slurm controller", retry=True)

    assert updates.patiently(attempt, lambda _: None, clock) is not None
    assert len(tried) == 1


def test_what_was_not_sent_is_not_tried_again() -> None:
    tried = []

    def attempt() -> SlurmError:
        tried.append(1)
        return Paused("not sent")

    assert isinstance(updates.patiently(attempt, lambda _: None), Paused) and len(tried) == 1
