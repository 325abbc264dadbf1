"""How measured rates correct expected ones.

A real job differs from the table by a factor of its own, so the ratio measured/expected of one pair
tells something of all others of that model.

What other users measured of a model may shift a user's rates within bounds: make the model as a
whole faster or slower, change the ratio of two GPU types within a bound, and never reverse which of
two types is the faster one.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray
from slurm_hadar.profiles.measured import Measurement
from slurm_hadar.profiles.step_time import measured_sd

SURE_S = 20.0
"""A pair that was measured for less counts by the expected ratio to those that were measured longer
(to the mean of all where none was): a busy moment after a start must not change the order of the
types."""

Expected = Callable[[str, int, int | None], float]
"""(GPU type, GPUs, global batch or None) -> samples/s."""

_Ratios = Mapping[str, Mapping[int, float]]
"""GPU type -> GPUs -> logarithm of measured / expected."""
RATIO_MOST = 1.5
"""What other users measured changes the ratio of two rates of a model by this factor at most. In
the shipped table, half of the pairs of types of a model change their ratio by up to 1.45 between
the batches of one GPU: two honest trainings of one name may differ by that."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Logarithm of measured / expected at one (type, GPUs, batch), and the rate itself."""

    ratio: float
    rate: float
    weight: float


class Correction:
    """One model's measurements (of one user, or of several) against what was expected of them."""

    def __init__(
        self, measurements: Iterable[Measurement], expected: Expected, most: float = math.inf
    ) -> None:
        """``most``: a ratio further than this factor from 1 counts as this factor.

        Several users who measured the same pair count once each: the median of their rates.
        """
        grouped: dict[tuple[str, int, int], list[Measurement]] = {}
        for found in measurements:
            grouped.setdefault((found.gpu_type, found.gpus, found.batch), []).append(found)
        self.rows = grouped
        self._users: dict[str, set[int]] = {}
        for (kind, _, _), rows in grouped.items():
            self._users.setdefault(kind, set()).update(row.uid for row in rows)
        self._exact: dict[tuple[str, int, int], _Pair] = {}
        grounds: dict[tuple[str, int, int], float] = {}
        for (kind, gpus, batch), rows in grouped.items():
            rate = _median(row.samples_per_s for row in rows)
            ground = expected(kind, gpus, batch or None)
            bound = math.log(most) if most < math.inf else math.inf
            ratio = min(max(math.log(rate / ground), -bound), bound) if ground > 0 else 0.0
            if ground > 0:
                rate = ground * math.exp(ratio)
                grounds[kind, gpus, batch] = ground
            pair = _Pair(ratio, rate, sum(row.weight_s for row in rows))
            self._exact[kind, gpus, batch] = pair
        sure = [place for place in grounds if self._exact[place].weight >= SURE_S]
        self._sure = bool(sure)
        self._grounds = dict.fromkeys(sure or grounds)
        self._by_batch: dict[int | None, tuple[_Ratios, float]] = {}
        self._short = grounds.keys() - set(sure) if len(grounds) > 1 else set()
        for place in self._short:
            ratio = math.log(self.factor(*place))
            rate = grounds[place] * math.exp(ratio)
            self._exact[place] = replace(self._exact[place], ratio=ratio, rate=rate)

    def short_s(self, gpu_type: str, gpus: int, batch: int | None) -> float:
        """For how many seconds a pair was measured that counts by the expected ratio for that
        alone; 0 of any other. Without a batch: over all that are short, where all are."""
        places = [
            place
            for place in self._exact
            if place[:2] == (gpu_type, gpus) and batch in (None, place[2])
        ]
        if not all(place in self._short for place in places):
            return 0.0
        return sum(self._exact[place].weight for place in places)

    def measured(self, gpu_type: str, gpus: int, batch: int | None) -> float | None:
        """The measured samples/s itself, None where this was not measured.

        Without a batch: the mean over the batches that were measured, weighted by their time.
        """
        if batch is not None:
            pair = self._exact.get((gpu_type, gpus, batch))
            return pair.rate if pair else None
        pairs = [
            pair
            for (kind, number, _), pair in self._exact.items()
            if kind == gpu_type and number == gpus
        ]
        weight = sum(pair.weight for pair in pairs)
        return sum(pair.rate * pair.weight for pair in pairs) / weight if pairs else None

    def error(self, gpu_type: str, gpus: int, batch: int | None) -> float:
        """Standard deviation of the logarithm of :meth:`measured`; nan where that was not
        measured, or for so short that it counts by an expected ratio."""
        if self.short_s(gpu_type, gpus, batch):
            return math.nan
        weight = sum(
            pair.weight
            for (kind, number, size), pair in self._exact.items()
            if kind == gpu_type and number == gpus and batch in (None, size)
        )
        return float(measured_sd(np.array(weight))) if weight else math.nan

    def factor(self, gpu_type: str, gpus: int, batch: int | None) -> float:
        """By what to multiply an expected rate that was not measured.

        What was measured at that batch, else at any. On a type that was measured with other numbers
        of GPUs: the ratio between the neighbours (on logarithms), else the geometric mean over the
        types that were measured.
        """
        by_type, overall = self._ratios(batch)
        ratios = by_type.get(gpu_type) if self._sure else None
        return math.exp(_interpolated(ratios, gpus) if ratios else overall)

    def levels(self, batch: int | None) -> dict[str, float]:
        """By measured type the logarithm of measured / expected, the mean over numbers of GPUs."""
        return {kind: _mean(row.values()) for kind, row in self._ratios(batch)[0].items()}

    def types(self, but: int | None = None) -> frozenset[str]:
        """The GPU types that users other than ``but`` measured."""
        return frozenset(kind for kind, users in self._users.items() if len(users) > (but in users))

    def _ratios(self, batch: int | None) -> tuple[_Ratios, float]:
        """By type and GPUs, and the mean over the types."""
        if batch not in self._by_batch:
            self._by_batch[batch] = self._computed(batch)
        return self._by_batch[batch]

    def _computed(self, batch: int | None) -> tuple[_Ratios, float]:
        places = [place for place in self._grounds if batch is None or place[2] == batch]
        by_count: dict[str, dict[int, list[_Pair]]] = {}
        for place in places or self._grounds:
            kind, gpus, _ = place
            by_count.setdefault(kind, {}).setdefault(gpus, []).append(self._exact[place])
        ratios = {
            kind: {gpus: _mean(pair.ratio for pair in pairs) for gpus, pairs in row.items()}
            for kind, row in by_count.items()
        }
        return ratios, _mean(_mean(row.values()) for row in ratios.values())

    def __bool__(self) -> bool:
        return bool(self._exact)


