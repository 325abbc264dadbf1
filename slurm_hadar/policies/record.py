"""The record with which a policy describes itself."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.options import PolicyOptions

Decide = Callable[[View, State], tuple[Plan, State]]
"""A policy's function: pure and deterministic, without clock, files or Slurm."""

RESERVED = frozenset({"backfill", "exchange", "plain", "untold"})
"""Names that no policy may have: the controller stores state of its own under three of them, and
``plain`` stands for Slurm alone in simulations."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class Trait(StrEnum):
    """What a policy uses or decides beside GPU types and counts."""

    MOVES = "moves"
    """It moves running jobs, or stops them for others."""
    ORDER = "order"
    """It serves waiting jobs in another order than by Slurm's priority."""
    CPUS = "cpus"
    """It gives jobs other CPUs and memory per GPU than they request
    (``JobArrays.cpu_sensitivity``)."""
    BATCHES = "batches"
    """It chooses global batches (``JobArrays.batches``)."""
    COPIES = "copies"
    """It plans the copies of a job together (``JobArrays.copies``), so a type on which one copy
    would exceed the time limit stays possible."""
    ROUNDS = "rounds"
    """It deals the tasks of a round over GPUs (``JobArrays.tasks``)."""
    RACKS = "racks"
    """It uses racks (``NodeArrays.rack``, ``JobArrays.network``): each tick queries Slurm's
    switches."""


@dataclass(frozen=True)
class Policy:
    """A policy with what can be known of it without running it.

    Raises TypeError or ValueError for an invalid record.
    """

    name: str
    """The value of ``controller.policy``: letters, digits and ``_``, beginning with a letter."""
    decide: Decide
    options: type[PolicyOptions] | None = None
    """What it reads from ``View.options``; None: not declared, so options are not checked."""
    uses: frozenset[Trait] = frozenset()
    """What it uses beside types and counts. Names of traits are accepted."""
    preempts: bool = False
    """Whether it is designed to stop running jobs; ``hadar check`` then asks for
    ``guards.preempt``."""
    title: str = ""
    """What it does, in one line."""
    paper: str = ""
    """The paper that describes it."""

    def __post_init__(self) -> None:
        """Validate the record, as it may come from another package."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name for a policy: letters, digits and _ only")
        if self.name in RESERVED:
            raise ValueError(f"{self.name} is reserved and no name for a policy")
        if not callable(self.decide):
            raise TypeError(f"decide of policy {self.name} is no function")
        options = self.options
        if options is not None and not (
            isinstance(options, type) and issubclass(options, PolicyOptions)
        ):
            raise TypeError(f"options of policy {self.name} is no subclass of PolicyOptions")
        object.__setattr__(self, "uses", frozenset(Trait(one) for one in self.uses))
