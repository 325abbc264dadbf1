"""The input and output of policies for idle nodes: plain arrays, independent of Slurm."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import FloatArray, IntArray

NO_TRAINER = -1
"""Holder of a node without a trainer."""


@dataclass(frozen=True)
class Trainer:
    """A job that trains on idle nodes.

    ``rate`` (R, K + 1): samples/s on 0..K whole nodes of type r, 0 if it cannot run (column 0, and
    counts below its least). On several types it runs at the speed of the slowest. ``grow_s``,
    ``shrink_s``: measured seconds without training when nodes join or leave.

    Raises UsageError for rates or costs that are invalid.
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
    """The idle nodes at one moment, and the trainers that may have them.

    ``nodes`` (I,) ascending: numbers of the idle nodes in the site's order, so that neighbours have
    near numbers. ``since_s`` (I,): when each became idle. ``holder`` (I,): index of its trainer, or
    :data:`NO_TRAINER`. ``gpu_type`` (I,): type of each, all 0 if absent. ``forward_s``:
    forward-looking time in s (Tfwd). ``most_nodes``: cap of all trainers together; ``user_caps``:
    cap of each user's trainers together. ``time_limit_s``: limit of the MILP.
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
        """Positions (not numbers) of the nodes of a trainer."""
        return np.flatnonzero(self.holder == trainer)

    def counts(self) -> IntArray:
        """(J,) nodes of each trainer."""
        used = self.holder[self.holder >= 0]
        return np.bincount(used, minlength=len(self.trainers)).astype(np.int64)

    def ahead_s(self) -> float:
        """``forward_s``, but at least twice the slowest restart: a shorter time would see only the
        cost of a start and start nothing."""
        return max([self.forward_s, *(2.0 * one.grow_s for one in self.trainers)])

    def budget(self) -> int:
        """Nodes that trainers may hold together; at least what they hold already."""
        idle = len(self.nodes)
        if self.most_nodes is None:
            return idle
        return max(min(idle, self.most_nodes), int((self.holder >= 0).sum()))


@dataclass(frozen=True)
class IdleMap:
    """``holder`` (I,): trainer of each idle node, as in the view. ``notes``: unusual events, such
    as a solver's time limit."""

    holder: IntArray
    notes: tuple[str, ...] = ()
