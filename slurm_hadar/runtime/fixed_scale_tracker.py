"""The tracker of a training with a fixed global batch: deals tasks, sums gradients, accounts."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from slurm_hadar.domain.dealing import deal
from slurm_hadar.domain.dealing import seconds as seconds_of
from slurm_hadar.runtime import copies_ledger
from slurm_hadar.runtime.copies_ledger import Piece, Range
from slurm_hadar.runtime.copies_messages import CopyReport, RoundOrder
from slurm_hadar.runtime.copies_tracker import Tracker
from slurm_hadar.runtime.fixed_scale_gradients import Gradients

_NEWCOMER_S = 60.0
"""How long a copy that never reported may be late: it may still be reading its data."""
_LATE_S = 2.0
"""How long another copy is waited for beyond twice the expected time."""
_QUIET_S = 120.0
"""Least time that a copy waits for the next order."""
_REPEAT = 0.5
"""Share of the newest measurement in a speed."""


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
