"""Whether a job ends sooner where it waits for one type."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.scheduling.narrowing import without_slower_types

TIMES = {"v100": 10.0, "p100": 15.0, "k80": 100.0}
KINDS = ("k80", "p100", "v100")


def kept(waits, longest_s=1000.0, others=(), kinds=KINDS):
    return without_slower_types(kinds, waits, TIMES, longest_s, others.__contains__)


def test_types_on_which_it_would_end_later_are_left_out():
    assert kept({"v100": 20.0, "p100": 50.0, "k80": 0.0}) == ("v100", "p100")
    assert kept({"v100": 0.0, "p100": 50.0, "k80": 0.0}) == ("v100",)


def test_none_is_left_out_that_may_end_as_soon():
    assert kept({"v100": 95.0, "p100": 90.0, "k80": 0.0}) == KINDS


def test_it_waits_neither_for_too_long_nor_for_what_others_want():
    waits = {"v100": 20.0, "p100": 50.0, "k80": 0.0}
    assert kept(waits, longest_s=19.0) == KINDS
    assert kept(waits, others=("v100",)) == KINDS
    assert kept(waits, others=("p100", "k80")) == ("v100", "p100")


def test_what_it_cannot_wait_for_is_not_waited_for():
    assert kept({"v100": inf, "p100": 20.0, "k80": 0.0}) == ("p100", "v100")
    assert kept({"p100": 20.0, "k80": 0.0}) == ("p100", "v100")
    assert kept({}) == KINDS
    assert kept({"v100": inf}) == KINDS


SECONDS = st.one_of(st.floats(0, 1e6), st.just(inf))


@given(st.dictionaries(st.integers(0, 5), st.tuples(SECONDS, SECONDS), min_size=1))
def test_none_is_left_out_on_which_the_job_might_end_sooner(found):
    waits = {kind: wait for kind, (wait, _) in found.items()}
    times = {kind: time for kind, (_, time) in found.items()}
    kinds = tuple(found)
    kept = without_slower_types(kinds, waits, times, 2e6, lambda kind: False)
    assert set(kept) <= set(kinds) and len(set(kept)) == len(kept) > 0
    soonest = min(waits[kind] + times[kind] for kind in kinds)
    assert all(times[kind] > soonest for kind in set(kinds) - set(kept))
    if len(kept) < len(kinds):
        assert waits[kept[0]] + times[kept[0]] == soonest
