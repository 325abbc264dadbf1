"""What the policies for idle nodes see and answer: plain arrays, nothing of Slurm."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import FloatArray, IntArray

NOBODY = -1


@dataclass(frozen=True)
class Trainer:
    """A job that trains on idle nodes.

    ``rate`` (R, K + 1): samples/s on 0..K whole nodes of type r, 0 where it cannot run (column 0,
    and counts below its least). On several types at once it runs as fast as the slowest of them.
    ``grow_s``, ``shrink_s``: seconds without training when nodes join or leave, as measured.
    """

    name: str
    rate: FloatArray
    grow_s: float
    shrink_s: float
    user: str = ""

    def __post_init__(self) -> None:
        shape = self.rate.shape
        if len(shape) != 2 or not shape[0] or not shape[1] or self.rate[:, 0].any():
            raise UsageError(f"trainer {self.name}: its rates are not (types, counts from 0 on)")
        if not np.isfinite(self.rate).all() or (self.rate < 0).any():
            raise UsageError(f"trainer {self.name}: a rate is negative or not finite")
        if not (0 <= self.grow_s < np.inf and 0 <= self.shrink_s < np.inf):
            raise UsageError(f"trainer {self.name}: a rescale cost is negative or not finite")

    @property
    def most(self) -> int:
        """Most nodes that it can use."""
        return int(self.rate.shape[1]) - 1


@dataclass(frozen=True)
class IdleView:
    """The idle nodes at one moment, and the trainers that may have them now.

    ``nodes`` (I,) ascending: numbers of the idle nodes in the site's order, so that neighbours
    have near numbers. ``since_s`` (I,): when each became idle. ``holder`` (I,): index of the
    trainer on it, or :data:`NOBODY`. ``gpu_type`` (I,): type of each, all 0 if absent.
    ``forward_s``: the time looked ahead (Tfwd). ``most_nodes``: cap of all trainers together;
    ``user_caps``: of one user's trainers together. ``time_limit_s``: safety net of the MILP.
    """

    now: float
    nodes: IntArray
    since_s: FloatArray
    holder: IntArray
    trainers: tuple[Trainer, ...]
    gpu_type: IntArray | None = None
    forward_s: float = 120.0
    most_nodes: int | None = None
    user_caps: Mapping[str, int] = field(default_factory=dict)
    time_limit_s: float = 2.0

    def held(self, trainer: int) -> IntArray:
        """Positions (not numbers) of the nodes that a trainer holds."""
        return np.flatnonzero(self.holder == trainer)

    def counts(self) -> IntArray:
        """(J,) nodes that each trainer holds."""
        used = self.holder[self.holder >= 0]
        return np.bincount(used, minlength=len(self.trainers)).astype(np.int64)

    def ahead_s(self) -> float:
        """``forward_s``, but at least twice the slowest restart: a shorter look ahead sees only
        the cost of a start and would start none."""
        return max([self.forward_s, *(2.0 * one.grow_s for one in self.trainers)])

    def budget(self) -> int:
        """Nodes that trainers may hold together; what is held already is not taken away by it."""
        idle = len(self.nodes)
        if self.most_nodes is None:
            return idle
        return max(min(idle, self.most_nodes), int((self.holder >= 0).sum()))


@dataclass(frozen=True)
class IdleMap:
    """``holder`` (I,): who gets each idle node, as in the view. ``notes``: what was unusual, such
    as a solver's time limit."""

    holder: IntArray
    notes: tuple[str, ...] = ()