def _interpolated(ratios: Mapping[int, float], gpus: int) -> float:
    below = max((n for n in ratios if n <= gpus), default=None)
    above = min((n for n in ratios if n >= gpus), default=None)
    if below is None or above is None or below == above:
        end = above if below is None else below
        return ratios[end] if end is not None else 0.0
    part = math.log(gpus / below) / math.log(above / below)
    return ratios[below] * (1 - part) + ratios[above] * part


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def _median(values: Iterable[float]) -> float:
    listed = sorted(values)
    middle = len(listed) // 2
    if len(listed) % 2:
        return listed[middle]
    return math.sqrt(listed[middle - 1]) * math.sqrt(listed[middle])


@dataclass(frozen=True, slots=True)
class Window:
    """Logarithms of a factor: what ``offset`` is taken from, and then the least and the most."""

    offset: float
    low: float
    high: float

    @classmethod
    def of(cls, levels: Mapping[str, float], own: Collection[str]) -> "Window":
        """``levels``: logarithm of measured / expected by the types that others measured, not
        empty; ``own``: the types that the user measured, whose rates stand."""
        half = math.log(RATIO_MOST) / 2
        if not own:
            centre = _mean_log(levels.values())
            return cls(0.0, centre - half, centre + half)
        # How fast the model is, the user's own runs say; others say what is between the types.
        offset = _mean_log([levels[kind] for kind in levels if kind in own] or levels.values())
        rest = [levels[kind] - offset for kind in levels if kind not in own]
        centre = min(max(_mean_log([*rest, *[0.0] * len(own)]), -half), half)
        return cls(offset, centre - half, centre + half)

    @property
    def middle(self) -> float:
        """The factor, no logarithm, in the middle of the window."""
        return math.exp((self.low + self.high) / 2)

    def clipped(self, deviation: float) -> float:
        """A logarithm of measured / expected, as far as it counts."""
        return min(max(deviation - self.offset, self.low), self.high)


@dataclass(frozen=True, slots=True)
class Point:
    """One type, for a number of GPUs: its rate without what others measured, the logarithm of the
    factor on it, and whether it ``stands``, as the user ran on it: its factor is 1."""

    alone: float
    deviation: float = 0.0
    stands: bool = False


def factors(points: Sequence[Point], window: Window, rate: FloatArray) -> FloatArray:
    """The factors (R,) on rates (R,) of all types for that number of GPUs. Where none of the
    measured types can run with it, the model as a whole is shifted."""
    found: FloatArray = np.full_like(rate, window.middle)
    able = rate > 0
    if points and able.any():
        at, by_log, stands = zip(*((p.alone, p.deviation, p.stands) for p in points), strict=True)
        found[able] = np.exp(
            shifts(np.log(at), np.array(by_log), np.array(stands), np.log(rate[able]))
        )
    return found


def shifts(
    alone: FloatArray, deviations: FloatArray, fixed: BoolArray, asked: FloatArray
) -> FloatArray:
    """Logarithms (N,) of the factors on rates with logarithms ``asked`` (N,).

    ``alone``, ``deviations``: (P,) logarithms of rates that others measured, as they are without
    them, and of the factors on them; ``fixed``: (P,) those that stand, with a factor of 1. What was
    not measured is shifted as its neighbours in speed are, so that a rate is a function of what it
    is without others that never falls.
    """
    order = np.lexsort((deviations, alone))
    at, stands = alone[order], fixed[order]
    pins = at[stands]
    fence = np.concatenate(([-np.inf], pins, [np.inf]))
    wanted = np.clip(
        at + deviations[order],
        fence[np.searchsorted(pins, at, "right")],
        fence[np.searchsorted(pins, at, "left") + 1],
    )
    rising = np.maximum.accumulate(wanted) + np.minimum.accumulate(wanted[::-1])[::-1]
    return np.interp(asked, at, rising / 2 - at)


def _mean_log(values: Collection[float]) -> float:
    return sum(values) / len(values)
