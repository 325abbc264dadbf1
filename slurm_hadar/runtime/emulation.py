"""The hook by which a sandbox holds a training back to the speed of its pretend GPUs.

``HADAR_EMULATION`` names a module with ``from_env(model, planned, gather, nodes)``. A sandbox sets
it for its jobs; without it nothing is emulated.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Protocol

from slurm_hadar.domain.errors import HadarError

ENV = "HADAR_EMULATION"

Seen = tuple[str, list[str]]
"""A node and the ids of its GPUs that one process has."""


class Emulation(Protocol):
    """Holds a training loop back; times in s."""

    gpus: Mapping[str, int]
    """The job's GPUs by type."""
    note: str
    """What the job's output should say of it; empty where that is nothing."""

    def start(self, owed: float = 0.0) -> None:
        """Begin to count now; ``owed`` samples were trained faster than the GPU would have."""

    def hold(self, samples: int, stop: Callable[[], bool]) -> None:
        """Sleep until ``samples`` more would be done; ``stop`` is asked between short sleeps."""

    def shift(self, seconds: float) -> None:
        """Leave out a time in which the GPU stood still."""

    @property
    def owed(self) -> float:
        """Samples that went in ahead of the GPU, when a sleep was cut short."""
        ...


def emulation(
    model: str,
    planned: Mapping[str, int] | None = None,
    gather: Callable[[Seen], list[Seen]] = lambda seen: [seen],
    nodes: Sequence[str] | None = None,
) -> Emulation | None:
    """The emulation of this job's GPUs; None where they are real.

    ``planned``: GPUs by type of the job's plan. ``gather`` collects a value from all processes of
    the training. ``nodes``: the nodes that train together; None: those of the allocation. Raises
    HadarError where the hook cannot be used: a job that is not held back would spoil a comparison.
    """
    name = os.environ.get(ENV)
    if not name:
        return None
    try:
        from_env = import_module(name).from_env
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise HadarError(f"{ENV}={name} cannot be used: {error}") from None
    found: Emulation | None = from_env(model, planned, gather, nodes)
    return found
