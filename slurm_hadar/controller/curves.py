"""How fast a training on idle nodes is by its number of copies: measured, until then assumed.

A copy on a node is as fast as the job is there alone (the profiles know that), and copies add up.
What they lose to averaging is kept as the ratio of the measured rate to that sum, by the number of
copies. The ratio also puts right what the profiles have wrong for all types alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.domain.view import FloatArray

ASSUMED = 0.98
"""Ratio of several copies before anything was measured: the runtime makes its rounds so long that
averaging takes 2% at most."""
_NEWEST = 0.3
"""Weight of the newest measurement."""
_BOUNDS = (0.01, 100.0)
_MOST_KEYS = 500


@dataclass(frozen=True)
class Curves:
    """Ratios by training (user and model) and number of copies."""

    ratios: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: object) -> "Curves":
        """What :meth:`plain` gave; nothing where it is damaged."""
        if not isinstance(stored, dict):
            return cls()
        try:
            return cls(
                {
                    str(key): {
                        int(copies): min(max(float(ratio), _BOUNDS[0]), _BOUNDS[1])
                        for copies, ratio in row.items()
                    }
                    for key, row in stored.items()
                }
            )
        except (AttributeError, TypeError, ValueError):
            return cls()

    def plain(self) -> dict[str, object]:
        """For JSON; the newest trainings only, so that it stays bounded."""
        kept = list(self.ratios.items())[-_MOST_KEYS:]
        return {key: {str(copies): ratio for copies, ratio in row.items()} for key, row in kept}

    def measured(self, key: str, copies: int, rate: float, expected: float) -> "Curves":
        """With one measurement more, both in samples/s."""
        if copies < 1 or rate <= 0 or expected <= 0:
            return self
        ratio = min(max(rate / expected, _BOUNDS[0]), _BOUNDS[1])
        row = dict(self.ratios.get(key, {}))
        row[copies] = ratio if copies not in row else row[copies] + _NEWEST * (ratio - row[copies])
        rest = {other: found for other, found in self.ratios.items() if other != key}
        return Curves({**rest, key: row})

    def ratio(self, key: str, most: int) -> FloatArray:
        """(most + 1,) ratios for 0..most copies: measured ones, straight lines between them, the
        nearest one beyond them."""
        counts = np.arange(most + 1)
        row = self.ratios.get(key)
        if not row:
            return np.where(counts > 1, ASSUMED, 1.0)
        known = sorted(row)
        ratios: FloatArray = np.interp(counts, known, [row[copies] for copies in known])
        return ratios

    def curve(self, key: str, node_rate: float, least: int, most: int) -> FloatArray:
        """(most + 1,) samples/s on 0..most nodes of ``node_rate`` each; 0 below ``least``."""
        counts = np.arange(most + 1)
        rate: FloatArray = counts * node_rate * self.ratio(key, most)
        rate[: max(1, least)] = 0.0
        return rate
