"""A loop of your own that Slurm may move: it keeps its loader, its sampler and its optimizer.

::

    session = Session("run.pt", model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in session.epochs(90):
        for x, y in session.batches(loader):
            ...                               # the loop's body as it was

The session saves and leaves between two batches. A loop that saves by its own code asks instead::

    session = Session(samples=loaded["samples"])
    for x, y in loader:
        ...
        session.progress(len(x))
        if session.should_save():
            save_my_checkpoint()
            session.saved()
        if session.should_leave():
            session.leave()
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.checkpoint_store import State
from slurm_hadar.runtime.core import SessionCore, SessionOptions
from slurm_hadar.runtime.leaving import fail_at_exit
from slurm_hadar.runtime.own_loop import (
    LoaderPlace,
    OwnLoopSteering,
    as_part,
    restore_random,
    samples_in,
)
from slurm_hadar.runtime.stores import open_store

_PLACE = "session"


@dataclass(frozen=True, kw_only=True)
class OwnLoopOptions(SessionOptions):
    """And what only :class:`Session` takes. Raises UsageError for what makes no sense."""

    sharded: bool | None = None
    background: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.background and self.sharded is False:
            raise UsageError("background=True writes shards, which sharded=False forbids")


_OPTIONS = {field.name for field in fields(OwnLoopOptions)}


class Session:
    """One attempt of a training whose loop is its own; the same outside Slurm.

    ``path``: the checkpoint, which the session writes and reads. Each further keyword is a part of
    it, by a name of your choice: anything with ``state_dict`` and ``load_state_dict``, a dict of
    plain values (restored in its place), or a ``torch.Generator``. A model is kept without
    ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel`` around it. The random
    states of Python, NumPy and PyTorch are kept as well. Without ``path`` the loop saves by its own
    code, and ``samples`` is how many its own checkpoint had trained.

    Options, as in :class:`slurm_hadar.runtime.Training`: ``name`` of the model in the profiles,
    ``every_s`` seconds between two saves (600), ``signal``, ``gpus``, ``nonfinite``, ``log``,
    ``trusted``. ``sharded``: whether the processes write the tensors of models and optimizers into
    shards of one checkpoint, which any number of them reads (default: where a model is spread over
    the processes by ``fully_shard``, or the checkpoint has shards). ``background``: the saves every
    ``every_s`` seconds are written in shards while the training goes on, from a copy.

    To make it takes over from earlier attempts and restores the newest checkpoint: make it last
    before the loop, with all parts as they are at the start. Raises UsageError for a part that
    cannot be kept, an unknown signal, a path that cannot be written, or a checkpoint of another
    training; HadarError for one that cannot be read; Superseded (exit code 77) where a later
    attempt has taken over.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        samples: int = 0,
        trusted: bool = False,
        **parts: Any,
    ) -> None:
        options = OwnLoopOptions(**{key: parts.pop(key) for key in _OPTIONS & set(parts)})
        if _PLACE in parts:
            raise UsageError(f"{_PLACE}=...: this name is taken; choose another")
        if path is None and parts:
            raise UsageError(f"{min(parts)}=... is kept in a checkpoint: name its path first")
        kept = {key: as_part(key, part) for key, part in parts.items()}
        core = self._core = SessionCore(options)
        core.join()
        core.find_gpus(parts.get("model"))
        self._place = LoaderPlace(core.ranks.size)
        self._state = State(1, 0, 1, 1, samples)
        self._store = open_store(
            None if path is None else Path(path).absolute(),
            {**kept, _PLACE: self._place},
            core,
            trusted=trusted,
        )
        self._steering = OwnLoopSteering(core, self._state, self._store)
        self._random: dict[str, Any] | None = None
        self._before = core.exchange.before if core.exchange else None
        self._steering.take_over(self._load)
        if path is None:
            self._store.note_lost(self._state, self._before)
        self._optimizers = [
            part for part in kept.values() if hasattr(part, "register_step_post_hook")
        ]
        for optimizer in self._optimizers:
            optimizer.register_step_post_hook(self._note_step)
        self._stepped, self._reports, self._pending = False, False, 0
        self._by_epochs, self._read, self._in_body = False, -1, False
        if self._random is not None:
            gpus = f"{core.gpus} GPU{'s' * (core.gpus != 1)}"
            core.say(f"resumed at {self.samples} samples (attempt {self.attempt}, {gpus})")
            restore_random(self._random, first=core.ranks.first)
        self._steering.begin()

    @property
    def samples(self) -> int:
        """Samples in the parameters, of all processes together."""
        return self._state.samples

    @property
    def attempt(self) -> int:
        """1 for a fresh start, one more with each resume."""
        return self._state.attempt

    @property
    def batch(self) -> int:
        """Batches of this epoch that are done; with ``enumerate(session.batches(loader),
        session.batch)`` a loop counts as one that never stopped."""
        return self._place.batch

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs, 0 to ``number`` - 1, that are still to do; after the last one it saves.

        End early with :meth:`stop`: after ``break`` the end is not in the checkpoint.
        """
        self._by_epochs = True
        self._steering.begin()
        try:
            while self._place.epoch < number and not self._state.stopped:
                self._start_epoch()
                yield self._place.epoch
                self._end_epoch()
            self.finish()
        finally:
            self._core.signals.restore()

    def batches(self, loader: Any, *, global_batch: int = 0) -> "Batches":
        """The batches of ``loader`` that are still to do in this epoch; between two of them the
        session saves, reports its progress, answers and leaves.

        One loader an epoch. ``loader``: torch's DataLoader, or any iterable that gives the same
        batches again from the same random state; what was trained is read again and left out. With
        an optimizer among the parts nothing is saved before it stepped, so gradients may be
        accumulated over batches.

        Another number of processes goes on in the middle of an epoch where their batches together
        are as large as before, and are the same samples: so with torch's DistributedSampler and
        Accelerate's loaders. ``global_batch`` says this of another loader: the k-th batches of all
        processes together are the k-th ``global_batch`` samples of the epoch, by however many
        processes. Raises UsageError where it is not known.
        """
        if global_batch < 0:
            raise UsageError(f"global_batch={global_batch}: samples, 1 or more")
        return Batches(self, loader, global_batch)

    def _iterate(self, loader: Any, global_batch: int) -> Iterator[Any]:
        place, first = self._place, self._core.ranks.first
        if self._read == place.epoch:
            raise UsageError("batches() was called twice in one epoch; one loader is counted")
        self._read = place.epoch
        if not self._by_epochs:
            self._start_epoch()
        skipped = place.batch > 0
        batches = place.open(loader, global_batch)
        if skipped and self._random is not None:
            restore_random(self._random, first=first)
        self._random = None
        for batch in batches:
            size = samples_in(batch) * self._core.ranks.size
            self._in_body = True
            try:
                yield batch
            except GeneratorExit:
                # The loop was left with break, when this batch was trained: it is not read again.
                self._state.samples += self._pending + size
                self._pending, self._stepped = 0, False
                raise
            finally:
                self._in_body = False
                place.batch += 1
            self._went_in(size)
        if not self._by_epochs:
            self._end_epoch()

    def _start_epoch(self) -> None:
        """What the loop draws before its first batch is drawn again where the epoch goes on."""
        if self._place.batch and self._place.start is not None:
            restore_random(self._place.start, first=self._core.ranks.first)
        else:
            if self._random is not None:
                restore_random(self._random, first=self._core.ranks.first)
                self._random = None
            self._place.start = checkpoint.random_state()

    def _end_epoch(self) -> None:
        self._place.next_epoch()
        # A save behind the last batch does not hold what came after it, as a validation.
        self._steering.forget_saved()
        if not self._pending:
            self._steering.check()

    def _note_step(self, *_: Any) -> None:
        self._stepped = True

    def _went_in(self, size: int) -> None:
        self._pending += size
        if self._optimizers and not self._stepped:
            # Gradients are held back, or the scaler left the step out.
            return
        size, self._pending, self._stepped = self._pending, 0, False
        self._state.samples += size
        self._state.batch = max(self._state.batch, size)
        self._steering.boundary(size, must_agree=False)

    def progress(self, samples: int, loss: Any = None) -> None:
        """``samples`` of all processes went into the parameters since the last call; after each
        step, in every process alike, where the loop does not use :meth:`batches`.

        ``loss``: is looked at for NaN and infinity every few seconds. Raises Superseded.
        """
        if samples < 0:
            raise UsageError(f"progress({samples}): samples since the last call, 0 or more")
        self._state.samples += samples
        self._state.batch = max(self._state.batch, samples)
        if loss is not None:
            self._steering.loss.note(loss)
            self._steering.loss.step()
        self._steering.progress(samples)
        self._reports = True

    def should_save(self) -> bool:
        """Whether to save now: Slurm or the controller asked, ``every_s`` is over, or the process
        is to leave. The same in all processes."""
        self._look()
        return self._steering.wants_save

    def saved(self) -> None:
        """The loop's own code has saved. Where a move asked for it this waits for the move, ten
        seconds at most, rather than train in vain."""
        self._steering.saved_by_user()

    def save(self) -> bool:
        """Write the checkpoint at ``path`` now; in place of your own code and :meth:`saved`, and
        behind the loop over :meth:`batches`.

        Whether the disk took it. Raises Superseded where a later attempt has taken over,
        UsageError inside that loop, which saves by itself: its batch would be trained twice.
        """
        if self._in_body:
            raise UsageError("save() inside the loop over batches(), which saves by itself")
        done = self._steering.save(moving=self._steering.asked or self._steering.leaving)
        self._steering.after_save(done)
        if done:
            fail_at_exit(0)
        return done

    def should_leave(self) -> bool:
        """Whether to call :meth:`leave` now, after a save: TERM came. The same in all
        processes."""
        self._look()
        return self._steering.leaving

    def leave(self) -> None:
        """End the process with 143, so that a job with work left does not look completed."""
        self._steering.leave()

    def stop(self) -> None:
        """The training ends after this epoch, for good (early stopping); in every process alike."""
        self._state.stopped = True

    def finish(self) -> None:
        """All work is done: save, and say so. :meth:`epochs` does it by itself."""
        self._steering.finish()
        self._core.signals.restore()

    @contextlib.contextmanager
    def replacing(self, path: str | Path) -> Iterator[Path]:
        """A path to write a file of your own to, as the best model; it takes the place of ``path``
        when the block ends, whole. In the first process only.

        A stale attempt cannot do that. ``path`` must be on the checkpoint's file system. Raises
        OSError, and Superseded where a later attempt has taken over.
        """
        to, attempt = Path(path).absolute(), self._store.attempt
        folder = attempt.folder if attempt is not None else to.parent
        written = folder / f"{os.urandom(8).hex()}.{to.name}"
        try:
            yield written
            if attempt is not None:
                checkpoint.publish_file(attempt, written, to)
            else:
                checkpoint.sync(written)
                written.replace(to)
        except (OSError, RuntimeError):
            # torch reports a failing write, as into a folder that is gone, as RuntimeError.
            self._store.check_current()
            raise
        finally:
            with contextlib.suppress(OSError):
                written.unlink()

    def _look(self) -> None:
        """Ask here where the loop never calls :meth:`progress`, which asks often enough."""
        if not self._reports:
            self._steering.look()

    def _load(self) -> None:
        self._random = self._store.load_after(self._state, self._before)


class Batches:
    """What is left of a loader's epoch; ``len`` is that of the loader."""

    def __init__(self, session: Session, loader: Any, global_batch: int) -> None:
        self._session, self._loader, self._global_batch = session, loader, global_batch

    def __iter__(self) -> Iterator[Any]:
        return self._session._iterate(self._loader, self._global_batch)

    def __len__(self) -> int:
        return len(self._loader)
