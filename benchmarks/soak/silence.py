"""When a node was cut off while its steps ran on: the only time in which a job may run twice.

Slurm then starts the job elsewhere, which no software beside it can prevent. For a training that is
no excuse: what a stale attempt writes is watched, see :mod:`.publications`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.soak.jobs import Start

KILL_WAIT_S = 5
GRACE_S = KILL_WAIT_S + 10.0
"""From the return of a node on: slurmd tells of the steps that it finds, slurmctld has those that
are nobody's any more ended, and they may take KillWait for it."""


@dataclass(frozen=True, slots=True)
class Silence:
    """One time without the slurmd of a node, s since the epoch."""

    node: str
    from_s: float
    back_s: float

    def hides(self, earlier: Start, at_s: float) -> bool:
        """Whether what began there earlier may run on at a time, and Slurm cannot see it."""
        if earlier.node != self.node or earlier.at_s > self.back_s:
            return False
        return self.from_s <= at_s <= self.back_s + GRACE_S


def hidden(earlier: Iterable[Start], at_s: float, silences: Iterable[Silence]) -> bool:
    """Whether one of a job's earlier starts may run on at a time, and Slurm cannot see it."""
    known = tuple(silences)
    return any(one.hides(start, at_s) for start in earlier for one in known)
