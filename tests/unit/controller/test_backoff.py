"""When the next tick may begin."""

import pytest
from hand_made import config
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.backoff import Backoff
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.errors import JustStartedError, SlurmError
from slurm_hadar.slurm.traffic import Traffic

SITE = config("[controller]\ninterval_s = 60\n")


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def store(tmp_path):
    found = Store.open(tmp_path / "state")
    yield found
    found.close()


def answered(backoff, traffic, clock, took):
    with backoff.tick(), traffic.request("jobs"):
        clock.now += took


def test_it_doubles_to_a_bound_and_is_back_at_once(store):
    clock = Clock()
    traffic = Traffic(clock)
    backoff = Backoff(SITE, traffic, store)
    observation = []
    for took in (1, 6, 6, 6, 6, 6, 1):
        answered(backoff, traffic, clock, took)
        observation.append(backoff.interval_s)
    assert observation == [60, 120, 240, 480, 600, 600, 60]
    assert backoff.pause_s(90) == 90 and not backoff.message(60) and not backoff.why_not_now()


def test_the_next_process_of_a_timer_knows_of_it(store):
    clock = Clock()
    traffic = Traffic(clock)
    answered(Backoff(SITE, traffic, store), traffic, clock, 6)
    for later, skipped in ((50, True), (100, False)):
        clock.now = 1000.0 + later
        after = Backoff(SITE, Traffic(clock), store)
        assert bool(after.why_not_now()) == skipped
        assert after.interval_s == 120


def test_a_machine_that_was_started_anew_waits_for_nothing(store):
    clock = Clock()
    clock.now = 1e6
    traffic = Traffic(clock)
    answered(Backoff(SITE, traffic, store), traffic, clock, 6)
    clock.now = 20.0
    assert Backoff(SITE, Traffic(clock), store).why_not_now() == ""


def test_a_failed_tick_counts_too(store):
    clock = Clock()
    traffic = Traffic(clock)
    backoff = Backoff(SITE, traffic, store)
    with pytest.raises(SlurmError), backoff.tick(), traffic.request("jobs"):
        raise SlurmError("squeue gave no answer within 30 s", retry=True)
    assert backoff.interval_s == 120 and "is overloaded" in backoff.message(60)
    with pytest.raises(SlurmError), backoff.tick(), traffic.request("jobs"):
        raise SlurmError("Unable to contact slurm controller", retry=True)
    assert backoff.interval_s == 60, "a slurmctld that is down is not spared"


def test_what_was_waited_for_a_slurmctld_that_starts_is_no_slow_answer(store):
    clock = Clock()
    traffic = Traffic(clock)
    backoff = Backoff(SITE, traffic, store)
    with pytest.raises(JustStartedError), backoff.tick():
        with traffic.request("jobs"):
            clock.now += 8
        raise JustStartedError("slurmctld has just started", retry=True)
    assert backoff.interval_s == 60 and not backoff.message(60)
    assert Backoff(SITE, Traffic(clock), store).why_not_now() == ""
    with pytest.raises(SlurmError), backoff.tick():
        with traffic.request("jobs"):
            clock.now += 8
        raise SlurmError("partial output")
    assert backoff.interval_s == 120


def test_without_room_for_a_tick_it_waits(store):
    clock = Clock()
    traffic = Traffic(clock)
    backoff = Backoff(SITE, traffic, store)
    with backoff.tick():
        for _ in range(55):
            with traffic.request("jobs"):
                clock.now += 0.1
    assert "max_queries_per_minute" in backoff.why_not_now()
    assert "max_queries_per_minute" in Backoff(SITE, Traffic(clock), store).why_not_now()
    assert backoff.pause_s(5) > 50
    # A daemon says why it is silent for longer than usual, and only then.
    assert "no tick for another 55 s" in backoff.message(5) and backoff.message(60) == ""
    clock.now += backoff.pause_s(5) + 1e-6
    assert backoff.why_not_now() == ""


ODD = st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.lists(st.floats()))


@given(st.fixed_dictionaries({"factor": ODD, "until": ODD, "slow": ODD, "sent": ODD}))
def test_whatever_the_state_file_holds_it_begins(tmp_path_factory, kept):
    store = Store.open(tmp_path_factory.mktemp("state"))
    store.keep_policy_state("requests", kept)
    backoff = Backoff(SITE, Traffic(Clock()), store)
    assert 60 <= backoff.interval_s <= 600
    assert isinstance(backoff.why_not_now(), str)
    store.close()
