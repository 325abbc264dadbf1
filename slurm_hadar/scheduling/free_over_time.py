"""How many GPUs of a type are free at which time, by the limits of what runs and is planned."""

from bisect import bisect_left, bisect_right


class FreeOverTime:
    """GPUs free from now on: a step function of time."""

    def __init__(self, now: float, free: int) -> None:
        self._times, self._free = [now], [free]

    @property
    def now(self) -> float:
        """Where it begins."""
        return self._times[0]

    def give(self, at: float, count: int) -> None:
        """``count`` GPUs come free at ``at`` and stay so; before now means now."""
        for step in range(self._step(max(at, self._times[0])), len(self._free)):
            self._free[step] += count

    def take(self, start: float, end: float, count: int) -> None:
        """``count`` GPUs are used from ``start``, which is not before now, to ``end``."""
        first, last = self._step(start), self._step(end)
        for step in range(first, last):
            self._free[step] -= count

    def earliest(self, count: int, length_s: float) -> float:
        """When ``count`` GPUs are free for so long; inf: never."""
        times, free = self._times, self._free
        step = 0
        while step < len(times):
            end = bisect_left(times, times[step] + length_s)
            short = next((at for at in range(step, end) if free[at] < count), -1)
            if short < 0:
                return times[step]
            step = short + 1
        return float("inf")

    def _step(self, at: float) -> int:
        """The step that begins at ``at``, made where there is none."""
        step = bisect_right(self._times, at) - 1
        if self._times[step] < at:
            step += 1
            self._times.insert(step, at)
            self._free.insert(step, self._free[step - 1])
        return step
