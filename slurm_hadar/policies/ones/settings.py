"""The settings of the ones policy, read from ``View.options``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from slurm_hadar.domain.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """Keys other than these are other policies' and are ignored."""

    generations: int = 20
    """Generations of a decision; the search ends then, whatever the clock says."""
    population: int = 0
    """Candidates; 0: as many as there are GPUs, within 16 and 64."""
    theta: float = 0.15
    """Chance that a mutation preempts a job."""
    cells: int = 65_536
    """Most candidates x GPUs (or x jobs, where these are more), so that a large cluster's
    generation stays short."""
    every_s: float = 1800.0
    """A new search after this time, and whenever jobs come, end, or are not where they were put."""
    price: float = 3.0
    """Weight of the GPU-seconds that are taken from jobs yet to come."""
    limits: str = "noise"
    """``noise``: the measured noise scale alone says what a larger batch costs. ``paper``: ONES's
    own limits besides, which start small and double."""
    preempt: bool = True
    """Whether a running job may be stopped for others."""
    gain_over_cost: float = 1.5
    """A move must gain this many times what it costs."""
    min_stay_s: float = 0.0
    """No move of a job that came to its place less than this ago, s."""

    @classmethod
    def read(cls, options: Mapping[str, object]) -> "Settings":
        """Raises :class:`UsageError` naming the option at fault."""
        values: dict[str, object] = {}
        for field in fields(cls):
            if field.name not in options:
                continue
            value = options[field.name]
            if isinstance(field.default, bool):
                if not isinstance(value, bool):
                    raise UsageError(f"policy option {field.name}: {value!r} is not true or false")
                values[field.name] = value
            elif isinstance(field.default, str):
                if value not in _LIMITS:
                    raise UsageError(
                        f"policy option {field.name}: {value!r} is none of {', '.join(_LIMITS)}"
                    )
                values[field.name] = value
            else:
                values[field.name] = _number(field.name, value, isinstance(field.default, int))
        return cls(**values)  # type: ignore[arg-type]


_LIMITS = ("noise", "paper")
_RANGES = {
    "generations": (0, 10_000),
    "population": (0, 4096),
    "theta": (0.0, 0.5),
    "cells": (256, 1e9),
}


def _number(name: str, value: object, whole: bool) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"policy option {name}: {value!r} is not a number")
    low, high = _RANGES.get(name, (0.0, 1e9))
    if not low <= value <= high:
        raise UsageError(f"policy option {name}: {value:g} is not between {low:g} and {high:g}")
    return int(value) if whole else float(value)
