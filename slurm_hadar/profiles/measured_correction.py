"""How measured rates correct expected ones.

A real job differs from the table by a factor of its own, so the ratio measured/expected of one
pair tells something of all others of that model.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

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
