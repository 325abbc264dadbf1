"""Copies of one model on several nodes of any GPU types, averaged after each round (HadarE).

::

    run = Copies(model, optimizer, dataset_size=len(x), epochs=3, batch=64, path="run.pt")
    for batch in run:
        run.backward(loss_of(model(x[batch.indices]), y[batch.indices]))
        run.step()

One process per node, launched with :mod:`slurm_hadar.runtime.copies_launch`; alone it is an
ordinary training. HadarE: arXiv 2503.10918, the tracker as recalled.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.checkpoint_store import CheckpointStore, State, stateful_parts
from slurm_hadar.runtime.copies_data import Orders, RoundPart
from slurm_hadar.runtime.copies_flat import Flat, reset_state
from slurm_hadar.runtime.copies_ledger import Ledger
from slurm_hadar.runtime.copies_link import CopyLink, Link
from slurm_hadar.runtime.copies_messages import CopyReport, RoundOrder
from slurm_hadar.runtime.copies_save_and_leave import CopiesSteering, resume
from slurm_hadar.runtime.copies_settings import CopiesOptions
from slurm_hadar.runtime.copies_tracker import Tracked, Tracker
from slurm_hadar.runtime.core import SessionCore
from slurm_hadar.runtime.keywords import takes
from slurm_hadar.runtime.leaving import LeftOnTerm
from slurm_hadar.runtime.samples import Segment
from slurm_hadar.runtime.signals import Signals
from slurm_hadar.runtime.training import Batch


class Copies:
    """Like :class:`~slurm_hadar.runtime.training.Training`, as copies that are averaged.

    ``batch``: samples of one step of one copy, as one run alone would have it.

    Rounds are ``round_epochs`` epochs long, longer where averaging and saving would take more than
    ``overhead`` of the time, at most ``round_s`` seconds. ``shares``: fixed shares of the copies in
    the order of ranks; else speeds are measured, and the plan's shares are the first guess.

    ``learning_rate``: ``auto`` multiplies it by 1 / sum of the squared shares, and by more while
    momentum comes up (see :class:`.copies_rates.Rates`), ``sqrt`` by the root of that, ``none``
    leaves it, or a function of that factor. ``optimizer_state``: ``average`` (the checkpoint then
    fits any number of copies), ``local`` or ``reset``.

    ``every_s``: least seconds between two checkpoints, which are written at the end of a round and
    take 5% of the time at most. The scheduler is stepped between rounds. Rank 0 alone reads and
    writes the checkpoint; to make this object takes over from earlier attempts. The rest is as in
    Training.

    Raises UsageError for arguments that make no sense or do not fit the checkpoint, HadarError for
    a checkpoint that cannot be read.
    """

    _tracks: Callable[..., Tracker] = Tracker

    @takes(CopiesOptions)
    def __init__(self, options: CopiesOptions) -> None:
        total, batch = options.work, options.batch
        self._model, self._optimizer = options.model, options.optimizer
        self._state_rule = options.optimizer_state
        core = SessionCore(options)
        self._signals: Signals = core.signals
        self._link = Link()
        options.check_shares(self._link.size)
        self.copies = self._link.size
        """Processes that were started, this one included."""
        self.first = self._link.first
        """Whether this process keeps the checkpoint and should print the results."""
        core.join_copies(first=self.first)
        core.find_gpus(self._model, nodes=())
        self._emulation, self._exchange = core.emulation, core.exchange
        self.gpus = core.gpus
        """GPUs of this copy."""
        self._state = State(options.dataset_size, options.seed, batch, batch)
        self._random: dict[str, Any] | None = None
        self._tracker: Tracker | None = None
        self._ledger = Ledger(self._state, total)
        if self.first:
            self._begin_tracker(core, options)
        else:
            self._flat = self._make_flat()
        self._current: Batch | None = None
        self._orders = Orders(options.seed, options.dataset_size)
        self._idle_since = time.monotonic()

    def _begin_tracker(self, core: SessionCore, options: CopiesOptions) -> None:
        scheduler = options.scheduler
        parts = stateful_parts(self._model, self._optimizer, scheduler, None, options.also or {})
        store = CheckpointStore(options.checkpoint, parts, core.say, trusted=options.trusted)
        self._random = resume(self._ledger, store, core.exchange, self._link.size, core.say)
        self._steering = CopiesSteering(core, self._ledger, store)
        # Made only now: the checkpoint brought the optimizer's state.
        self._flat = self._make_flat()
        self._tracker = self._tracks(
            self._link,
            Tracked(self._flat, self._optimizer, scheduler, core.gpus),
            self._steering,
            options,
            self._weights,
        )

    @property
    def samples(self) -> int:
        """Samples in the lineage; this and what follows is known to the first process only."""
        return self._ledger.done

    @property
    def segments(self) -> list[Segment]:
        """What went into the parameters so far."""
        return list(self._state.segments)

    @property
    def attempt(self) -> int:
        """1 for a fresh start, one more with each resume."""
        return self._state.attempt

    @property
    def lost(self) -> int:
        """Samples that kills undid, as far as is known."""
        return self._state.lost

    @property
    def speeds(self) -> dict[int, float]:
        """Measured samples/s by rank."""
        return self._tracker.speeds if self._tracker else {}

    @property
    def rounds(self) -> int:
        """Rounds of this attempt."""
        return self._tracker.rounds if self._tracker else 0

    def __iter__(self) -> Iterator[Batch]:
        """This copy's passes; ends when all work of all copies is done."""
        try:
            if self._tracker is not None:
                yield from self._track(self._tracker)
            else:
                yield from self._follow()
        finally:
            self._signals.restore()

    def _track(self, tracker: Tracker) -> Iterator[Batch]:
        if self._random is not None:
            checkpoint.restore_random(self._random)
        try:
            self._steering.begin()
            while self._ledger.done < self._ledger.total and not self._state.stopped:
                order = tracker.begin_round()
                report = yield from self._train(order, self._steering.urgent)
                tracker.end_round(report)
            self._steering.finish()
        finally:
            tracker.end()

    def _follow(self) -> Iterator[Batch]:
        assert self._flat is not None
        link = CopyLink(self._link, len(self._optimizer.param_groups), self.gpus)
        torch.manual_seed((self._state.seed << 20) + self._link.rank)

        def stop() -> bool:
            # The tracker has the signal too, and decides what comes of it.
            return self._signals.leave or self._signals.asked or link.hurried()

        while not (order := link.next_order(self._flat.vector)).stop:
            self._flat.unpack()
            if self._state_rule == "reset":
                reset_state(self._optimizer)
            self._signals.asked = False
            report = yield from self._train(order, stop)
            link.report(report.pieces, report.seconds, self._flat.pack())
        link.end()
        if self._signals.leave:
            raise LeftOnTerm

    def _begin_emulation(self, now: float) -> None:
        """Time between the rounds counts as no step's."""
        if self._emulation is not None:
            if self._emulation_began:
                self._emulation.shift(now - self._idle_since)
            else:
                self._emulation.start()
            self._emulation_began = True

    def _train(
        self, order: RoundOrder, stop: Callable[[], bool]
    ) -> Generator[Batch, None, CopyReport]:
        """Train the ranges of ``order``, or as much as there is time for; returns the Report."""
        began = time.monotonic()
        self._begin_emulation(began)
        for group, rate in zip(self._optimizer.param_groups, order.rates, strict=False):
            group["lr"] = rate
        part = RoundPart(self._orders, order.ranges, self._state.batch)
        for step in range(part.steps):
            indices, epoch = part.indices(step)
            self._had_backward = False
            self._current = Batch(indices, 1.0, epoch, True, False)
            yield self._current
            if self._current is not None:
                raise UsageError("call step() after backward(), in every round of the loop")
            size = part.advance()
            if self._emulation is not None:
                self._emulation.hold(size, stop)
            if self.first:
                self._steering.tick()
            if stop() or time.monotonic() - began >= order.soft_s:
                break
        self._idle_since = time.monotonic()
        return CopyReport(order.round, part.pieces(), self._idle_since - began, self.gpus)

    _emulation_began = False
    _had_backward = False

    def backward(self, loss: Any) -> None:
        """Add the gradients of ``loss``, the mean over the samples of the pass."""
        if self._current is None:
            raise UsageError("backward() belongs inside the loop over the copies")
        if self._tracker is not None:
            self._steering.loss.note(loss)
        loss.backward()
        self._had_backward = True

    def step(self) -> None:
        """End the pass and change this copy's parameters."""
        batch, self._current = self._current, None
        if batch is None or not self._had_backward:
            raise UsageError("call backward() before step(), once each in every round of the loop")
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._tracker is not None:
            self._steering.loss.step()

    def stop(self) -> None:
        """End the training after this round, for good; called by the first process."""
        self._state.stopped = True

    def _make_flat(self) -> Flat | None:
        if self._link.size == 1:
            return None
        return Flat(self._model, self._optimizer, with_state=self._state_rule == "average")

    def _weights(self, counts: Sequence[int]) -> list[float]:
        """Weights of the copies in the average, from the samples that they trained."""
        return [count / sum(counts) for count in counts]
