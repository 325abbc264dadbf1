"""In which order a managed job's list names the GPU types, and which of them it leaves out."""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.declaration import SLOWEST
from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.simulator.queue.reported_rates import ReportedRates

_NONE: frozenset[int] = frozenset()


class TypePreference:
    """Of J jobs on R types, by their expected rates, corrected at ticks by what is reported. What
    ``hbatch`` writes into a list at the submit goes by the expected ones."""

    def __init__(self, expected: FloatArray, column: IntArray) -> None:
        """``expected``: (J, R) samples per s; ``column``: (J,) of each job's count of GPUs."""
        self._expected, self._column = expected, column
        self._rate, self._own = expected.copy(), expected.copy()

    def correct(self, jobs: IntArray, reported: ReportedRates) -> None:
        """Take in what is reported; another user's reports leave no type out."""
        rows, column = np.arange(len(jobs)), self._column[jobs]
        expected = self._expected[jobs]
        self._rate[jobs] = expected * reported.factors(jobs)[rows, :, column]
        self._own[jobs] = expected * reported.own_factors(jobs)[rows, :, column]

    def order(
        self,
        job: int,
        kinds: Sequence[int],
        first: frozenset[int] = _NONE,
        kept: frozenset[int] = _NONE,
    ) -> list[int]:
        """Those of ``first``, then the fastest first, without the ones that are far slower and not
        ``kept``."""
        own, rate = self._own[job], self._rate[job]
        best = max(own[kind] for kind in kinds)
        found = [kind for kind in kinds if own[kind] * SLOWEST >= best or kind in kept]
        return sorted(found, key=lambda kind: (kind not in first, -rate[kind]))
