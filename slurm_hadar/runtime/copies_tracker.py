"""The tracker of HadarE: divides a round over the copies, averages them, keeps the account."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from slurm_hadar.exchange.job_side import seconds
from slurm_hadar.runtime import copies_ledger
from slurm_hadar.runtime.copies_flat import Flat, reset_state, weighted
from slurm_hadar.runtime.copies_link import Link, TrackerLink
from slurm_hadar.runtime.copies_messages import CopyReport, RoundOrder
from slurm_hadar.runtime.copies_rates import LearningRates
from slurm_hadar.runtime.copies_save_and_leave import CopiesSteering
from slurm_hadar.runtime.copies_settings import CopiesOptions

_PROBE_S = 2.0
"""Longest first round, in which the speeds are not known yet."""
_HURRY_S = 3.0
"""How long the copies are waited for when the job has to leave."""
_NEWCOMER_S = 60.0
"""How long a copy that never reported may be late: it may still be reading its data."""
_MOST_EPOCHS = 200
"""A round's account must fit into one message."""
_REPEAT = 0.5
"""Share of the newest measurement in a speed."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """The first copy, which the tracker steps and averages. ``flat`` is None where there is one
    copy only; ``gpus``: its own."""

    flat: Flat | None
    optimizer: Any
    scheduler: Any
    gpus: int


class Tracker:
    """Rank 0. ``weights`` of the copies in the average, by the samples that they trained."""

    def __init__(
        self,
        link: Link,
        first: Tracked,
        steering: CopiesSteering,
        settings: CopiesOptions,
        weights: Callable[[Sequence[int]], list[float]],
    ) -> None:
        flat, optimizer, ledger = first.flat, first.optimizer, steering.ledger
        self._flat, self._ledger, self._steering = flat, ledger, steering
        self._optimizer, self._scheduler, self._settings = optimizer, first.scheduler, settings
        self._weights = weights
        groups = len(optimizer.param_groups)
        self._link = None
        if flat is not None:
            self._link = TrackerLink(link, groups, len(flat.vector), flat.vector.dtype)
            self._spare = flat.vector.copy()
        self._size = link.size
        self._speeds: dict[int, float] = {}
        self._gpus = {0: first.gpus}
        self._rates = LearningRates(optimizer.param_groups, steering.batch, ledger.done)
        self.rounds, self._cost_s, self._stepped = 0, 0.0, self._due_steps()
        self._counts: dict[int, int] = {}
        self._began, self._deadline = 0.0, 0.0
        self._base: list[float] = []

    def begin_round(self) -> RoundOrder:
        """Send the copies their parts; the tracker's own part."""
        began = time.monotonic()
        self.rounds += 1
        ranks = [0]
        if self._link is not None:
            self._link.collect(-1, (), lambda: 0.0)
            ranks += sorted(self._link.ready)
        speeds, probe = self._known_speeds(ranks)
        left = self._ledger.total - self._ledger.done
        least = max(self._settings.least, len(ranks))
        if probe:
            number = min(left, least)
        else:
            number = copies_ledger.round_samples(
                sum(speeds),
                left,
                least,
                self._cost_s + self._steering.save_s,
                self._settings,
            )
            number = min(number, _MOST_EPOCHS * self._steering.dataset_size)
        if self._link is None:
            number = min(left, self._to_whole_batches(number))
        counts = copies_ledger.divide(number, speeds)
        parts = copies_ledger.deal(self._ledger.take(number), counts)
        counts = [copies_ledger.length(part) for part in parts]
        self._counts = dict(zip(ranks, counts, strict=True))
        expected = max(count / speed for count, speed in zip(counts, speeds, strict=True))
        soft = min(_PROBE_S, self._settings.round_s) if probe else 1.25 * expected + 0.25
        if self._link is None:
            # No other copy waits for it.
            soft = inf
        step_s = 0.0 if probe else max(self._steering.batch / speed for speed in speeds)
        slack = _NEWCOMER_S if probe else 1.0 + 3 * step_s + 10 * self._cost_s
        self._base = [float(group["lr"]) for group in self._optimizer.param_groups]
        rates = [
            rate * self._settings.factor(factor)
            for rate, factor in zip(self._base, self._rates.factors(counts), strict=True)
        ]
        pause = seconds(os.environ, "HADAR_PAUSE_S", 10.0)
        patience = max(120.0, pause + 4 * (soft + slack + self._settings.round_s))
        orders = [RoundOrder(self.rounds, part, rates, soft, patience) for part in parts]
        if self._link is not None and self._flat is not None:
            vector = self._flat.pack() if self.rounds == 1 else self._flat.vector
            for rank, order in zip(ranks[1:], orders[1:], strict=True):
                if order.ranges:
                    self._link.order(rank, order, vector)
            self._link.flush()
        self._began = time.monotonic()
        self._sent_s = self._began - began
        self._deadline = self._began + soft + slack
        return orders[0]

    def _to_whole_batches(self, number: int) -> int:
        """So many samples, or a few more: a round that ends within a batch would make an update
        that a training alone does not make."""
        end, size = self._ledger.done + number, self._steering.dataset_size
        inside = end % size
        return number + min(-inside % self._steering.batch, size - inside)

    def end_round(self, own: CopyReport) -> None:
        """Wait for the copies, average, account; may raise SystemExit after TERM."""
        for group, rate in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = rate
        reports = {0: own}
        if self._link is not None and self._flat is not None:
            wanted = [rank for rank in self._counts if rank and self._counts[rank]]
            found = self._link.collect(self.rounds, wanted, self._until)
            began = time.monotonic()
            reports |= {rank: report for rank, (report, _) in found.items()}
            self._average(own, {rank: found[rank] for rank in found if found[rank][0].samples})
            spent = time.monotonic() - began + 2 * self._sent_s
            self._cost_s = spent if self._cost_s == 0 else 0.5 * (self._cost_s + spent)
        for rank, report in reports.items():
            self._gpus[rank] = report.gpus
            if report.samples and report.seconds > 0:
                speed = report.samples / report.seconds
                before = self._speeds.get(rank, speed)
                self._speeds[rank] = before + _REPEAT * (speed - before)
        pieces = [piece for report in reports.values() for piece in report.pieces]
        gpus = sum(self._gpus[rank] for rank in reports)
        self._ledger.record(pieces, gpus)
        self._rates.trained([report.samples for report in reports.values()])
        self._step_scheduler()
        size = sum(report.samples for report in reports.values())
        self._steering.round_over(size, gpus, self._settings.every_s)

    def end(self) -> None:
        """Send the copies away."""
        if self._link is not None:
            self._link.end()

    @property
    def speeds(self) -> dict[int, float]:
        """Measured samples/s by rank."""
        return dict(self._speeds)

    def _average(self, own: CopyReport, found: dict[int, tuple[CopyReport, Any]]) -> None:
        assert self._flat is not None
        if self._settings.optimizer_state == "reset":
            reset_state(self._optimizer)
        vector = self._flat.pack()
        if not found:
            return
        counts = [own.samples, *(report.samples for report, _ in found.values())]
        vectors = [vector, *(result for _, result in found.values())]
        weighted(vectors, self._weights(counts), vector, self._spare)
        self._flat.unpack()

    def _known_speeds(self, ranks: list[int]) -> tuple[list[float], bool]:
        """Samples/s of ``ranks``, and whether any of them is but a guess."""
        known = {rank: self._speeds[rank] for rank in ranks if rank in self._speeds}
        shares = self._settings.shares or self._steering.planned_shares(self._size)
        guess = dict.fromkeys(ranks, 1.0)
        if len(shares) == self._size:
            guess = {rank: shares[rank] for rank in ranks}
        scale = sum(known.values()) / sum(guess[rank] for rank in known) if known else 1.0
        if self._settings.shares:
            # Given by the user: not to be measured.
            fastest = max(known.values(), default=1.0) / max(guess.values())
            return [guess[rank] * fastest for rank in ranks], not known
        speeds = [known.get(rank, guess[rank] * scale) for rank in ranks]
        return speeds, len(known) < len(ranks)

    _hurried = 0

    def _until(self) -> float:
        if self._link is not None and self._steering.urgent():
            if self._hurried != self.rounds:
                self._hurried = self.rounds
                self._link.hurry(self.rounds, self._link.missing - self._link.lost)
                self._deadline = min(self._deadline, time.monotonic() + _HURRY_S)
        else:
            self._steering.tick()
        return self._deadline

    def _due_steps(self) -> int:
        unit = self._steering.dataset_size
        if self._settings.schedule == "step":
            unit = self._steering.batch
        return self._ledger.done // unit

    def _step_scheduler(self) -> None:
        due = self._due_steps()
        if self._scheduler is not None:
            for _ in range(due - self._stepped):
                self._scheduler.step()
        self._stepped = due
