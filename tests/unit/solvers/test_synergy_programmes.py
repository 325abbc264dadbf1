"""Synergy-OPT's two programmes against all choices of small instances."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.solvers.synergy_programmes import choose, places


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 9)),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 9),
    st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_choices_fit_and_the_optimum_bounds_them(
    jobs: list[list[tuple[int, int, int]]], cpus: int, mem: int
) -> None:
    value = [np.array([o[2] for o in job], float) for job in jobs]
    use = [np.array([o[:2] for o in job], float) for job in jobs]
    capacity = np.array([cpus, mem], float)
    found = choose(value, use, capacity)
    first = sum(one[0] for one in use)
    if (first > capacity).any():
        assert not found.optimal and not found.option.any()
        return

    def worth(option: tuple[int, ...]) -> tuple[bool, float]:
        used = sum(one[at] for one, at in zip(use, option, strict=True))
        total = float(sum(one[at] for one, at in zip(value, option, strict=True)))
        return bool((used <= capacity + 1e-6).all()), total

    fits, total = worth(tuple(found.option.tolist()))
    assert fits and found.optimal
    best = max(t for ok, t in map(worth, product(*(range(len(v)) for v in value))) if ok)
    assert total <= best + 1e-6 <= found.value + 2e-6
    # What a cut job loses is less than what two jobs can gain.
    most = sorted((float(v.max() - v[0]) for v in value), reverse=True)
    assert total >= found.value - sum(most[:2]) - 1e-6


def test_places_keep_jobs_where_they_are() -> None:
    use = np.array([[1.0, 3.0], [1.0, 3.0], [2.0, 2.0]])
    capacity = np.array([[2.0, 4.0], [2.0, 4.0], [2.0, 4.0]])
    everywhere = np.ones((3, 3), bool)
    assert places(use, capacity, everywhere, np.array([2, 1, 0])).tolist() == [2, 1, 0]
    closed = everywhere.copy()
    closed[0, 2] = False
    assert places(use, capacity, closed, np.array([2, 1, 0]))[0] in (0, 1)


def test_without_a_node_there_is_no_place() -> None:
    none = places(np.ones((2, 1)), np.ones((3, 1)), np.zeros((2, 3), bool), np.array([-1, -1]))
    assert none.tolist() == [-1, -1]
    assert choose([], [], np.array([1.0])).optimal
