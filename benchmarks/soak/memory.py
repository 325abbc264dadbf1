"""Whether the controller's memory stays flat over its longest life."""

import statistics
from dataclasses import dataclass, field

_WARM_S = 15.0
"""The libraries are loaded and every path was walked once."""
MOST_MB = 8.0
"""More growth than this between the first and the last fifth of a life is a leak."""
_LEAST = 5
"""Fewer weighings than these say nothing."""


@dataclass
class Memory:
    """Resident memory of each life of the controller, MB, as it was weighed."""

    lives: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def note(self, life: int, at_s: float, mb: float | None) -> None:
        """One weighing; None where no controller runs."""
        if mb is not None:
            self.lives.setdefault(life, []).append((at_s, mb))

    def longest(self) -> list[tuple[float, float]]:
        """The weighings of the longest life, after it is warm."""
        rows = max(self.lives.values(), key=lambda rows: rows[-1][0] - rows[0][0], default=[])
        return [row for row in rows if row[0] >= rows[0][0] + _WARM_S]

    def first_and_last_mb(self) -> tuple[float, float] | None:
        """Medians of the first and the last fifth; None where there is too little to say."""
        rows = [mb for _, mb in self.longest()]
        if len(rows) < _LEAST:
            return None
        part = max(1, len(rows) // 5)
        return statistics.median(rows[:part]), statistics.median(rows[-part:])

    def seconds(self) -> float:
        """How long the longest life was watched."""
        rows = self.longest()
        return rows[-1][0] - rows[0][0] if rows else 0.0

    def wrong(self) -> list[str]:
        """A sentence where it grew."""
        found = self.first_and_last_mb()
        if found is None:
            return ["the controller lived too short to be weighed"]
        first, last = found
        if last - first <= MOST_MB:
            return []
        return [f"the controller grew from {first:.1f} to {last:.1f} MB in {self.seconds():.0f} s"]
