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
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slurm_hadar.domain.dealing import deal
from slurm_hadar.domain.dealing import seconds as seconds_of
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import checkpoint, copies_ledger
from slurm_hadar.runtime.copies import Copies
from slurm_hadar.runtime.copies_data import RoundPart
from slurm_hadar.runtime.copies_flat import Flat
from slurm_hadar.runtime.copies_ledger import Piece, Range
from slurm_hadar.runtime.copies_link import CopyLink
from slurm_hadar.runtime.copies_messages import CopyReport, RoundOrder
from slurm_hadar.runtime.copies_tracker import Tracker
from slurm_hadar.runtime.leaving import LeftOnTerm
from slurm_hadar.runtime.training import Batch

_NEWCOMER_S = 60.0
"""How long a copy that never reported may be late: it may still be reading its data."""
_LATE_S = 2.0
"""How long another copy is waited for beyond twice the expected time."""
_QUIET_S = 120.0
"""Least time that a copy waits for the next order."""
_REPEAT = 0.5
"""Share of the newest measurement in a speed."""
Vector = NDArray[Any]


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


class FixedTracker(Tracker):
    """Rank 0. ``tasks``: equal parts of a global batch; ``rounds`` counts steps."""

    def __init__(self, *arguments: Any, tasks: int) -> None:
        super().__init__(*arguments)
        self._tasks, self._number = tasks, 0
        self._missing: list[Range] = []
        self._pieces: list[Piece] = []
        self._step, self._done = 0, dict[int, int]()
        self.tasks: dict[int, int] = {}
        """Tasks of the present step by rank, as they were dealt first."""

    def begin_step(self) -> RoundOrder:
        """Send the copies their tasks of the next global batch; the tracker's own."""
        self.rounds += 1
        size, done = self._steering.dataset_size, self._ledger.state.samples
        rest = min(size - done % size, self._ledger.total - self._ledger.done)
        # As in Training a global batch ends with its epoch.
        self._missing = self._ledger.take(min(self._steering.batch, rest))
        self._step, self._pieces, self._done = copies_ledger.length(self._missing), [], {}
        if self._flat is not None:
            self._flat.pack()
            self._sum = np.zeros_like(self._flat.vector)
        order, self.tasks = self._send()
        return order

    def gather(self, own: CopyReport) -> RoundOrder | None:
        """Wait for the copies; what to do besides where some did not answer, None: all is in.

        The model's gradients are those of the whole global batch then.
        """
        self._note(0, own)
        if self._link is not None:
            wanted = [rank for rank, count in self._counts.items() if rank and count]
            for rank, (report, vector) in self._link.collect(
                self._number, wanted, self._patience
            ).items():
                if report.samples == self._counts[rank]:
                    self._note(rank, report)
                    np.add(self._sum, vector, out=self._sum)
        self._missing = _without(self._missing, self._pieces)
        if self._missing:
            return self._send()[0]
        scale = self._steering.batch / self._step
        if isinstance(self._flat, Gradients):
            mine = self._flat.pack_gradients(self._done[0])
            self._flat.take(np.add(self._sum, mine, out=self._sum), self._step, scale)
        elif scale != 1.0:
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(scale)
        return None

    def end_step(self) -> None:
        """The optimizer made its step: account for it; may raise SystemExit after TERM."""
        gpus = sum(self._gpus[rank] for rank, done in self._done.items() if done)
        self._ledger.record(self._pieces, gpus)
        if self._settings.schedule == "step" and self._scheduler is not None:
            self._scheduler.step()
        elif self._settings.schedule == "epoch":
            self._step_scheduler()
        self._steering.round_over(self._step, gpus, self._settings.every_s)

    def _send(self) -> tuple[RoundOrder, dict[int, int]]:
        """Deal what is missing of the step over those who are ready; the tracker's own part."""
        self._number += 1
        ranks = [0]
        if self._link is not None:
            self._link.collect(-1, (), lambda: 0.0)
            ranks += sorted(self._link.ready)
        speeds, guessed = self._known_speeds(ranks)
        left = copies_ledger.length(self._missing)
        number = max(1, min(left, -(-left * self._tasks // self._step)))
        tasks = deal(speeds, number)
        ends = [left * done // number for done in np.cumsum([0, *tasks]).tolist()]
        sizes = [end - begin for begin, end in pairwise(ends)]
        parts = copies_ledger.deal(self._missing, sizes)
        self._counts = {
            rank: copies_ledger.length(part) for rank, part in zip(ranks, parts, strict=True)
        }
        expected = 0.0 if guessed else seconds_of(speeds, sizes)
        slack = _NEWCOMER_S if guessed else _LATE_S + expected
        orders = [RoundOrder(self._number, part, patience_s=_QUIET_S) for part in parts]
        for order in orders:
            order.patience_s += 4 * (expected + slack)
        if self._link is not None and self._flat is not None:
            for rank, order in zip(ranks[1:], orders[1:], strict=True):
                if order.ranges:
                    self._link.order(rank, order, self._flat.vector)
            self._link.flush()
        self._deadline = time.monotonic() + expected + slack
        return orders[0], dict(zip(ranks, tasks, strict=True))

    def _note(self, rank: int, report: CopyReport) -> None:
        self._gpus[rank] = report.gpus
        self._pieces += report.pieces
        self._done[rank] = self._done.get(rank, 0) + report.samples
        if report.samples and report.seconds > 0:
            speed = report.samples / report.seconds
            before = self._speeds.get(rank, speed)
            self._speeds[rank] = before + _REPEAT * (speed - before)

    def _patience(self) -> float:
        self._steering.tick()
        return self._deadline


def _without(ranges: Sequence[Range], pieces: Sequence[Piece]) -> list[Range]:
    """What of these ranges (rising) no piece covers."""
    found: list[Range] = []
    for start, stop in ranges:
        for first, last, _ in sorted(pieces):
            if first < stop and last > start:
                if first > start:
                    found.append((start, first))
                start = max(start, last)
        if start < stop:
            found.append((start, stop))
    return found


class Gradients(Flat):
    """Parameters and floating-point buffers in ``vector``, and their gradients in its place.

    A vector of gradients holds what ``backward`` added up, each task weighted by its share of the
    global batch, and the buffers (statistics of batch norms) times the samples that saw them.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__(model, optimizer, with_state=False)
        self._trained = [tensor.requires_grad for tensor in self._tensors]

    def pack_gradients(self, samples: int) -> Vector:
        """(n,) of this process, from ``samples`` samples, over :attr:`vector`."""
        with torch.no_grad():
            rows = zip(self._views, self._tensors, self._trained, strict=True)
            for view, tensor, trained in rows:
                if not trained:
                    view.copy_(tensor).mul_(samples)
                elif tensor.grad is None:
                    view.zero_()
                else:
                    view.copy_(tensor.grad)
        return self.vector

    def take(self, total: Vector, samples: int, scale: float) -> None:
        """Set the gradients to ``total`` x ``scale``; the buffers to their mean over ``samples``.

        A parameter without a gradient anywhere keeps none, so that the optimizer leaves it alone.
        """
        np.copyto(self.vector, total)
        with torch.no_grad():
            rows = zip(self._views, self._tensors, self._trained, strict=True)
            for view, tensor, trained in rows:
                if not trained:
                    tensor.copy_(view / samples)
                elif tensor.grad is not None:
                    tensor.grad.copy_(view * scale)
                elif bool(view.any()):
                    tensor.grad = torch.empty_like(tensor).copy_(view * scale)
