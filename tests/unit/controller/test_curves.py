"""Speeds of trainings on idle nodes by number of copies, and what a restart costs."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.idle_training.curves import ASSUMED, Curves


def test_before_anything_is_measured_copies_add_up_less_the_averaging():
    curve = Curves().curve("1/m", 10.0, 1, 3)
    assert curve.tolist() == pytest.approx([0.0, 10.0, 20 * ASSUMED, 30 * ASSUMED])


def test_below_the_least_number_it_does_not_run():
    assert Curves().curve("1/m", 10.0, 2, 3).tolist()[:2] == [0.0, 0.0]


def test_measured_ratios_hold_straight_lines_between_them():
    curves = Curves().measured("1/m", 1, 10.0, 10.0).measured("1/m", 3, 15.0, 30.0)
    assert curves.ratio("1/m", 5).tolist() == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.5, 0.5])
    assert curves.ratio("2/m", 2).tolist() == pytest.approx([1.0, 1.0, ASSUMED])


def test_a_second_measurement_moves_the_first_a_part_of_the_way():
    curves = Curves().measured("1/m", 2, 20.0, 20.0).measured("1/m", 2, 10.0, 20.0)
    assert 0.5 < curves.ratio("1/m", 2)[2] < 1.0


@pytest.mark.parametrize(("copies", "rate", "expected"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_what_says_nothing_changes_nothing(copies, rate, expected):
    assert Curves().measured("1/m", copies, rate, expected) == Curves()


def test_nonsense_is_bounded():
    assert Curves().measured("1/m", 2, 1e12, 1.0).ratio("1/m", 2)[2] == 100.0


@pytest.mark.parametrize(
    "stored",
    [None, 3, {}, {"ratios": 1}, {"ratios": {"a": 1}}, {"ratios": {"a": {"x": 1}}}],
)
def test_damaged_memory_is_forgotten(stored):
    assert Curves.read(stored) == Curves()


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 1e4), st.floats(0.1, 1e4)), max_size=8),
    st.integers(1, 12),
)
def test_curves_are_finite_and_survive_the_store(measured, most):
    curves = Curves()
    for copies, rate, expected in measured:
        curves = curves.measured("1/m", copies, rate, expected)
    again = Curves.read(json.loads(json.dumps(curves.plain())))
    curve = again.curve("1/m", 5.0, 1, most)
    assert np.array_equal(curve, curves.curve("1/m", 5.0, 1, most))
    assert curve[0] == 0 and np.isfinite(curve).all() and (curve[1:] > 0).all()
