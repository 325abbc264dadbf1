"""What other users report of a model shifts a user's rates within bounds, and no order of types."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.exchange.progress import FASTEST, SLOWEST
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.measured_correction import RATIO_MOST
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.profiles.user_corrections import OTHERS_MOST

TYPES = ("v100", "p100", "k80", "a100", "unheard")
COUNTS = (1, 2, 4)
GAMES, PHYS, CHEM = 1001, 1002, 1003
_CLOSE = 1 + 1e-9

Sample = tuple[int, str, int, int | None, float, float]
"""uid, type, GPUs, batch, samples/s, seconds."""


def samples(*uids: int, least: int) -> st.SearchStrategy[list[Sample]]:
    one = st.tuples(
        st.sampled_from(uids),
        st.sampled_from(TYPES),
        st.sampled_from(COUNTS),
        st.sampled_from([16, 64, 10**6, None]),
        st.floats(1.0, 1e5) | st.sampled_from([SLOWEST, FASTEST]),
        st.floats(1.0, 1000.0),
    )
    return st.lists(one, min_size=least, max_size=6)


def reported(model: str, *found: Sample) -> Rates:
    rates = Rates()
    for uid, kind, gpus, batch, speed, seconds in found:
        assert rates.record(RateSample(model, kind, gpus, batch, speed, seconds, uid=uid))
    return rates


def ratios(rates: FloatArray) -> FloatArray:
    """(N, N) of each two of N rates."""
    flat = rates[rates > 0]
    return flat[:, None] / flat[None, :]


@settings(deadline=None)
@given(
    model=st.sampled_from(["resnet18", "recommendation", "resnet50", "own"]),
    batch=st.sampled_from([None, 64, 256]),
    others=samples(GAMES, CHEM, least=1),
    own=samples(PHYS, least=0),
    spread=st.booleans(),
)
# A type that runs with some numbers of GPUs only.
@example("resnet50", 256, [(GAMES, "k80", 1, 16, 1.0, 1.0)], [], False)
def test_others_reverse_no_order_of_types_and_change_no_ratio_by_more_than_the_bound(
    model: str, batch: int | None, others: list[Sample], own: list[Sample], spread: bool
) -> None:
    def seen(rates: Rates) -> FloatArray:
        return rates.rates((PHYS, model, batch), TYPES, COUNTS, spread=spread)[0]

    alone, after = seen(reported(model, *own)), seen(reported(model, *others, *own))
    np.testing.assert_array_equal(after > 0, alone > 0)
    change = ratios(after) / ratios(alone)
    assert change.max() <= RATIO_MOST * _CLOSE and change.min() >= 1 / RATIO_MOST / _CLOSE
    for before, now in zip(alone.T, after.T, strict=True):
        order = np.argsort(before, kind="stable")
        assert (now[order][1:] * _CLOSE >= now[order][:-1]).all()
    if model != "own" and not own:
        shift = np.log(after[alone > 0] / alone[alone > 0])
        assert np.abs(shift).max() <= math.log(OTHERS_MOST * _CLOSE)
    if not spread:
        # The user's own runs count in full, and so do the types of them.
        for _, kind, *_ in own:
            at = TYPES.index(kind)
            np.testing.assert_array_equal(after[at], alone[at])


def test_the_order_of_types_on_several_nodes_stays_where_it_is_another_than_on_one() -> None:
    others = [(GAMES, "v100", 1, 16, 324.0, 20.0), (GAMES, "p100", 1, 16, 1.0, 20.0)]
    before, _ = Rates().rates((PHYS, "resnet18", None), TYPES, COUNTS, spread=True)
    after, _ = reported("resnet18", *others).rates(
        (PHYS, "resnet18", None), TYPES, COUNTS, spread=True
    )
    for alone, now in zip(before.T, after.T, strict=True):
        assert (np.diff(now[np.argsort(alone, kind="stable")]) >= -1e-6).all()


@settings(deadline=None)
@given(others=samples(GAMES, CHEM, least=1), own=samples(PHYS, least=0))
def test_a_rate_does_not_depend_on_what_else_is_asked_for(
    others: list[Sample], own: list[Sample]
) -> None:
    rates = reported("resnet18", *others, *own)
    whole, known = rates.rates((PHYS, "resnet18", None), TYPES, COUNTS)
    for r, kind in enumerate(TYPES):
        for c, gpus in enumerate(COUNTS):
            rate, one = rates.rates((PHYS, "resnet18", None), (kind,), (gpus,))
            assert rate[0, 0] == pytest.approx(whole[r, c], rel=1e-12) and one[0, 0] == known[r, c]


def test_one_loop_that_its_cpu_limits_makes_no_slow_type_worth_a_fast_one() -> None:
    """A stranger's loop reported as many samples/s on every type, and other users' trainings moved
    from the fast type to the slow one."""
    table, _ = Rates().rates((None, "resnet18", 64), TYPES, (1,))
    rates = reported(
        "resnet18", (GAMES, "v100", 1, None, 632.0, 94.0), (GAMES, "k80", 1, None, 639.0, 94.0)
    )
    after, _ = rates.rates((PHYS, "resnet18", 64), TYPES, (1,))
    least = table[0, 0] / table[2, 0] / RATIO_MOST
    assert after[0, 0] / after[2, 0] == pytest.approx(least) and least > 2
    # His own trainings are as he measured them.
    mine, _ = rates.rates((GAMES, "resnet18", None), TYPES, (1,))
    np.testing.assert_allclose(mine[[0, 2], 0], [632, 639])


@pytest.mark.parametrize("kind", ["v100", "k80"])
def test_reports_of_one_type_scale_the_model_as_a_whole(kind: str) -> None:
    table, _ = Rates().rates((None, "resnet18", 64), TYPES, COUNTS)
    speed = table[TYPES.index(kind), 0] * 3
    rates = reported("resnet18", (GAMES, kind, 1, 64, speed, 94.0))
    after, _ = rates.rates((PHYS, "resnet18", 64), TYPES, COUNTS)
    np.testing.assert_allclose(after, table * 3)


def test_of_a_model_in_no_table_others_say_how_fast_it_is_and_within_bounds_where() -> None:
    guess, _ = Rates().rates((None, "own", 64), ("v100", "k80"), (1,))
    speeds = guess[:, 0] * [20.0, 20.0 * 1.3]
    found = [(GAMES, "v100", 1, 64, speeds[0], 94.0), (GAMES, "k80", 1, 64, speeds[1], 94.0)]
    rates = reported("own", *found)
    after, known = rates.rates((PHYS, "own", 64), ("v100", "k80"), (1,))
    assert rates.anchored("own") and known.all()
    np.testing.assert_allclose(after[:, 0], speeds)
    said = rates.source((PHYS, "own", 64), ("v100", 1))
    assert said == "measured by other users (1 run, 94 s)"
    # One who runs on k80 himself, as fast, keeps what others found of the ratio.
    rates.record(RateSample("own", "k80", 1, 64, speeds[1], 94.0, uid=PHYS))
    mine, _ = rates.rates((PHYS, "own", 64), ("v100", "k80"), (1,))
    np.testing.assert_allclose(mine[:, 0], speeds)
    assert (
        rates.source((PHYS, "own", 64), ("k80", 1)) == "measured in runs of its owner (1 run, 94 s)"
    )


def test_the_words_say_whether_what_others_measured_counts_in_full() -> None:
    table, _ = Rates().rates((None, "resnet18", 64), TYPES, (1,))
    found = [(GAMES, "v100", 1, 64, 632.0, 94.0), (GAMES, "k80", 1, 64, 639.0, 94.0)]
    rates = reported("resnet18", *found)
    within = "table (Gavel), corrected within bounds by what other users measured (1 run, 94 s)"
    assert rates.source((PHYS, "resnet18", 64), ("v100", 1)) == within
    assert rates.source((PHYS, "resnet18", 64), ("k80", 1)) == within
    by_others = "table (Gavel), corrected by what other users measured"
    assert rates.source((PHYS, "resnet18", 64), ("p100", 1)) == by_others
    own = "measured in runs of its owner (1 run, 94 s)"
    assert rates.source((GAMES, "resnet18", 64), ("v100", 1)) == own
    agreed = reported("resnet18", (GAMES, "v100", 1, 64, table[0, 0] * 1.2, 94.0))
    said = agreed.source((PHYS, "resnet18", 64), ("v100", 1))
    assert said == "measured by other users (1 run, 94 s)"
    # Of a type that the user ran on himself, with another number of GPUs, the own runs count.
    rates.record(RateSample("resnet18", "v100", 2, 64, 3000.0, 94.0, uid=PHYS))
    said = rates.source((PHYS, "resnet18", 64), ("v100", 1))
    assert said == "table (Gavel), corrected by what its owner's runs measured"


def test_where_a_rate_comes_from_is_a_kind_and_whose_runs_corrected_it() -> None:
    def origin(rates: Rates, kind: str, job: str = "", model: str = "resnet18") -> tuple[str, str]:
        found = rates.origin((PHYS, model, 64), (kind, 1), job)
        return found.kind, found.corrected_by

    def run(rates: Rates, kind: str, name: str, seconds: float = 60.0) -> None:
        sample = RateSample("resnet18", kind, 1, 64, 900.0, seconds, uid=PHYS, run=name)
        assert rates.record(sample)

    rates = Rates()
    assert origin(rates, "v100") == ("table", "")
    # Neither the table nor anybody else knows the model, nor the table the type.
    assert origin(rates, "v100", model="own") == ("estimate", "")
    assert origin(rates, "h100") == ("estimate", "")
    run(rates, "v100", "7.0")
    assert origin(rates, "v100", "7") == ("this_job", "")
    assert origin(rates, "v100", "70") == origin(rates, "v100") == ("owner", "")
    assert origin(rates, "k80", "7") == ("table", "owner")
    assert origin(rates, "h100", "7") == ("estimate", "owner")
    said = rates.origin((PHYS, "resnet18", 64), ("v100", 1), "7").text
    assert said == "measured by this job (1 run, 60 s)"
    # Of an attempt after a requeue, and of another job of his.
    for name in ("7.1", "8.0"):
        run(rates, "v100", name)
    said = rates.origin((PHYS, "resnet18", 64), ("v100", 1), "8").text
    assert said == "measured in runs of its owner, this job's among them (3 runs, 180 s)"
    said = rates.origin((PHYS, "resnet18", 64), ("v100", 1), "7").text
    assert said == "measured in runs of its owner (3 runs, 180 s)"
    # For too short a time the ratio of the table counts.
    run(rates, "k80", "8.1", 10.0)
    assert origin(rates, "k80", "8") == ("table", "owner")
    others = reported("resnet18", (GAMES, "v100", 1, 64, 632.0, 94.0))
    others.record(RateSample("resnet18", "k80", 1, 64, 639.0, 94.0, uid=GAMES))
    assert origin(others, "v100") == origin(others, "p100") == ("table", "other_users")
    agreed = reported("own", (GAMES, "v100", 1, 64, 632.0, 94.0))
    assert origin(agreed, "v100", model="own") == ("other_users", "")
