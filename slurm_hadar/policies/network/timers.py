"""How long a job waits for a better tier: tuned to the waits at which offers were accepted.

Network-sensitive scheduling (arXiv 2401.16492, recalled): for each tier and number of GPUs a
sliding window of the waits at which offers of that tier were accepted; the timer is their mean
+ k standard deviations, clamped.
"""

from math import sqrt

from slurm_hadar.domain.view import State
from slurm_hadar.policies.network.settings import NetworkOptions

_MOST_KEYS = 500


class Timers:
    """The windows, read from the policy's state and written back as plain lists."""

    def __init__(self, state: State, settings: NetworkOptions) -> None:
        self._settings = settings
        self._waits: dict[str, list[float]] = {}
        kept = state.get("waits")
        if isinstance(kept, dict):
            for key, waits in kept.items():
                if isinstance(waits, list):
                    self._waits[str(key)] = [float(w) for w in waits if isinstance(w, int | float)]

    def wait_s(self, tier: int, count: int) -> float:
        """Seconds that a gang of ``count`` GPUs waits for ``tier`` before it takes a worse one."""
        limits, waits = self._settings, self._waits.get(f"{tier}:{count}")
        if not waits:
            return min(limits.first_wait_s, limits.most_wait_s)
        mean = sum(waits) / len(waits)
        deviation = sqrt(sum((w - mean) ** 2 for w in waits) / len(waits))
        tuned = mean + limits.spread * deviation
        return min(max(tuned, limits.least_wait_s), limits.most_wait_s)

    def accepted(self, tier: int, count: int, waited_s: float) -> None:
        """Take in that an offer of ``tier`` was accepted after this wait."""
        key = f"{tier}:{count}"
        if key not in self._waits and len(self._waits) >= _MOST_KEYS:
            return
        window = [*self._waits.get(key, []), waited_s]
        self._waits[key] = window[-max(1, self._settings.window) :]

    def plain(self) -> dict[str, object]:
        """For the state."""
        return {key: list(waits) for key, waits in self._waits.items()}
