"""Samples/s over a recent window, without the times in which nothing was trained; and counts that
a program shows."""

import time
from abc import ABC, abstractmethod
from collections import deque

_WINDOW_S = 30.0
_MARK_S = 0.5


class Meter:
    """Counts samples of one attempt. The first step, which warms up, is not counted."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int, int]] = deque()
        self._idle = 0.0
        self._samples = 0
        self._steps = 0

    def add(self, samples: int) -> None:
        """A step of ``samples`` ended now."""
        self._samples += samples
        self._steps += 1
        now = time.monotonic() - self._idle
        if not self._marks or now - self._marks[-1][0] >= _MARK_S:
            self._marks.append((now, self._samples, self._steps))
            while len(self._marks) > 2 and now - self._marks[1][0] >= _WINDOW_S:
                self._marks.popleft()

    def skip(self, seconds: float) -> None:
        """Leave a pause or a save out of the account."""
        self._idle += seconds

    def restart(self) -> None:
        """Forget the past: from here on it is another rate (another batch)."""
        self._marks.clear()

    def rate(self) -> tuple[float, float]:
        """(samples/s, s of the window); (0, 0) while too little was seen."""
        window, samples, _ = self._span()
        return (samples / window, window) if window > 0 else (0.0, 0.0)

    @property
    def step_s(self) -> float:
        """Seconds per step lately, 0 while unknown."""
        window, _, steps = self._span()
        return window / steps if steps else 0.0

    def _span(self) -> tuple[float, int, int]:
        if len(self._marks) < 2:
            return 0.0, 0, 0
        first, last = self._marks[0], self._marks[-1]
        return last[0] - first[0], last[1] - first[1], last[2] - first[2]


class SampleCount(ABC):
    """The newest count of samples that a training shows by itself, and its rate."""

    def __init__(self) -> None:
        self._meter = Meter()
        self.samples = 0

    @property
    def rate(self) -> tuple[float, float]:
        """(samples/s, s of the window); (0, 0) while too little was seen."""
        return self._meter.rate()

    def note(self, count: int) -> None:
        """The training shows ``count`` samples now."""
        if count == self.samples:
            return
        if count < self.samples or not self.samples:
            # The first number of an attempt, or it began again from a checkpoint: no rate yet.
            self._meter = Meter()
        self._meter.add(max(0, count - self.samples) if self.samples else 0)
        self.samples = count

    @abstractmethod
    def look(self) -> None:
        """Read what is new."""
