"""How far what other users measured of a model may shift a user's rates.

They may make the model as a whole faster or slower, change the ratio of two GPU types within a
bound, and never reverse which of two types is the faster one.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray

RATIO_MOST = 1.5
"""What other users measured changes the ratio of two rates of a model by this factor at most. In
the shipped table, half of the pairs of types of a model change their ratio by up to 1.45 between
the batches of one GPU: two honest trainings of one name may differ by that."""


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
            centre = _mean(levels.values())
            return cls(0.0, centre - half, centre + half)
        # How fast the model is, the user's own runs say; others say what is between the types.
        offset = _mean([levels[kind] for kind in levels if kind in own] or levels.values())
        rest = [levels[kind] - offset for kind in levels if kind not in own]
        centre = min(max(_mean([*rest, *[0.0] * len(own)]), -half), half)
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


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values)
