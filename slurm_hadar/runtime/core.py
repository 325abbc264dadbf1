"""What all kinds of trainings share: the signals, the other processes, the controller, the GPUs."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.job_side import Exchange, node_gpus
from slurm_hadar.runtime.batches import LearningRateRule
from slurm_hadar.runtime.checkpoint_store import Say
from slurm_hadar.runtime.emulation import Emulation, emulation
from slurm_hadar.runtime.ranks import Ranks
from slurm_hadar.runtime.signals import Signals
from slurm_hadar.runtime.without_gpus import leave_without_gpus

WHEN_NOT_FINITE = ("report", "end")
"""What a training may do about a loss that is not finite."""


def say(line: str) -> None:
    """Print one line to the job's output."""
    print(f"hadar: {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """What each kind of training takes; the meaning is that in
    :class:`slurm_hadar.runtime.Training`. ``every_s``: seconds between two saves.

    Raises UsageError for a value that makes no sense.
    """

    name: str = ""
    gpus: int | None = None
    every_s: float = 600.0
    signal: str | None = None
    nonfinite: str = "report"
    log: Callable[[str], None] = say
    # Only a Session's scripts choose these two.
    sharded: bool | None = field(default=None, init=False)
    background: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.nonfinite not in WHEN_NOT_FINITE:
            raise UsageError(f"nonfinite={self.nonfinite!r}: {' or '.join(WHEN_NOT_FINITE)}")


@dataclass(frozen=True)
class WorkOptions:
    """Model, data and checkpoint of a training whose loop is ours; the meaning is that in
    :class:`slurm_hadar.runtime.Training`."""

    model: Any
    optimizer: Any
    _: KW_ONLY
    dataset_size: int
    batch: int | tuple[int, int]
    epochs: int | None = None
    samples: int | None = None
    scheduler: Any = None
    schedule: str = "epoch"
    also: Mapping[str, Any] | None = None
    seed: int = 0
    path: str | Path | None = None
    learning_rate: LearningRateRule = "auto"
    trusted: bool = False

    @property
    def work(self) -> int:
        """Samples of the whole training. Raises UsageError unless one keyword alone says it."""
        epochs, samples = self.epochs, self.samples
        if (epochs is None) == (samples is None) or (epochs or samples or 0) < 1:
            raise UsageError("say how much work there is: epochs=N or samples=N, one of the two")
        return samples if samples is not None else (epochs or 0) * self.dataset_size

    @property
    def checkpoint(self) -> Path | None:
        """Where the checkpoint is, from whatever folder the training works in later."""
        return None if self.path is None else Path(self.path).absolute()


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(SessionOptions, WorkOptions):
    """See :class:`slurm_hadar.runtime.Training`, whose arguments these are."""

    scaler: Any = None
    per_gpu: int | None = None


class SessionCore:
    """One process of one attempt, as Slurm and the controller see it.

    It takes the signals at once; :meth:`join`, then :meth:`find_gpus`, do the rest. Raises
    UsageError for an unknown signal.
    """

    ranks: Ranks
    say: Say
    exchange: Exchange | None
    emulation: Emulation | None
    gpus: int
    """GPUs that train together."""

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        try:
            self.signals = Signals(options.signal)
        except ValueError as error:
            raise UsageError(f"signal: {error}") from None
        self.signals.install()

    def join(self) -> None:
        """Meet the other processes; the first one speaks for all.

        Raises LeftOnTerm where Slurm gave no GPU and starts the job again.
        """
        self.ranks = Ranks()
        self._speak(first=self.ranks.first)
        leave_without_gpus(self.exchange, self.signals, self.say)

    def join_copies(self, *, first: bool) -> None:
        """As :meth:`join`, for copies: they have processes of their own, and what started them
        looked for the GPUs."""
        self.ranks = Ranks()
        self._speak(first=first)

    def find_gpus(self, model: Any, *, nodes: Sequence[str] | None = None) -> None:
        """Count the GPUs, after :meth:`join`; ``nodes`` as in :func:`.emulation.emulation`.

        Raises HadarError where a sandbox's hook cannot be used.
        """
        plan = self.exchange.plan(now=True) if self.exchange else None
        planned = self.ranks.gather(dict(plan.gpus) if plan else None)[0]
        if nodes is not None:
            self.emulation = emulation(self.options.name, nodes=nodes)
        else:
            self.emulation = emulation(self.options.name, planned, self.ranks.gather)
        if self.emulation is not None and self.emulation.note:
            self.say(self.emulation.note)
        given = self.options.gpus
        self.gpus = given if given is not None else self._count_gpus(model)

    def _speak(self, *, first: bool) -> None:
        self.say = self.options.log if first else (lambda line: None)
        self.exchange = Exchange.from_env(self.say) if first else None

    def _count_gpus(self, model: Any) -> int:
        if self.emulation is not None:
            return sum(self.emulation.gpus.values())
        if torch.cuda.is_available():
            # DataParallel spreads one process over several GPUs.
            return self.ranks.size * len(getattr(model, "device_ids", None) or [0])
        return len(node_gpus(os.environ)) if self.ranks.size == 1 else self.ranks.size
