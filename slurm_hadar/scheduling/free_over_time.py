"""The number of free GPUs of a type over time, from the time limits of running and planned jobs."""

from bisect import bisect_left, bisect_right


class FreeOverTime:
    """Free GPUs from now on: a step function of time. Times in s."""

    def __init__(self, now: float, free: int) -> None:
        self._times, self._free = [now], [free]

    @property
    def now(self) -> float:
        """The first time of the function."""
        return self._times[0]

    def give(self, at: float, count: int) -> None:
        """``count`` GPUs become free at ``at`` and stay free; a time before now means now."""
        for step in range(self._step(max(at, self._times[0])), len(self._free)):
            self._free[step] += count

    def take(self, start: float, end: float, count: int) -> None:
        """``count`` GPUs are in use from ``start``, which is not before now, to ``end``."""
        first, last = self._step(start), self._step(end)
        for step in range(first, last):
            self._free[step] -= count

    def earliest(self, count: int, length_s: float) -> float:
        """The first time from which ``count`` GPUs are free for ``length_s``; inf: never."""
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
        """The index of the step that begins at ``at``, inserted if there is none."""
        step = bisect_right(self._times, at) - 1
        if self._times[step] < at:
            step += 1
            self._times.insert(step, at)
            self._free.insert(step, self._free[step - 1])
        return step
