"""What models lose when their GPUs are apart: measured by tier, else from a table, else guessed.

Tiers as in ``domain.traits.TIERS``: one machine, one rack, several racks.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.traits import TIERS
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles.measured import MeasuredStore, RateSample

GUESS = (1.0, 0.95, 0.90)
"""Factors of a model of which nothing is known."""
OTHERS_MOST = 5.0
"""What other users measured makes a factor smaller than expected by this at most, as with rates:
one who writes nonsense must not keep all users of a model waiting for near places."""
_STEP = 2.0
"""How much longer an exchange is taken to be one tier farther, where only one was measured: what
the guess has it."""

Group = tuple[int, str, int, int]
"""(uid, GPU type, GPUs, batch): rates are compared within one of these only."""


class TierRates:
    """Measured samples/s by tier, in memory and, where a connection is given, in its file."""

    def __init__(self, connection: sqlite3.Connection | None = None) -> None:
        self._store = MeasuredStore(connection, "throughput_by_tier")

    def record(self, sample: RateSample, tier: int) -> bool:
        """Take in a rate at a tier, as :meth:`MeasuredStore.record` does."""
        return self._store.record(replace(sample, gpu_type=f"{sample.gpu_type}/{TIERS[tier]}"))

    def rates(self, model: str, group: Group) -> tuple[float, ...]:
        """(3,) measured samples/s of one group at each tier, 0 where there is none."""
        return self._groups(model).get(group, ((0.0,) * 3, 0.0))[0]

    def factor(self, model: str, group: Group, table: float = 0.0) -> FloatArray:
        """(3,) rate at each tier over the rate at the nearest one that was measured.

        The group's own measurements count, else those of the same user's other groups, else those
        of other users, the longest measured first. ``table``: the factor of GPUs on several nodes
        according to a throughput table, 0 where none says; then :data:`GUESS`.
        """
        groups = {g: found for g, found in self._groups(model).items() if _count(found[0]) > 1}
        best = max(
            groups,
            key=lambda g: (g == group, g[0] == group[0], g[2] == group[2], groups[g][1]),
            default=None,
        )
        expected = (1.0, min(1.0, table), min(1.0, table)) if table > 0 else GUESS
        if best is None:
            return np.array(expected)
        found = _filled(groups[best][0])
        if best[0] != group[0]:
            found = np.maximum(found, np.array(expected) / OTHERS_MOST)
        return found

    def _groups(self, model: str) -> dict[Group, tuple[tuple[float, ...], float]]:
        """Group -> (3,) samples/s, and the seconds measured."""
        found: dict[Group, tuple[list[float], float]] = {}
        for row in self._store.of(model):
            kind, _, tier = row.gpu_type.rpartition("/")
            if tier in TIERS:
                group = (row.uid, kind, row.gpus, row.batch)
                rates, seconds = found.get(group, ([0.0] * len(TIERS), 0.0))
                rates[TIERS.index(tier)] = row.samples_per_s
                found[group] = (rates, seconds + row.seconds)
        return {group: (tuple(rates), seconds) for group, (rates, seconds) in found.items()}


def nearest(rates: Iterable[float]) -> int | None:
    """The nearest tier that was measured; None where none was."""
    return next((tier for tier, rate in enumerate(rates) if rate > 0), None)


def _count(rates: Iterable[float]) -> int:
    return sum(rate > 0 for rate in rates)


def _filled(rates: tuple[float, ...]) -> FloatArray:
    """Factors from two or more measured rates; no tier is better than a nearer one."""
    first = nearest(rates)
    assert first is not None
    factor = np.ones(len(rates))
    for tier in range(first + 1, len(rates)):
        if rates[tier] > 0:
            factor[tier] = min(rates[tier] / rates[first], factor[tier - 1])
        elif tier + 1 < len(rates):
            exchange = max(0.0, rates[first] / rates[tier + 1] - 1.0) / _STEP
            factor[tier] = 1.0 / (1.0 + exchange)
        else:
            factor[tier] = 1.0 / (1.0 + _STEP * (1.0 / factor[tier - 1] - 1.0))
    return np.maximum(factor, 1e-3)
