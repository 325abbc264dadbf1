"""The growth of a gradient noise scale, fitted to reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.profiles.noise_growth import fit_noise


def test_a_known_growth_is_found_and_carried_on() -> None:
    done = np.array([[0.0, 1e4, 1e5, 1e6, 3e6]])
    found = fit_noise(done, 100.0 * (1 + done / 1e4) ** 0.8, np.array([1e4]))
    assert found.growth[0] == pytest.approx(0.8, abs=0.05)
    assert found.at(np.array([1e7]))[0] == pytest.approx(100 * 1001**0.8, rel=0.2)
    assert found.at(np.array([[0.0, 1e4]])).shape == (1, 2)


def test_one_report_is_taken_for_constant_and_none_is_not_known() -> None:
    found = fit_noise(np.array([[5e5], [0.0]]), np.array([[300.0], [np.nan]]), np.array([1e4, 1e4]))
    assert found.at(np.array([1e7, 1e7]))[0] == pytest.approx(300.0)
    assert np.isnan(found.at(np.zeros(2))[1])


def test_a_falling_noise_scale_is_taken_for_constant() -> None:
    done = np.array([[0.0, 1e5, 1e6]])
    found = fit_noise(done, np.array([[400.0, 200.0, 100.0]]), np.array([1e4]))
    assert found.growth[0] == 0.0 and found.at(np.array([0.0]))[0] == pytest.approx(200.0)


WILD = st.one_of(st.floats(0, 1e12), st.sampled_from([np.nan, np.inf, -1.0, 1e300, 5e-324]))


@given(st.lists(st.tuples(WILD, WILD), min_size=1, max_size=8), WILD)
@settings(max_examples=80, deadline=None)
def test_it_never_raises_and_never_falls(reports, unit) -> None:
    done, noise = (np.array([column]) for column in zip(*reports, strict=True))
    with np.errstate(all="raise", under="ignore"):
        grown = fit_noise(done, noise, np.array([unit])).at(np.array([[0.0, 1.0, 1e6, 1e15]]))
    if np.isnan(grown).any():
        assert np.isnan(grown).all()
    else:
        assert (np.diff(grown) >= -1e-12 * grown[:, 1:]).all() and np.isfinite(grown).all()
