"""What is known of trainings on idle nodes: speed by number of copies.

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
_LEAST, _MOST = 0.01, 100.0
"""Bounds of a ratio: one wrong report must not decide everything."""
_MOST_KEYS = 500


@dataclass(frozen=True)
class Curves:
    """``ratios``: training (user and model) -> number of copies -> ratio."""

    ratios: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: object) -> "Curves":
        """What :meth:`plain` gave; nothing where it is damaged."""
        try:
            if not isinstance(stored, dict):
                return cls()
            return cls(
                {
                    str(key): {int(copies): _ratio(float(ratio)) for copies, ratio in row.items()}
                    for key, row in stored["ratios"].items()
                }
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return cls()

    def plain(self) -> dict[str, object]:
        """For JSON; the newest trainings only, so that it stays bounded."""
        return {
            "ratios": {
                key: {str(copies): ratio for copies, ratio in row.items()}
                for key, row in list(self.ratios.items())[-_MOST_KEYS:]
            }
        }

    def measured(self, key: str, copies: int, rate: float, expected: float) -> "Curves":
        """With one measurement more, both rates in samples/s."""
        if copies < 1 or rate <= 0 or expected <= 0:
            return self
        ratio = _ratio(rate / expected)
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

    def curve(self, key: str, speed: float, least: int, most: int) -> FloatArray:
        """(most + 1,) samples/s on 0..most nodes of ``speed`` each; 0 below ``least``."""
        rate: FloatArray = np.arange(most + 1) * speed * self.ratio(key, most)
        rate[: max(1, least)] = 0.0
        return rate


def _ratio(value: float) -> float:
    return min(max(value, _LEAST), _MOST)
