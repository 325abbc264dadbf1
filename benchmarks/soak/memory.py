"""Whether the controller's memory stays flat over its longest life."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

_WARM_S = 15.0
"""The libraries are loaded and every path was walked once."""
MOST_MB_H = 6.0
"""A leak of 3.4 kB a tick, where there is one every 2 s. It is looked for in each quarter of the
last half, and their median counts: one step of 0.9 MB was seen in 20 minutes and no other."""
MOST_WITH_STEPS_MB_H = 15.0
"""The last half as a whole, with such steps."""
SHORT_S = 600.0
"""A shorter half may grow by as much as one of this length: memory is had in whole blocks, and
Slurm shows more jobs every second until the first of them is older than MinJobAge (600 s)."""
_BLOCKS_MB = 1.5
"""However short the half is, it may grow by this: such steps, and what is warmed up late."""
_LEAST = 5
"""Fewer weighings than these say nothing."""

Weighings = Sequence[tuple[float, float]]
"""(s, MB), oldest first."""


@dataclass
class Memory:
    """Resident memory of each life of the controller, MB, as it was weighed."""

    lives: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def note(self, life: int, at_s: float, mb: float | None) -> None:
        """One weighing; None where no controller runs."""
        if mb is not None:
            self.lives.setdefault(life, []).append((at_s, mb))

    def longest(self) -> Weighings:
        """The weighings of the longest life, after it is warm."""
        rows = max(self.lives.values(), key=lambda rows: rows[-1][0] - rows[0][0], default=[])
        return [row for row in rows if row[0] >= rows[0][0] + _WARM_S]

    def last_half(self) -> Weighings:
        """Those of the last half of that life; what is kept for good is kept by then."""
        rows = self.longest()
        return [row for row in rows if 2 * row[0] >= rows[0][0] + rows[-1][0]]

    def first_and_last_mb(self) -> tuple[float, float] | None:
        """Medians of the first and the last fifth; None where there is too little to say."""
        rows = [mb for _, mb in self.longest()]
        if len(rows) < _LEAST:
            return None
        part = max(1, len(rows) // 5)
        return statistics.median(rows[:part]), statistics.median(rows[-part:])

    def seconds(self) -> float:
        """How long the longest life was watched."""
        return _seconds(self.longest())

    def slope_mb_h(self) -> float | None:
        """The median of the slopes of the last half's quarters, of a short one its slope; None
        where there is too little to say."""
        rows = self.last_half()
        if _seconds(rows) < SHORT_S / 2:
            return _slope(rows)
        part = _seconds(rows) / 4
        edges = [rows[0][0] + number * part for number in range(4)]
        slopes = [_slope([row for row in rows if edge <= row[0] <= edge + part]) for edge in edges]
        known = [slope for slope in slopes if slope is not None]
        return statistics.median(known) if known else None

    def slope_with_steps_mb_h(self) -> float | None:
        """Of the straight line through all of the last half."""
        return _slope(self.last_half())

    def shortness(self) -> float:
        """By what the bounds are higher, as the last half is short."""
        return max(1.0, SHORT_S / max(1.0, _seconds(self.last_half())))

    def wrong(self) -> list[str]:
        """A sentence where it grew."""
        slope, steps = self.slope_mb_h(), self.slope_with_steps_mb_h()
        if slope is None or steps is None:
            return ["the controller lived too short to be weighed"]
        more, seconds = self.shortness(), _seconds(self.last_half())
        least = 3600 * _BLOCKS_MB / seconds
        most, most_steps = (max(least, bound * more) for bound in (MOST_MB_H, MOST_WITH_STEPS_MB_H))
        if slope <= most and steps <= most_steps:
            return []
        return [
            f"the controller grew by {slope:.1f} MB/h in the last {seconds:.0f} s of its longest "
            f"life, {steps:.1f} with single steps; at most {most:.1f} and {most_steps:.1f} were "
            "expected"
        ]


def _slope(rows: Weighings) -> float | None:
    if len(rows) < _LEAST or not _seconds(rows):
        return None
    times, weights = zip(*rows, strict=True)
    return 3600 * statistics.linear_regression(times, weights).slope


def _seconds(rows: Weighings) -> float:
    return rows[-1][0] - rows[0][0] if rows else 0.0
