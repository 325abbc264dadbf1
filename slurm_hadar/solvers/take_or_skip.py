"""Take or skip along a queue: a dynamic programme with merged states and a bounded beam."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Searchable(Protocol):
    """A state of the search. Two states with equal keys have the same future."""

    def key(self) -> Hashable:
        """What the rest of the search depends on."""
        ...


S = TypeVar("S", bound=Searchable)
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Take(Generic[C]):
    """One option of an item: its value, and a description for the caller."""

    value: float
    choice: C


@dataclass(frozen=True, slots=True)
class Result(Generic[S, C]):
    """The best sum found, its choice for each item, and the last state."""

    value: float
    chosen: dict[int, C]
    state: S


@dataclass(frozen=True, slots=True)
class Search(Generic[S, C]):
    """What is searched.

    ``options(state, item)``: best first; just the first one if no other makes sense. ``apply(state,
    item, choice, in_place)``: the next state; may change the state itself if ``in_place``.
    ``estimate(state, position)``: an optimistic estimate of what the items from ``position`` on can
    still add; it only ranks states. ``full(state)``: whether nothing more can be taken.
    """

    options: Callable[[S, int], Sequence[Take[C]]]
    apply: Callable[[S, int, C, bool], S]
    estimate: Callable[[S, int], float]
    full: Callable[[S], bool]


_Path = tuple[int, object, object] | None


def take_or_skip(start: S, queue: Sequence[int], search: Search[S, C], width: int) -> Result[S, C]:
    """Choose for each item of the queue one of its options or none, for the largest sum.

    States with equal keys are merged and the best ``width`` states are kept: if the width never
    cuts, the sum is the maximum. The work is at most ``width`` times the length of the queue. With
    width 1 the best option is always taken.
    """
    if width <= 1:
        return _greedy(start, queue, search)
    beam: list[tuple[float, S, _Path]] = [(0.0, start, None)]
    closed = [search.full(start)]
    for position, item in enumerate(queue):
        if all(closed):
            break
        ways = [
            () if shut else search.options(state, item)
            for (_, state, _), shut in zip(beam, closed, strict=True)
        ]
        if not any(ways):
            continue
        merged: dict[Hashable, tuple[float, S, _Path]] = {}
        for (value, state, path), found in zip(beam, ways, strict=True):
            grown = [
                (value + take.value, search.apply(state, item, take.choice, False), take.choice)
                for take in found
            ]
            steps: list[tuple[float, S, _Path]] = [
                (total, after, (item, choice, path)) for total, after, choice in grown
            ]
            steps.append((value, state, path))
            for step in steps:
                key = step[1].key()
                if key not in merged or step[0] > merged[key][0]:
                    merged[key] = step
        if len(merged) > width and position + 1 < len(queue):
            ranked = [
                (step[0] + search.estimate(step[1], position + 1), step) for step in merged.values()
            ]
            ranked.sort(key=lambda entry: -entry[0])
            beam = [step for _, step in ranked[:width]]
        else:
            beam = list(merged.values())
        closed = [search.full(state) for _, state, _ in beam]
    value, state, path = max(beam, key=lambda entry: entry[0])
    chosen: dict[int, C] = {}
    while path is not None:
        item, choice, path = path  # type: ignore[assignment]
        chosen[item] = choice  # type: ignore[assignment]
    return Result(value, dict(reversed(chosen.items())), state)


def _greedy(state: S, queue: Sequence[int], search: Search[S, C]) -> Result[S, C]:
    value = 0.0
    chosen: dict[int, C] = {}
    if search.full(state):
        return Result(value, chosen, state)
    for item in queue:
        found = search.options(state, item)
        if found:
            value += found[0].value
            chosen[item] = found[0].choice
            state = search.apply(state, item, found[0].choice, True)
            if search.full(state):
                break
    return Result(value, chosen, state)
