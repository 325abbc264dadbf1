"""An ordinary PyTorch loop that resumes where it was, on whatever GPUs it finds.

::

    run = Training(model, optimizer, dataset_size=len(x), epochs=3, batch=64, path="run.pt")
    for batch in run:
        run.backward(loss_of(model(x[batch.indices]), y[batch.indices]))
        run.step()
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import batches, checkpoint, samples
from slurm_hadar.runtime.checkpoint_store import CheckpointStore, State, stateful_parts
from slurm_hadar.runtime.core import SessionCore, TrainingOptions
from slurm_hadar.runtime.keywords import takes
from slurm_hadar.runtime.leaving import fail_at_exit, own_the_folder_of_workers
from slurm_hadar.runtime.noise import NoiseScale
from slurm_hadar.runtime.planned_batch import ChosenBatch
from slurm_hadar.runtime.samples import Segment
from slurm_hadar.runtime.save_and_leave import TrainingSteering
from slurm_hadar.runtime.stores import has_shards, open_store


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward and backward pass of this process.

    ``indices``: (n,) int64, the samples' indices in the data set. ``weight``: their share of the
    global batch. ``last``: this pass ends the global batch, so :meth:`Training.step` will change
    the parameters. ``ends_epoch``: and with it the epoch.
    """

    indices: torch.Tensor
    weight: float
    epoch: int
    last: bool
    ends_epoch: bool


