"""Speeds that are inferred from what a user's own runs measured of a model that no table knows."""

import math
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.exchange.progress import FASTEST, SLOWEST
from slurm_hadar.profiles import fitted_rates
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.profiles.step_time import StepTimeFit, StepTimes, fit_step_times

OWNER, OTHER = 1001, 1002
TYPES, COUNTS = ("k80", "v100", "a100"), (1, 2, 4, 8)
BATCH = 64


def amdahl(gpus: int, alone: float) -> float:
    """Samples/s of a job of which 35% of a step does not shrink with its part of the batch."""
    return alone / (0.35 + 0.65 / gpus)


def measured(
    *places: tuple[str, int, float], batch: int = BATCH, uid: int = OWNER, seconds: float = 600.0
) -> Rates:
    rates = Rates()
    for kind, gpus, rate in places:
        assert rates.record(RateSample("newt", kind, gpus, batch, rate, seconds, uid=uid))
    return rates


def off(rates: Rates, kind: str, gpus: int, truth: float) -> tuple[float, float]:
    """Errors of the logarithm: inferred, and estimated as where nothing is inferred."""
    now = rates.rates((OWNER, "newt", BATCH), (kind,), (gpus,))[0][0, 0]
    before = rates.own_rates_for([(OWNER, "newt", BATCH)], (kind,), (gpus,))[0][0, 0, 0]
    return abs(math.log(now / truth)), abs(math.log(before / truth))


def test_untried_counts_and_types_are_nearer_to_the_truth_than_the_estimate() -> None:
    rates = measured(("v100", 1, 40.0), ("v100", 2, amdahl(2, 40.0)))
    for gpus in (4, 8):
        inferred, estimated = off(rates, "v100", gpus, amdahl(gpus, 40.0))
        assert inferred < 0.15 < estimated, gpus
    rates.record(RateSample("newt", "k80", 1, BATCH, 5.0, 600.0, uid=OWNER))
    for gpus in (2, 4, 8):
        inferred, estimated = off(rates, "k80", gpus, amdahl(gpus, 5.0))
        assert inferred < 0.15 and inferred < estimated, gpus
    rate, known = rates.rates((OWNER, "newt", BATCH), TYPES, COUNTS)
    np.testing.assert_allclose(rate[1, :2], [40.0, amdahl(2, 40.0)])
    assert known.sum() == 3


def test_another_batch_is_inferred_too() -> None:
    """A step that a larger batch hardly makes longer gives more samples/s."""
    rates = measured(("v100", 1, 40.0))
    rates.record(RateSample("newt", "v100", 1, 4 * BATCH, 80.0, 600.0, uid=OWNER))
    between = rates.rates((OWNER, "newt", 2 * BATCH), ("v100",), (1,))[0][0, 0]
    assert 45.0 < between < 75.0
    text = rates.source((OWNER, "newt", 2 * BATCH), ("v100", 1))
    assert "1 x v100 with batch 64 and 1 x v100 with batch 256" in text


def test_a_job_without_a_declared_batch_and_a_model_of_a_table_keep_the_estimate() -> None:
    rates = measured(("v100", 1, 40.0))
    for model, batch in (("newt", None), ("resnet50", BATCH)):
        rates.record(RateSample(model, "v100", 1, batch, 40.0, 600.0, uid=OWNER))
        asked = [(OWNER, model, batch)]
        found = rates.rates_for(asked, TYPES, COUNTS)[0]
        np.testing.assert_array_equal(found, rates.own_rates_for(asked, TYPES, COUNTS)[0])
        error = rates.errors_for(asked, TYPES, COUNTS)
        assert np.isfinite(error[0, 1, 0]) and np.isfinite(error).sum() == 1


def test_a_moment_after_a_start_infers_nothing() -> None:
    rates = measured(("v100", 1, 40.0), seconds=5.0)
    asked = [(OWNER, "newt", BATCH)]
    assert np.isfinite(rates.errors_for(asked, TYPES, COUNTS)).sum() == 1
    found = rates.rates_for(asked, TYPES, COUNTS)[0]
    np.testing.assert_array_equal(found, rates.own_rates_for(asked, TYPES, COUNTS)[0])


def test_errors_are_those_of_the_measurement_or_of_the_fit_or_not_known() -> None:
    rates = measured(("v100", 1, 40.0), ("v100", 2, 70.0))
    asked = [(OWNER, "newt", BATCH), (OTHER, "newt", BATCH), (OWNER, "unseen", BATCH)]
    error = rates.errors_for(asked, TYPES, COUNTS)
    assert (error[0, 1, :2] < 0.05).all()
    assert (error[0, 1, 2:] > 0.2).all() and error[0, 1, 3] >= error[0, 1, 2]
    assert error[0, 0, 2] > error[0, 1, 2]
    assert np.isnan(error[1:]).all()


