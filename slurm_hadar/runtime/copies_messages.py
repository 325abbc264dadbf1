"""What the tracker and the copies say to each other, as arrays of whole numbers."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slurm_hadar.runtime.copies_ledger import MOST_RANGES, Piece, Range

MOST_PIECES = 512
FIRST_PATIENCE_S = 300.0
_HEAD = 6

Words = NDArray[np.uint64]


@dataclass(slots=True)
class RoundOrder:
    """A copy's part of a round; ``stop``: there is nothing left to do.

    ``rates``: learning rate of each parameter group. ``soft_s``: end at the first step after that
    many seconds, done or not. ``patience_s``: how long to wait for the next order.
    """

    round: int
    ranges: list[Range] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    soft_s: float = 0.0
    patience_s: float = FIRST_PATIENCE_S
    stop: bool = False


@dataclass(slots=True)
class CopyReport:
    """What a copy did: its pieces, the seconds that it trained, the GPUs it has."""

    round: int
    pieces: list[Piece]
    seconds: float
    gpus: int

    @property
    def samples(self) -> int:
        """Samples trained."""
        return sum(stop - start for start, stop, _ in self.pieces)


def encode_order(order: RoundOrder, groups: int) -> Words:
    """The numbers of an order for a training with ``groups`` parameter groups."""
    words = np.zeros(_HEAD + groups + 2 * MOST_RANGES, np.uint64)
    times = (int(order.soft_s * 1e6), int(order.patience_s * 1e6))
    words[:5] = (order.stop, order.round, *times, len(order.ranges))
    if order.rates:
        words[_HEAD : _HEAD + groups] = np.array(order.rates, np.float64).view(np.uint64)
    if order.ranges:
        start = _HEAD + groups
        words[start : start + 2 * len(order.ranges)] = np.array(order.ranges, np.uint64).ravel()
    return words


def decode_order(words: Words, groups: int) -> RoundOrder:
    """The order from its numbers."""
    stop, number, soft, patience, count = (int(word) for word in words[:5])
    start = _HEAD + groups
    rows = words[start : start + 2 * count].reshape(-1, 2)
    return RoundOrder(
        number,
        [(int(first), int(last)) for first, last in rows],
        [float(rate) for rate in words[_HEAD:start].view(np.float64)],
        soft / 1e6,
        patience / 1e6,
        bool(stop),
    )


def decode_report(words: Words) -> CopyReport:
    """The report from its numbers."""
    number, count, microseconds, gpus = (int(word) for word in words[:4])
    rows = words[_HEAD : _HEAD + 3 * count].reshape(-1, 3)
    pieces = [(int(start), int(stop), int(digest)) for start, stop, digest in rows]
    return CopyReport(number, pieces, microseconds / 1e6, gpus)


def empty_report() -> Words:
    """Space for a report."""
    return np.zeros(_HEAD + 3 * MOST_PIECES, np.uint64)


def encode_report(report: CopyReport) -> Words:
    """The numbers of a report."""
    words = empty_report()
    pieces = report.pieces
    words[:4] = (report.round, len(pieces), int(report.seconds * 1e6), report.gpus)
    if pieces:
        words[_HEAD : _HEAD + 3 * len(pieces)] = np.array(pieces, np.uint64).ravel()
    return words