class Training:
    """Model, optimizer and position in the data, saved and restored together.

    ``dataset_size`` and ``epochs`` (or ``samples``) say how much work there is; ``batch`` is the
    global batch in samples, fixed or a range ``(least, most)`` within which a plan may choose; the
    optimizer's learning rate belongs to the least, and follows by ``learning_rate`` (see
    :func:`slurm_hadar.runtime.batches.rate_factor`). ``per_gpu`` is the most samples that one GPU
    takes in a pass; by default what it took in the first attempt. More GPUs or fewer never change
    the global batch.

    ``path`` is the checkpoint, written every ``every_s`` seconds, on the signal (``signal``, else
    ``HADAR_SIGNAL``, else USR2), when a plan asks, on TERM (then the process exits with 143) and
    at the end; always between two iterations of the loop, so that all of the loop's body counts for
    the iteration that ended. The attempt takes over from earlier ones when the loop begins. A loss
    or parameter that is not finite is reported and never saved; with ``nonfinite="end"`` it ends
    the process with exit code 1.

    ``scheduler`` is stepped per ``schedule`` (``"epoch"`` or ``"step"``); ``scaler`` is that of
    mixed precision. ``also`` is anything else with ``state_dict`` and ``load_state_dict``, by name.
    ``seed`` sets the order of the samples. ``name`` is the model's name in the profiles, ``gpus``
    how many it trains on where that cannot be seen. ``trusted`` reads a checkpoint with objects
    other than tensors and plain values, which may run code. ``log`` is called with each message;
    by default they go to stderr.

    Raises UsageError for arguments that make no sense or do not fit the checkpoint, HadarError for
    a checkpoint that cannot be read.
    """

    @takes(TrainingOptions)
    def __init__(self, options: TrainingOptions) -> None:
        model, optimizer, scheduler = options.model, options.optimizer, options.scheduler
        batch, seed, schedule = options.batch, options.seed, options.schedule
        low, high = (batch, batch) if isinstance(batch, int) else batch
        if not 0 < low <= high:
            raise UsageError(f"batch={batch}: a number above 0, or a range (least, most)")
        if options.dataset_size < 1 or seed < 0 or schedule not in ("epoch", "step"):
            raise UsageError("dataset_size >= 1, seed >= 0, schedule 'epoch' or 'step' are needed")
        self.total = options.work
        """Samples of all the work."""
        self._model, self._optimizer, self._scheduler = model, optimizer, scheduler
        self._scaler, self._schedule = options.scaler, schedule
        core = self._core = SessionCore(options)
        core.join()
        self._signals, self._ranks = core.signals, core.ranks
        spread = has_shards(model)
        _check_wrapped(model, self._ranks.size, spread)
        core.find_gpus(model)
        self.gpus = core.gpus
        """GPUs that train together."""
        self._per_gpu = options.per_gpu
        per_gpu = self._per_gpu or -(-low // max(1, self.gpus))
        self._state = State(options.dataset_size, seed, low, per_gpu)
        parts = stateful_parts(model, optimizer, scheduler, self._scaler, options.also or {})
        store = open_store(options.checkpoint, parts, core, trusted=options.trusted)
        self._random: dict[str, Any] | None = None
        self._load(store)
        # Of a sharded model no process has the gradients of its own samples alone.
        self._noise = _noise_scale(core, optimizer, active=low < high and not spread)
        chosen = ChosenBatch(low, high, optimizer, scheduler, options.learning_rate)
        self._steering = TrainingSteering(core, self._state, store, chosen, self._noise)
        self._store = store
        self._current: Batch | None = None
        self._had_backward = False
        self._stepped: tuple[int, bool] | None = None
        self._digest = self._digests = 0

    @property
    def samples(self) -> int:
        """Samples in the lineage of the parameters."""
        return self._state.samples

    @property
    def epoch(self) -> int:
        """The epoch that the next sample belongs to."""
        return self._state.samples // self._state.dataset_size

    @property
    def batch(self) -> int:
        """The global batch, samples."""
        return self._state.batch

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale, samples; None while unknown, and where ``batch`` is fixed."""
        return self._noise.scale()

    @property
    def attempt(self) -> int:
        """1 for a fresh start, one more with each resume."""
        return self._state.attempt

    @property
    def lost(self) -> int:
        """Samples that were trained after a checkpoint and undone by a kill, as far as is known."""
        return self._state.lost

    @property
    def segments(self) -> list[Segment]:
        """What went into the parameters so far."""
        return list(self._state.segments)

    def __iter__(self) -> Iterator[Batch]:
        """The passes that are still to do; ends when all work is done."""
        try:
            self._signals.install()
            self._steering.take_over(lambda: self._load(self._store))
            if self._random is not None:
                gpus = f"{self.gpus} GPU{'s' * (self.gpus != 1)}"
                self._core.say(
                    f"resumed at {self.samples} samples (attempt {self.attempt}, {gpus})"
                )
            self._restore_random()
            self._steering.begin()
            while self.samples < self.total and not self._state.stopped:
                yield from self._step_passes()
            self._steering.finish()
        finally:
            self._signals.restore()

    def _restore_random(self) -> None:
        """Late, so that what is drawn between making the training and its loop does not matter."""
        if self._random is not None and self._ranks.first:
            checkpoint.restore_random(self._random)
        elif self._random is not None:
            # Rank 0's state alone is kept: the number of processes may be another now.
            seed = (self._state.seed << 40) + (self._state.samples << 10) + self._ranks.rank
            torch.manual_seed(seed % 2**63)
        self._random = None

    def _step_passes(self) -> Iterator[Batch]:
        position = self.samples % self._state.dataset_size
        size, epoch = self._size(self.samples), self.epoch
        self._digests = 0
        for indices, part in self._passes_from(self.samples):
            self._digest = samples.digest(indices.numpy()) if part.weight else 0
            if self._ranks.size > 1:
                # What DistributedDataParallel.no_sync() sets: exchange gradients once.
                self._model.require_backward_grad_sync = part.last
            self._had_backward = False
            ends_epoch = part.last and position + size == self._state.dataset_size
            self._current = Batch(indices, part.weight, epoch, part.last, ends_epoch)
            yield self._current
            if self._current is not None:
                raise UsageError("call step() after backward(), in every round of the loop")
            if self._stepped is not None:
                # Only now: what the loop's body did after step() belongs to this iteration.
                (size, last), self._stepped = self._stepped, None
                self._steering.boundary(size, must_agree=last)

    def load(self, dataset: Any, **options: Any) -> Iterator[tuple[Batch, Any]]:
        """The passes with their data, through a torch ``DataLoader`` made with ``options``.

        Workers read ahead; what they read but the loop did not train is not counted.
        """
        planned: deque[torch.Tensor] = deque()
        loader: Iterator[Any] = iter(())
        for batch in self:
            if not planned or not torch.equal(planned[0], batch.indices):
                planned = deque(self._ahead(batch.indices))
                made: Any = torch.utils.data.DataLoader(
                    dataset,
                    batch_sampler=[indices.tolist() for indices in planned],
                    # A generator of its own: the global one must not depend on restarts.
                    generator=torch.Generator().manual_seed(self._state.seed + self.samples),
                    **options,
                )
                own_the_folder_of_workers(made)
                loader = iter(made)
            planned.popleft()
            yield batch, next(loader)

    def backward(self, loss: Any) -> None:
        """Add the gradients of ``loss``, the mean over the samples of the pass."""
        if self._current is None:
            raise UsageError("backward() belongs inside the loop over the training")
        factor = self._current.weight * self._ranks.size
        if factor != 1.0:
            loss = loss * factor
        if self._scaler is None:
            # A scaler skips the step of such a loss, and the parameters stay as they were.
            self._steering.loss.note(loss)
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()
        part, done = self._current, self.samples
        self._noise.after(done, self._size(done), part.weight, part.last, self._scaler)
        self._had_backward = True

    def step(self) -> None:
        """End the pass; the last one of a global batch changes the parameters.

        Nothing is saved here: the training saves, reports its progress, waits and leaves when the
        loop asks for its next iteration, or ends.
        """
        batch, self._current = self._current, None
        if batch is None or not self._had_backward:
            raise UsageError("call backward() before step(), once each in every round of the loop")
        self._digests += self._digest
        if not batch.last:
            return
        # Only now: a global batch that is broken off is given to the loop again.
        self._steering.give(self._digests)
        if self._scaler is not None:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()
        self._optimizer.zero_grad()
        size = self._size(self.samples)
        self._state.samples += size
        if self._scheduler is not None and (self._schedule == "step" or batch.ends_epoch):
            self._scheduler.step()
        self._steering.loss.step()
        self._stepped = size, batch.ends_epoch or self.samples >= self.total

    def save(self) -> bool:
        """Save now, after step(); in every process alike. Whether the disk took it.

        Raises Superseded (the process ends with 77) where a later attempt has taken over.
        """
        saved = self._steering.save()
        self._steering.forget_saved()
        if saved:
            fail_at_exit(0)
        return saved

    def stop(self) -> None:
        """End the training after this iteration, for good (early stopping); in every process alike.

        Leave the loop this way rather than with ``break``, after which nothing more is saved.
        """
        self._state.stopped = True

    def _size(self, done: int) -> int:
        """The global batch after ``done`` samples; an epoch's last one may be smaller."""
        rest = self._state.dataset_size - done % self._state.dataset_size
        return min(self._state.batch, rest, self.total - done)

    def _passes_from(self, done: int) -> Iterator[tuple[torch.Tensor, batches.BatchPart]]:
        """The passes of this process over the global batch after ``done`` samples."""
        epoch, position = divmod(done, self._state.dataset_size)
        order = self._order(epoch)
        limit = max(1, self._state.per_gpu * max(1, self.gpus) // self._ranks.size)
        size = self._size(done)
        limit = self._noise.limit(done, size, limit)
        for part in batches.split(size, self._ranks.rank, self._ranks.size, limit):
            yield order[position + part.start : position + part.stop], part

    def _ahead(self, first: torch.Tensor) -> Iterator[torch.Tensor]:
        """Indices of the passes from ``first`` to the end of the epoch."""
        done, epoch = self.samples, self.epoch
        seen = False
        while done < self.total and done // self._state.dataset_size == epoch:
            for indices, _ in self._passes_from(done):
                seen = seen or torch.equal(indices, first)
                if seen:
                    yield indices
            done += self._size(done)

    _known: tuple[int, torch.Tensor] | None = None

    def _order(self, epoch: int) -> torch.Tensor:
        if self._known is None or self._known[0] != epoch:
            order = samples.order(self._state.seed, epoch, self._state.dataset_size)
            self._known = epoch, torch.from_numpy(order)
        return self._known[1]

    def _load(self, store: CheckpointStore) -> None:
        """Restore the checkpoint, if there is one."""
        state = self._state
        exchange = self._core.exchange
        before = exchange.before if exchange else None
        self._random = store.load_after(state, before)
        if state.ahead:
            raise UsageError(
                f"checkpoint {store.path} holds copies' work with gaps in it; go on with Copies"
            )
        state.per_gpu = self._per_gpu or state.per_gpu


def _check_wrapped(model: Any, processes: int, spread: bool) -> None:
    """Raises UsageError for several processes whose gradients are not averaged."""
    if processes > 1 and type(model).__name__ != "DistributedDataParallel" and not spread:
        raise UsageError(
            f"{processes} processes train together: wrap the model in "
            "torch.nn.parallel.DistributedDataParallel, or shard it by fully_shard"
        )


def _noise_scale(core: SessionCore, optimizer: Any, *, active: bool) -> NoiseScale:
    before = core.exchange.before if core.exchange else None
    return NoiseScale(
        optimizer,
        core.ranks.size,
        first=core.ranks.first,
        active=active,
        before=before.noise_scale if before else None,
    )
