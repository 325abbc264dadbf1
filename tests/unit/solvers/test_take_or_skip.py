"""Take or skip beside trying everything: a knapsack of gangs on machines."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.solvers.take_or_skip import Result, Search, Take, take_or_skip

_NEVER_CUTS = 10_000

Item = tuple[tuple[int, int, float], ...]
"""Ways to take an item: (machine, size, value)."""


@dataclass(frozen=True)
class _Machines:
    free: tuple[int, ...]

    def key(self) -> Hashable:
        return self.free

    def less(self, machine: int, size: int) -> "_Machines":
        free = list(self.free)
        free[machine] -= size
        return _Machines(tuple(free))


def _solve(
    items: Sequence[Item], free: tuple[int, ...], width: int, promise: float = 0.0
) -> Result[_Machines, tuple[int, int]]:
    def options(state: _Machines, item: int) -> list[Take[tuple[int, int]]]:
        ways = [way for way in items[item] if state.free[way[0]] >= way[1]]
        return [Take(value, (machine, size)) for machine, size, value in ways]

    def apply(state: _Machines, item: int, choice: tuple[int, int], alone: bool) -> _Machines:
        return state.less(*choice)

    return take_or_skip(
        _Machines(free),
        range(len(items)),
        Search(
            options,
            apply,
            estimate=lambda state, position: promise * sum(state.free),
            full=lambda state: not any(state.free),
        ),
        width,
    )


def _all(items: Sequence[Item], free: tuple[int, ...]) -> float:
    best = 0.0
    for choice in product(*[(None, *ways) for ways in items]):
        left, value = list(free), 0.0
        for way in choice:
            if way is not None:
                left[way[0]] -= way[1]
                value += way[2]
        if min(left) >= 0:
            best = max(best, value)
    return best


_WAY = st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(0, 9).map(float))
_ITEMS = st.lists(st.lists(_WAY, max_size=3).map(tuple), max_size=5)
_FREE = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(_ITEMS, _FREE)
@settings(max_examples=80, deadline=None)
def test_the_best_there_is_when_nothing_is_cut(items: list[Item], free: tuple[int, int]) -> None:
    assert _solve(items, free, _NEVER_CUTS).value == pytest.approx(_all(items, free))


@given(_ITEMS, _FREE, st.integers(1, 4), st.floats(0.0, 3.0))
@settings(max_examples=80, deadline=None)
def test_what_is_said_is_what_was_done(
    items: list[Item], free: tuple[int, int], width: int, promise: float
) -> None:
    found = _solve(items, free, width, promise)
    state, value = _Machines(free), 0.0
    for item, (machine, size) in found.chosen.items():
        assert any(way[:2] == (machine, size) for way in items[item])
        state = state.less(machine, size)
        value += max(way[2] for way in items[item] if way[:2] == (machine, size))
    assert state == found.state
    assert min(state.free) >= 0
    assert found.value <= value + 1e-9
    assert found.value <= _all(items, free) + 1e-9


def test_width_one_takes_the_first_way_of_each() -> None:
    items: list[Item] = [((0, 1, 1.0), (1, 2, 9.0)), ((0, 1, 5.0),), ((1, 2, 7.0),)]
    greedy = _solve(items, (1, 2), 1)
    assert greedy.chosen == {0: (0, 1), 2: (1, 2)}
    assert greedy.value == 8.0
    assert _solve(items, (1, 2), _NEVER_CUTS).value == 14.0


def test_promise_decides_what_a_narrow_beam_keeps() -> None:
    # The first item is worth little and takes the whole machine.
    items: list[Item] = [((0, 2, 1.0), (0, 1, 0.9)), ((0, 1, 1.0),), ((0, 2, 5.0),)]
    assert _solve(items, (2,), 2, promise=10.0).value == 5.0
    assert _solve(items, (2,), 2, promise=0.0).value < 5.0


def test_nothing_to_take() -> None:
    for width in (1, 4):
        assert _solve([((0, 1, 1.0),)], (0,), width).chosen == {}
        assert _solve([], (3,), width).value == 0.0