def test_a_new_measurement_changes_what_is_inferred() -> None:
    rates = measured(("v100", 1, 40.0))
    before = rates.rates((OWNER, "newt", BATCH), TYPES, COUNTS)[0]
    rates.record(RateSample("newt", "v100", 2, BATCH, 42.0, 600.0, uid=OWNER))
    after = rates.rates((OWNER, "newt", BATCH), TYPES, COUNTS)[0]
    assert after[1, 2] < 0.8 * before[1, 2] and after[0, 2] < before[0, 2]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(TYPES),
            st.sampled_from(COUNTS),
            st.sampled_from((16, 64, 512)),
            st.floats(1e-3, 1e6),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_other_users_report_does_not_enter_the_fit(
    reports: list[tuple[str, int, int, float]],
) -> None:
    """Of the types that the owner ran on. Others change those of types that the owner never had,
    within bounds: see ``test_others_reports.py``."""
    alone = measured(("v100", 1, 40.0), ("a100", 2, 90.0))
    both = measured(("v100", 1, 40.0), ("a100", 2, 90.0))
    for kind, gpus, batch, rate in reports:
        both.record(RateSample("newt", kind, gpus, batch, rate, 600.0, uid=OTHER))
    asked = [(OWNER, "newt", BATCH)]
    for kind in ("v100", "a100"):
        np.testing.assert_allclose(
            both.rates_for(asked, (kind,), COUNTS)[0], alone.rates_for(asked, (kind,), COUNTS)[0]
        )
    shift = both.rates_for(asked, ("k80",), COUNTS)[0] / alone.rates_for(asked, ("k80",), COUNTS)[0]
    assert (shift > 1 / 1.51).all() and (shift < 1.51).all()
    np.testing.assert_array_equal(
        both.own_rates_for(asked, TYPES, COUNTS)[0], alone.own_rates_for(asked, TYPES, COUNTS)[0]
    )


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(TYPES),
            st.integers(1, 10**6),
            st.integers(0, 2**53),
            st.floats() | st.sampled_from([SLOWEST, FASTEST]),
            st.floats() | st.floats(20.0, 1e9),
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from((1, 64, 2**53)),
)
@example([("v100", 10**6 - 1, 2**53 - 1, FASTEST, 1e9), ("k80", 1, 1, SLOWEST, 20.0)], 64)
@example([("v100", 1, 1, SLOWEST, 1e9), ("v100", 2, 1, FASTEST, 1e9)], 2**53)
def test_whatever_is_reported_gives_finite_positive_speeds(
    reports: list[tuple[str, int, int, float, float]], batch: int
) -> None:
    rates = Rates()
    for kind, gpus, size, rate, seconds in reports:
        rates.record(RateSample("newt", kind, gpus, size, rate, seconds, uid=OWNER))
    found = rates.rates((OWNER, "newt", batch), TYPES, COUNTS)[0]
    assert (found > 0).all() and np.isfinite(found).all()
    error = rates.errors_for([(OWNER, "newt", batch)], TYPES, COUNTS)
    assert not (error <= 0).any() and not np.isinf(error).any()
    for kind in TYPES:
        assert rates.source((OWNER, "newt", batch), (kind, 4))


def test_a_rate_does_not_depend_on_what_else_is_asked_for() -> None:
    rates = measured(("v100", 1, 40.0), ("v100", 2, 60.0), ("k80", 1, 9.0))
    rates.record(RateSample("other", "v100", 8, 16, 1e4, 60.0, uid=OWNER))
    asked = [(OWNER, "other", 16), (OWNER, "newt", BATCH)]
    whole = rates.rates_for(asked, TYPES, COUNTS)[0][1]
    for r, kind in enumerate(TYPES):
        for c, gpus in enumerate(COUNTS):
            fresh = measured(("v100", 1, 40.0), ("v100", 2, 60.0), ("k80", 1, 9.0))
            one = fresh.rates((OWNER, "newt", BATCH), (kind,), (gpus,))[0][0, 0]
            assert one == pytest.approx(whole[r, c], rel=0.01)


def test_thousands_of_models_are_fitted_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(expected: FloatArray, seen: StepTimes, sd: float) -> StepTimeFit:
        calls.append(len(expected))
        return fit_step_times(expected, seen, sd)

    monkeypatch.setattr(fitted_rates, "fit_step_times", counted)
    rates, number = Rates(), 3000
    for job in range(number):
        rates.record(RateSample(f"m{job}", "v100", 1 + job % 2, BATCH, 40.0, 60.0, uid=job % 50))
    asked = [(job % 50, f"m{job}", BATCH) for job in range(number)]
    start = time.process_time()
    rates.rates_for(asked, TYPES, COUNTS)
    print(f"{number} fits and their blocks: {time.process_time() - start:.2f} s")
    rates.errors_for(asked, TYPES, COUNTS)
    assert calls == [number]
    rates.record(RateSample("m7", "v100", 4, BATCH, 90.0, 60.0, uid=7))
    rates.rates_for(asked, TYPES, COUNTS)
    assert calls == [number, 1]


def test_the_words_name_what_was_measured() -> None:
    rates = measured(("v100", 1, 40.0), ("v100", 2, 60.0), ("k80", 1, 9.0))
    found = rates.origin((OWNER, "newt", BATCH), ("a100", 4), "7")
    assert (found.kind, found.corrected_by) == ("inferred", "")
    assert found.text.startswith(
        "inferred from 1 x k80, 1 x v100 and 2 x v100 that its owner's runs measured, within about "
    )
    assert rates.origin((OWNER, "newt", BATCH), ("v100", 2), "7").kind == "owner"
    # Another user is estimated from what this one measured.
    assert rates.origin((OTHER, "newt", BATCH), ("a100", 4)).kind == "estimate"
    for kind, rate in (("a100", 4000.0), ("v100", 40.0)):
        rates.record(RateSample("newt", kind, 1, BATCH, rate, 600.0, uid=OTHER))
    found = rates.origin((OWNER, "newt", BATCH), ("a100", 4), "7")
    assert (found.kind, found.corrected_by) == ("inferred", "other_users")
    assert found.text.endswith("corrected within bounds by what other users measured")
