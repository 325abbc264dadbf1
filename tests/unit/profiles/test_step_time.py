"""The model of a step's time finds a known truth, and keeps to its form whatever it is given."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.profiles.step_time import StepCells, StepTimes, fit_step_times

PLACES = ((1, 1, 1.0), (2, 1, 1.0), (4, 1, 1.0), (8, 1, 1.0), (8, 2, 1.0), (16, 2, 1.0),
          (1, 1, 0.5), (4, 1, 2.0))  # fmt: skip
"""GPUs, nodes, local batch."""


def cells(places, kind: int = 0, jobs: int = 1) -> StepCells:
    gpus, nodes, local = (
        np.tile(np.array(column), (jobs, 1)) for column in zip(*places, strict=True)
    )
    return StepCells(np.full(gpus.shape, kind), gpus, nodes, local)


def truth(gpus, nodes, local, grad=2.0, phi=0.3, one=(0.2, 0.02), apart=(0.3, 0.03), gamma=2.0):
    """The paper's form by hand, seconds."""
    compute = grad * (phi + (1 - phi) * local)
    sync = (gpus > 1) * (one[0] + one[1] * np.maximum(gpus - 2, 0))
    sync = sync + ((gpus > 1) & (nodes > 1)) * (apart[0] + apart[1] * np.maximum(gpus - 2, 0))
    return (compute**gamma + sync**gamma) ** (1 / gamma)


def measured(places, kind: int = 0, sd: float = 0.01, **how: Any) -> StepTimes:
    at = cells(places, kind)
    return StepTimes(at, truth(at.gpus, at.nodes, at.local, **how), np.full(at.gpus.shape, sd))


def test_it_recovers_a_known_truth_and_says_how_sure_it_is() -> None:
    # Expected 3 times too fast.
    found = fit_step_times(np.array([[0.7]]), measured(PLACES))
    seconds, sd = found.predict(cells([*PLACES, (32, 4, 1.0)]))
    right = truth(*(np.array(column) for column in zip(*PLACES, (32, 4, 1.0), strict=True)))
    assert seconds[0, :-1] == pytest.approx(right[:-1], rel=0.04)
    assert seconds[0, -1] == pytest.approx(right[-1], rel=0.15)
    assert sd[0, :4].max() < 0.05 and sd[0, :-1].max() < 0.12 < sd[0, -1]


def test_nothing_measured_means_what_was_expected_and_nearly_linear_scaling() -> None:
    nothing = StepTimes(cells([(1, 1, 1.0)]), np.array([[np.nan]]), np.array([[np.inf]]))
    found = fit_step_times(np.array([[0.5, np.nan, 2.0]]), nothing)
    for kind, expected in ((0, 0.5), (1, 1.0), (2, 2.0)):
        seconds, sd = found.predict(cells([(1, 1, 1.0), (8, 1, 1.0)], kind))
        assert seconds[0, 0] == pytest.approx(expected)
        assert expected < seconds[0, 1] < 1.1 * expected
        assert (sd > 0.5).all()


def test_a_place_is_predicted_alike_alone_and_among_others() -> None:
    found = fit_step_times(np.array([[0.7]]), measured(PLACES[:3]))
    together = found.predict(cells(PLACES))
    for at, place in enumerate(PLACES):
        alone = found.predict(cells([place]))
        assert [float(one[0, 0]) for one in alone] == pytest.approx(
            [float(one[0, at]) for one in together], rel=1e-12
        )


def test_one_type_tells_of_the_others() -> None:
    # Expected 1 s on the first type and 2 s on the second; it takes 2 s on the first, and scales
    # badly.
    on_first = measured([(1, 1, 1.0), (2, 1, 1.0), (4, 1, 1.0)], one=(2.0, 0.2), gamma=1.0)
    found = fit_step_times(np.array([[1.0, 2.0]]), on_first)
    one, sd_one = found.predict(cells([(1, 1, 1.0)], kind=1))
    four, _ = found.predict(cells([(4, 1, 1.0)], kind=1))
    assert one[0, 0] == pytest.approx(4.0, rel=0.2)
    assert four[0, 0] - one[0, 0] > 1.0
    # A look at the second type makes that sure.
    both = StepTimes(
        StepCells(np.array([[0, 1]]), np.array([[1, 1]]), np.array([[1, 1]]), np.ones((1, 2))),
        np.array([[2.0, 3.0]]), np.full((1, 2), 0.01),
    )  # fmt: skip
    seconds, sd = fit_step_times(np.array([[1.0, 2.0]]), both).predict(cells([(1, 1, 1.0)], kind=1))
    assert seconds[0, 0] == pytest.approx(3.0, rel=0.03) and sd[0, 0] < sd_one[0, 0] / 3


