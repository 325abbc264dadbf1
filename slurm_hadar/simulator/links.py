"""The interface to a model of links that jobs share: what each loses to the traffic of the
others."""

from collections.abc import Sequence
from typing import Protocol

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.simulator.seats import Seat


class Links(Protocol):
    """Asked once after every decision, as a job that comes or goes changes the others' speed."""

    def factors(self, jobs: IntArray, seats: Sequence[tuple[Seat, ...]]) -> FloatArray:
        """(K,) rate of each of these K jobs over what it has on the same seats with the links to
        itself, 0 < factor <= 1. ``seats``: where each of them runs."""
        ...

    def alone(self, jobs: IntArray, seats: Sequence[tuple[Seat, ...]]) -> FloatArray:
        """(K,) rate on these seats with the links to itself, over the rate on one machine."""
        ...
