"""What Slurm refused, and when it is tried again."""

from dataclasses import dataclass

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 86_400.0


@dataclass(frozen=True)
class Refusals:
    """How often Slurm refused a hint of a job with the error of the last time, since it took one;
    and when last (s since the epoch)."""

    number: int
    last_s: float

    def over(self, now: float) -> bool:
        """Whether it may be tried again: a minute after the first, and twice as long each time."""
        pause = min(_FIRST_PAUSE_S * 2.0 ** min(self.number - 1, 20), _LONGEST_PAUSE_S)
        return not 0 <= now - self.last_s < pause
