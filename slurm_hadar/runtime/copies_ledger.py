"""Who trains which positions in a round, and which positions are in the averaged parameters.

Positions count samples over all epochs: position ``p`` is place ``p % dataset_size`` of epoch
``p // dataset_size``. Neither torch nor MPI is needed here.
"""

from collections.abc import Sequence
from math import fsum

from slurm_hadar.runtime import samples
from slurm_hadar.runtime.checkpoint_store import State
from slurm_hadar.runtime.copies_settings import CopiesOptions
from slurm_hadar.runtime.samples import Segment

Range = tuple[int, int]
Piece = tuple[int, int, int]
"""Start, stop, and the digest of the samples given to the loop; within one epoch."""

MOST_RANGES = 64
"""Ranges in one copy's part of a round."""


class Ledger:
    """Which positions are in the lineage of ``state``, exactly once each.

    A copy may be stopped in the middle of its part, so positions are not finished in order:
    ``state.samples`` is the end of the gapless beginning, ``state.ahead`` holds the pieces that
    are done behind the first gap. Segments of the lineage grow with the gapless beginning.
    """

    def __init__(self, state: State, total: int) -> None:
        self.state, self.total = state, total

    @property
    def done(self) -> int:
        """Samples in the parameters, those behind a gap included."""
        return self.state.samples + sum(stop - start for start, stop, _ in self.state.ahead)

    def take(self, number: int) -> list[Range]:
        """The first ``number`` positions that are not done (fewer at the end of all work)."""
        found: list[Range] = []
        position = self.state.samples
        for start, stop, _ in [*self.state.ahead, (self.total, self.total, 0)]:
            if number <= 0:
                break
            if position < start:
                end = min(start, position + number)
                found.append((position, end))
                number -= end - position
            position = max(position, stop)
        return found

    def record(self, pieces: Sequence[Piece], gpus: int) -> None:
        """These pieces went into the parameters. Raises ValueError when one was in before."""
        state = self.state
        ahead = sorted([*state.ahead, *pieces])
        end = state.samples
        for start, stop, _ in ahead:
            if start < end or stop > self.total:
                raise ValueError(f"positions {start}..{stop} went in twice or do not exist")
            end = stop
        size = state.dataset_size
        while ahead and ahead[0][0] == state.samples:
            start, stop, digest = ahead.pop(0)
            epoch, place = divmod(start, size)
            segment = Segment(
                epoch, place, place + stop - start, state.attempt, state.batch, gpus, digest
            )
            samples.extend(state.segments, segment)
            state.samples = stop
        state.ahead = joined(ahead, size)


def joined(pieces: Sequence[Piece], dataset_size: int) -> list[Piece]:
    """Sorted pieces with neighbours of the same epoch put together."""
    found: list[Piece] = []
    for start, stop, digest in pieces:
        if found and found[-1][1] == start and start % dataset_size:
            before = found.pop()
            start, digest = before[0], (before[2] + digest) % 2**64
        found.append((start, stop, digest))
    return found


def divide(number: int, speeds: Sequence[float]) -> list[int]:
    """``number`` samples in proportion to ``speeds`` (samples/s, one above 0), by largest rest."""
    whole = fsum(speeds)
    exact = [number * speed / whole for speed in speeds]
    counts = [int(value) for value in exact]
    by_rest = sorted(range(len(speeds)), key=lambda i: counts[i] - exact[i])
    for index in by_rest[: number - sum(counts)]:
        counts[index] += 1
    return counts


def deal(ranges: Sequence[Range], counts: Sequence[int]) -> list[list[Range]]:
    """``ranges`` cut into consecutive parts of ``counts`` positions.

    A part of more than :data:`MOST_RANGES` ranges is cut there; the rest stays undone.
    """
    parts: list[list[Range]] = []
    left = list(reversed(ranges))
    for count in counts:
        part: list[Range] = []
        while count > 0 and left:
            start, stop = left.pop()
            end = min(stop, start + count)
            part.append((start, end))
            count -= end - start
            if end < stop:
                left.append((end, stop))
        parts.append(part[:MOST_RANGES])
    return parts


def length(ranges: Sequence[Range]) -> int:
    """Positions in ``ranges``."""
    return sum(stop - start for start, stop in ranges)


def round_samples(
    speed: float, left: int, least: int, cost_s: float, settings: CopiesOptions
) -> int:
    """Samples of the next round at ``speed`` samples/s together.

    ``least``: as short as the quality wants it, samples; longer only where averaging (``cost_s``
    seconds) would take more than ``overhead`` of it, and never longer than ``round_s`` seconds. A
    small rest of ``left`` joins the last round, which may be half as long again.
    """
    wanted = min(settings.round_s * speed, max(float(least), cost_s / settings.overhead * speed))
    number = max(1, int(wanted))
    return left if left < 1.5 * number else number
