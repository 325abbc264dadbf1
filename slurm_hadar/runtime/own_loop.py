"""What a loop of the user's own needs: its steering, its place in the loader, its parts."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.progress import Saved
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.finite import NOT_FINITE
from slurm_hadar.runtime.leaving import LeftOnTerm, own_the_folder_of_workers
from slurm_hadar.runtime.save_and_leave import TrainingSteering

_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "AcceleratedOptimizer": "optimizer",
    "AcceleratedScheduler": "scheduler",
}
"""Classes around a part, and where they have it: a checkpoint fits with and without them."""


class OwnLoopSteering(TrainingSteering):
    """Steers a loop that may save by its own code: it answers questions, and decides nothing.

    ``due``, ``asked`` and ``leaving`` are what was wanted when the processes agreed last.
    """

    due = asked = leaving = False
    _began_s: float | None = None

    def progress(self, size: int) -> None:
        """``size`` samples went in; raises Superseded."""
        self._count(size)
        if self._until_agreement <= 0:
            self.look()
        if self._exchange is not None and self._exchange.due():
            self._tell()

    def look(self) -> None:
        """Ask the other processes, the signals and the controller; in every process alike."""
        agreed = self._consult()
        self.asked = self.asked or agreed.asked
        self.due, self.leaving = agreed.due, self.leaving or agreed.leave

    def check(self) -> None:
        """Save, answer and leave where needed, between two epochs."""
        self._agree()

    @property
    def wants_save(self) -> bool:
        """Whether to save now; a save before leaving is wanted once."""
        unsaved = self._saved_samples != self._state.samples
        wanted = self.asked or self.due or (self.leaving and unsaved)
        if wanted and self._began_s is None:
            self._began_s = time.monotonic()
        return wanted

    def saved_by_user(self) -> None:
        """The loop's own code has saved; see :meth:`after_save`."""
        now = time.monotonic()
        took_s = now - self._began_s if self._began_s is not None else 0.0
        self._store.saved = Saved(self._state.samples, time.time() - took_s, took_s)
        self._saved_samples, self._saved_at = self._state.samples, now
        self._skip(took_s)
        self._tell()
        self.after_save(True)

    def after_save(self, saved: bool) -> None:
        """Where the save was asked for, answer, and wait for the move rather than train in vain."""
        asked, self.asked, self.due, self._began_s = self.asked, False, False, None
        if asked:
            self._signals.asked = False
            self.leaving = self._wait_for_move(saved) or self.leaving

    def leave(self) -> None:
        """Raises SystemExit, once all processes are here."""
        self._tell()
        self._ranks.wait()
        if self._ended:
            raise SystemExit(NOT_FINITE)
        raise LeftOnTerm

    def _note_samples(self, digest: int) -> None:
        # Which samples the loop read is its own affair.
        self._agreed = self._state.samples


