"""One training on nodes of different GPU types with an unchanged global batch (Hare).

::

    run = FixedScale(model, optimizer, dataset_size=len(x), epochs=3, batch=512, tasks=8,
                     path="run.pt")
    for batch in run:
        run.backward(loss_of(model(x[batch.indices]), y[batch.indices]))
        run.step()

Every step is one global batch, cut into equal tasks (micro-batches), dealt over the copies so that
all are done as early as possible: a fast GPU trains several, one after another. The gradients of
all tasks are summed before the one step of the optimizer, so the parameters are those of a run on
one GPU with the same global batch, but for rounding. Relaxed fixed-scale synchronization: Chen et
al., HPDC 2022, recalled. Launched like :class:`~slurm_hadar.runtime.copies.Copies`.
"""

import time
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

import torch

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.copies import Copies
from slurm_hadar.runtime.copies_data import RoundPart
from slurm_hadar.runtime.copies_flat import Flat
from slurm_hadar.runtime.copies_link import CopyLink
from slurm_hadar.runtime.copies_messages import CopyReport, RoundOrder
from slurm_hadar.runtime.copies_tracker import Tracker
from slurm_hadar.runtime.fixed_scale_gradients import Gradients
from slurm_hadar.runtime.fixed_scale_tracker import FixedTracker
from slurm_hadar.runtime.leaving import LeftOnTerm
from slurm_hadar.runtime.training import Batch


class FixedScale(Copies):
    """Like :class:`~slurm_hadar.runtime.copies.Copies`, but ``batch`` is the **global** batch.

    ``tasks``: equal parts of a global batch, each small enough for the smallest GPU. A model whose
    layers look at the whole batch (batch norm) sees one task at a time, as with gradient
    accumulation. ``options``: those of Copies that make sense here: epochs or samples, scheduler,
    schedule, also, seed, path, every_s, shares, name, signal, gpus, trusted, log.

    Parameters go to the copies and gradients come back once per step, so a step should take
    seconds. A copy that does not answer in time is left out; its tasks are dealt anew within the
    same step. Raises UsageError for arguments that make no sense or do not fit the checkpoint,
    HadarError for a checkpoint that cannot be read.
    """

    def __init__(
        self, model: Any, optimizer: Any, *, batch: int, tasks: int, **options: Any
    ) -> None:
        if not 1 <= tasks <= batch:
            raise UsageError(f"tasks={tasks}: at least 1 and at most the global batch ({batch})")
        fixed = {"round_s", "round_epochs", "overhead", "learning_rate", "optimizer_state"}
        if unknown := sorted(fixed & set(options)):
            raise UsageError(f"{unknown[0]} is for copies that are averaged; leave it out")
        self._tracks = partial(FixedTracker, tasks=tasks)
        self._task = -(-batch // tasks)
        super().__init__(model, optimizer, batch=batch, optimizer_state="local", **options)

    def _make_flat(self) -> Flat | None:
        return Gradients(self._model, self._optimizer) if self._link.size > 1 else None

    def _track(self, tracker: Tracker) -> Iterator[Batch]:
        assert isinstance(tracker, FixedTracker)
        if self._random is not None:
            checkpoint.restore_random(self._random)
        try:
            self._steering.begin()
            while self._ledger.done < self._ledger.total and not self._state.stopped:
                order: RoundOrder | None = tracker.begin_step()
                while order is not None:
                    report = yield from self._tasks_of(order)
                    order = tracker.gather(report)
                self._optimizer.step()
                self._optimizer.zero_grad()
                self._steering.loss.step()
                tracker.end_step()
            self._steering.finish()
        finally:
            tracker.end()

    def _follow(self) -> Iterator[Batch]:
        flat = self._flat
        assert isinstance(flat, Gradients)
        link = CopyLink(self._link, len(self._optimizer.param_groups), self.gpus)
        torch.manual_seed((self._state.seed << 20) + self._link.rank)
        while not (order := link.next_order(flat.vector)).stop:
            flat.unpack()
            report = yield from self._tasks_of(order)
            link.report(report.pieces, report.seconds, flat.pack_gradients(report.samples))
            self._optimizer.zero_grad()
        link.end()
        if self._signals.leave:
            raise LeftOnTerm

    def _tasks_of(self, order: RoundOrder) -> Generator[Batch, None, CopyReport]:
        """Add up the gradients of this copy's part of a step; all of it, or the step would wait."""
        began = time.monotonic()
        self._begin_emulation(began)
        part = RoundPart(self._orders, order.ranges, self._task)
        for number in range(part.steps):
            indices, epoch = part.indices(number)
            self._had_backward = False
            weight = len(indices) / self._state.batch
            self._current = Batch(indices, weight, epoch, number + 1 == part.steps, False)
            yield self._current
            if self._current is not None:
                raise UsageError("call step() after backward(), in every round of the loop")
            size = part.advance()
            if self._emulation is not None:
                self._emulation.hold(size, lambda: self._signals.leave)
            if self.first:
                self._steering.tick()
        self._idle_since = time.monotonic()
        return CopyReport(order.round, part.pieces(), self._idle_since - began, self.gpus)

    def backward(self, loss: Any) -> None:
        """Add the gradients of ``loss``, the mean over the samples of the task."""
        if self._current is None:
            raise UsageError("backward() belongs inside the loop over the training")
        if self._tracker is not None:
            self._steering.loss.note(loss)
        (loss * self._current.weight).backward()
        self._had_backward = True

    def step(self) -> None:
        """End the task. The optimizer's step comes when all tasks of the global batch are in."""
        batch, self._current = self._current, None
        if batch is None or not self._had_backward:
            raise UsageError("call backward() before step(), once each in every round of the loop")