def test_what_was_seen_makes_what_was_not_surer() -> None:
    def sd(number: int) -> float:
        found = fit_step_times(np.array([[1.0]]), measured(PLACES[:number]))
        return float(found.predict(cells([(16, 2, 1.0)]))[1][0, 0])

    # Three places on one node tell nothing of two nodes.
    assert sd(len(PLACES)) < sd(3) / 3 and sd(3) > 0.15


def test_jobs_do_not_touch_each_other_and_a_warm_start_ends_at_the_same_place() -> None:
    one, two = measured(PLACES), measured(PLACES, grad=0.1, one=(0.4, 0.01))
    expected = np.array([[1.0], [1.0]])
    both = StepTimes(
        cells(PLACES, jobs=2), np.vstack([one.step_s, two.step_s]), np.vstack([one.sd, two.sd])
    )
    together = fit_step_times(expected, both)
    at = cells(PLACES)
    for row, alone in enumerate((one, two)):
        single = fit_step_times(expected[:1], alone).predict(at)[0]
        assert together.take(np.array([row])).predict(at)[0] == pytest.approx(single, rel=1e-6)
    again = fit_step_times(expected, both, start=together.parameters[::-1].copy())
    wide = cells(PLACES, jobs=2)
    assert again.predict(wide)[0] == pytest.approx(together.predict(wide)[0], rel=0.03)
    empty = fit_step_times(np.ones((0, 1)), StepTimes(cells(PLACES, jobs=0), *np.ones((2, 0, 8))))
    assert empty.predict(cells(PLACES, jobs=0))[0].shape == (0, 8)


WILD = st.one_of(
    st.floats(1e-9, 1e9), st.sampled_from([0.0, -1.0, np.nan, np.inf, -np.inf, 1e300, 5e-324])
)


@st.composite
def reports(draw: st.DrawFn) -> tuple[np.ndarray, StepTimes]:
    jobs, number, kinds = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 3))

    def block(of: st.SearchStrategy[float], columns: int = number) -> np.ndarray:
        some = draw(st.lists(of, min_size=jobs * columns, max_size=jobs * columns))
        return np.array(some).reshape(jobs, columns)

    at = StepCells(
        block(st.integers(-1, kinds)), block(st.integers(-1, 4096)), block(st.integers(-1, 64)),
        block(st.one_of(WILD, st.just(1.0))).astype(float),
    )  # fmt: skip
    seen = StepTimes(at, block(WILD).astype(float), block(WILD).astype(float))
    return block(WILD, kinds).astype(float), seen


@given(reports())
@settings(max_examples=60, deadline=None)
def test_whatever_is_reported_it_never_raises_and_stays_monotone(case) -> None:
    expected, seen = case
    with np.errstate(all="raise", under="ignore"):
        found = fit_step_times(expected, seen)
    gpus = np.array([[1, 2, 3, 4, 8, 16, 64, 1024]])
    ones, jobs = np.ones_like(gpus), len(expected)
    for kind in range(expected.shape[1]):

        def seconds(nodes=ones, local=np.ones((1, 1)), n=gpus, kind=kind):  # noqa: B008
            time, sd = found.predict(StepCells(np.full_like(n, kind), n, nodes, local))
            assert time.shape == (jobs, n.shape[1])
            assert np.isfinite(time).all() and (time > 0).all() and np.isfinite(sd).all()
            return time

        one = seconds()
        # More GPUs make no step shorter, more nodes neither; a larger batch costs time, and gives
        # no fewer samples a second.
        assert (np.diff(one, axis=1) >= -1e-9 * one[:, 1:]).all()
        assert (seconds(nodes=np.minimum(gpus, 4)) >= one * (1 - 1e-9)).all()
        twice = seconds(local=np.full((1, 1), 2.0))
        assert (twice >= one * (1 - 1e-9)).all() and (twice <= 2 * one * (1 + 1e-9)).all()


def test_one_false_report_among_true_ones_does_not_rule() -> None:
    seen = measured(PLACES)
    false = seen.step_s.copy()
    false[0, 2] = np.nan
    assert fit_step_times(np.array([[1.0]]), StepTimes(seen.cells, false, seen.sd)).predict(
        cells(PLACES)
    )[0][0, 2] == pytest.approx(seen.step_s[0, 2], rel=0.1)
