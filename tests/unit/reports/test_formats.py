"""Figures in words, whatever the figure."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.reports import formats
from slurm_hadar.reports.formats import ABSENT

LONG = "more than 1,000 years"
FIGURES = (formats.duration, formats.moment, formats.clock, formats.percent, formats.rate)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, ABSENT), (0, "0 s"), (59.4, "59 s"), (412, "6 min 52 s"), (11_100, "3 h 05 min"),
        (187_200, "2 d 04 h"), (1e10, "115740 d 17 h"), (1e11, LONG), (1e300, LONG), (inf, LONG),
        (nan, ABSENT), (-inf, ABSENT), (-3, "-3 s"), (5e-324, "0 s"),
    ],
)  # fmt: skip
def test_times(seconds, words):
    assert formats.duration(seconds) == words


@pytest.mark.parametrize("epoch_s", [1e12, 1e300, inf])
def test_a_moment_that_no_calendar_has(epoch_s):
    assert formats.moment(epoch_s) == "after the year 9999"
    assert formats.moment(-epoch_s) == ABSENT
    assert formats.moment(1.8e9).startswith("2027-01-15T")


@pytest.mark.parametrize("figure", [formats.percent, formats.rate, formats.clock])
def test_what_is_no_number_is_absent(figure):
    assert {figure(inf), figure(nan), figure(-inf)} == {ABSENT}


@given(st.floats(), st.sampled_from(FIGURES))
def test_any_figure_has_words(value, figure):
    found = figure(value)
    assert found and found.isprintable() and len(found) < 500
