"""What a policy declares of itself."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.options import PolicyOptions

Decide = Callable[[View, State], tuple[Plan, State]]
"""A policy's function: pure and deterministic, without a clock, a file or Slurm."""

RESERVED = frozenset({"backfill", "exchange", "plain", "untold"})
"""No names of policies: the controller keeps its own memory under three of them, and ``plain``
stands for Slurm alone in a simulation."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class Trait(StrEnum):
    """What a policy uses beside GPU types and counts."""

    MOVES = "moves"
    """It places running jobs elsewhere, or stops them for others."""
    ORDER = "order"
    """It serves waiting jobs in another order than Slurm's priority."""
    CPUS = "cpus"
    """It gives jobs other CPUs and memory per GPU than they ask for
    (``JobArrays.cpu_sensitivity``)."""
    BATCHES = "batches"
    """It chooses global batches (``JobArrays.batches``)."""
    COPIES = "copies"
    """It decides on the copies of a job together (``JobArrays.copies``), so what is too slow for
    the time limit in one copy stays possible."""
    ROUNDS = "rounds"
    """It deals the tasks of a round over GPUs (``JobArrays.tasks``)."""
    RACKS = "racks"
    """It looks at racks (``NodeArrays.rack``, ``JobArrays.network``): each tick asks Slurm for its
    switches."""


@dataclass(frozen=True)
class Policy:
    """A policy and what is to be known of it without running it.

    Raises TypeError or ValueError for a record that cannot be used.
    """

    name: str
    """Letters, digits and ``_``, beginning with a letter: as in ``controller.policy``."""
    decide: Decide
    options: type[PolicyOptions] | None = None
    """What it reads from ``View.options``; None: not declared, so nothing is checked."""
    uses: frozenset[Trait] = frozenset()
    """What it uses beside types and counts; names of traits will do."""
    preempts: bool = False
    """Whether it is designed to stop running jobs; ``hadar
    check`` then asks for ``guards.preempt``."""
    title: str = ""
    """One line on what it does."""
    paper: str = ""
    """Where the idea comes from."""

    def __post_init__(self) -> None:
        """Check the record, as it may come from another package."""
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