class LoaderPlace:
    """How far a loop is in its data loader, and the random states that the epoch began with."""

    def __init__(self, processes: int) -> None:
        self.epoch = self.batch = self.length = 0
        self.start: dict[str, Any] | None = None
        self._processes = self._dealt_to = processes
        self._together = 0
        self._generators: list[Any] = []
        self._states: list[Any] = []
        self._loaded = False

    def state_dict(self) -> dict[str, Any]:
        """As plain values and tensors."""
        live = [generator.get_state() for generator in self._generators]
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "length": self.length,
            "processes": self._dealt_to,
            "together": self._together,
            "start": self.start if self.batch else None,
            "generators": self._states if self.batch or not live else live,
        }

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """What :meth:`state_dict` returned."""
        self.epoch, self.batch, self.length = kept["epoch"], kept["batch"], kept["length"]
        self.start, self._states, self._loaded = kept["start"], kept["generators"], True
        # Releases before 0.2 refused another number of processes, and did not keep it.
        self._dealt_to, self._together = kept["processes"], kept.get("together", 0)
        if self.batch and self._dealt_to != self._processes and not self._together:
            raise self._other_samples()

    def _other_samples(self) -> UsageError:
        before = self._dealt_to
        return UsageError(
            f"the checkpoint is in the middle of an epoch of {before} processes; "
            f"{self._processes} would read other samples: start as many again, declare "
            f"gpus={before}, or keep the global batch (see Session.batches)"
        )

    def next_epoch(self) -> None:
        """The epoch ended."""
        self.epoch, self.batch, self.start = self.epoch + 1, 0, None

    def open(self, loader: Any, global_batch: int = 0) -> Iterator[Any]:
        """The epoch's iterator from this place on: what was trained is read and left out, so that
        the loader's order and its random augmentation are those of a loop that never stopped.

        ``global_batch``: see :meth:`slurm_hadar.runtime.Session.batches`. Raises UsageError where
        the loader has another length than when the checkpoint was written, or would deal other
        samples to another number of processes.
        """
        together = global_batch or _global_batch(loader, self._processes)
        if self.batch and self._dealt_to != self._processes and self._together != together:
            raise self._other_samples()
        self._dealt_to, self._together = self._processes, together
        length = 0
        # The loader of an IterableDataset has no length and says so by one of these: its length
        # stays 0, then and when it resumes, and only the positions in it count.
        with contextlib.suppress(TypeError, NotImplementedError):
            length = len(loader)
        if self.batch and length != self.length:
            raise UsageError(
                f"the checkpoint is at batch {self.batch} of {self.length}, and the loader has "
                f"{length} batches now; positions in it would mean other samples"
            )
        self.length, self._generators = length, _generators(loader)
        if self._loaded:
            for generator, state in zip(self._generators, self._states, strict=False):
                generator.set_state(state)
            self._loaded = False
        self._states = [generator.get_state() for generator in self._generators]
        own_the_folder_of_workers(loader)
        batches: Iterator[Any] = iter(loader)
        for _ in range(self.batch):
            next(batches, None)
        return batches


def _global_batch(loader: Any, processes: int) -> int:
    """Samples of one batch of all processes together, where it is known that the k-th such batches
    have the k-th samples of the epoch's order, whatever the number of processes; else 0.

    torch's DistributedSampler deals single samples in turn, Accelerate's loaders batches or parts
    of them.
    """
    if type(loader).__name__ in ("DataLoaderShard", "DataLoaderDispatcher"):
        return int(getattr(loader, "total_batch_size", 0) or 0)
    sampler, size = getattr(loader, "sampler", None), getattr(loader, "batch_size", None)
    if type(sampler) is not DistributedSampler or sampler.num_replicas != processes:
        return 0
    return int(size or 0) * processes


def _generators(loader: Any) -> list[torch.Generator]:
    """The random generators of a loader's own, each once."""
    sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), sampler, getattr(sampler, "sampler", None))
    found = (getattr(owner, "generator", None) for owner in owners)
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def samples_in(batch: Any) -> int:
    """How many samples a batch of a loader has: the length of its first tensor or list."""
    while isinstance(batch, dict | list | tuple) and len(batch):
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        if not isinstance(first, dict | list | tuple) and not hasattr(first, "shape"):
            return len(batch)
        batch = first
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else 1


def as_part(name: str, value: Any) -> Any:
    """``value`` as something with ``state_dict`` and ``load_state_dict``. Raises UsageError."""
    while type(value).__name__ in _WRAPPERS:
        value = getattr(value, _WRAPPERS[type(value).__name__])
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value
    if isinstance(value, dict):
        return _Values(value)
    if isinstance(value, torch.Generator):
        return _Generator(value)
    raise UsageError(
        f"{name}=...: {type(value).__name__} has no state_dict() and load_state_dict(); hand in "
        "an object that has both, a dict, or a torch.Generator"
    )


class _Values:
    """A dict of the user's, restored in its place."""

    def __init__(self, values: dict[Any, Any]) -> None:
        self._values = values

    def state_dict(self) -> dict[Any, Any]:
        # NumPy's scalars are objects, which a checkpoint is not trusted to hold.
        plain = self._values.items()
        return {key: one.item() if isinstance(one, np.generic) else one for key, one in plain}

    def load_state_dict(self, kept: dict[Any, Any]) -> None:
        self._values.clear()
        self._values.update(kept)


class _Generator:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.get_state()}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        self._generator.set_state(kept["state"])


def restore_random(state: dict[str, Any], *, first: bool) -> None:
    """Put the generators back, in the first of the processes: the state is its own."""
    if first:
        checkpoint.restore_random(state)
