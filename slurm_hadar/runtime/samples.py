"""The order of an epoch, the position in it, and the proof that each sample went in once.

Positions count samples, so nothing here depends on the batch or on the number of GPUs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]

_WRAP = 2**64


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one epoch that went into the parameters.

    Positions ``start`` (inclusive) to ``stop`` (exclusive) of epoch ``epoch``, by the process that
    was the ``attempt``-th of the lineage, in global batches of ``batch`` on ``gpus`` GPUs.
    ``digest`` is :func:`digest` of the samples that the training loop really was given.
    """

    epoch: int
    start: int
    stop: int
    attempt: int
    batch: int
    gpus: int
    digest: int


def order(seed: int, epoch: int, dataset_size: int) -> "Indices":
    """The (dataset_size,) permutation of epoch ``epoch``: position -> index of the sample."""
    import numpy as np

    return np.random.default_rng((seed, epoch)).permutation(dataset_size)


def digest(indices: "Indices") -> int:
    """A number for a bag of samples: sums of it add up, whatever the order and the grouping.

    The sum modulo 2**64 of each index scrambled by SplitMix64 (Steele, Lea, Flood 2014, section 3;
    constants recalled). A missing, a doubled or a foreign sample changes it.
    """
    import numpy as np

    x = indices.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((x ^ (x >> np.uint64(31))).sum(dtype=np.uint64))


def extend(segments: list[Segment], new: Segment) -> None:
    """Append ``new``, joined to the last segment where it goes on from there."""
    if segments:
        last = segments[-1]
        same = (last.epoch, last.attempt, last.batch, last.gpus)
        if same == (new.epoch, new.attempt, new.batch, new.gpus) and last.stop == new.start:
            total = (last.digest + new.digest) % _WRAP
            segments[-1] = Segment(new.epoch, last.start, new.stop, *same[1:], total)
            return
    segments.append(new)


def to_plain(segments: Iterable[Segment]) -> list[list[int | str]]:
    """The segments as rows for JSON, in the order of the fields; digests as hexadecimal text."""
    return [[*astuple(segment)[:-1], f"{segment.digest:016x}"] for segment in segments]


def from_plain(rows: Iterable[Sequence[int | str]]) -> list[Segment]:
    """The segments back from such rows. Raises TypeError or ValueError for other rows."""
    found = []
    for row in rows:
        epoch, start, stop, attempt, batch, gpus = (int(value) for value in row[:6])
        found.append(Segment(epoch, start, stop, attempt, batch, gpus, int(str(row[6]), 16)))
    return found


def check_lineage(
    segments: Sequence[Segment],
    dataset_size: int,
    *,
    samples: int | None = None,
    seed: int | None = None,
) -> str | None:
    """Whether each sample of each epoch went in exactly once, in this chain of checkpoints.

    Positions must go on without gap and without overlap. The samples that the loop was given must
    add up to the whole data set in every finished epoch; with ``seed`` every stretch is held
    against the epoch's order. ``samples``: how many samples there must be in all. Returns None
    when all is right, else one sentence about the first fault.
    """
    if dataset_size < 1:
        return f"a data set of {dataset_size} samples has no lineage"
    epoch, position, attempt = 0, 0, 0
    sums: dict[int, int] = {}
    for segment in segments:
        if not 0 <= segment.start < segment.stop <= dataset_size:
            return (
                f"epoch {segment.epoch}: positions {segment.start}..{segment.stop} are impossible"
            )
        if segment.attempt < attempt:
            return f"epoch {segment.epoch}: attempt {segment.attempt} comes after {attempt}"
        attempt = segment.attempt
        if position == dataset_size:
            epoch, position = epoch + 1, 0
        if (segment.epoch, segment.start) != (epoch, position):
            here = epoch * dataset_size + position
            there = segment.epoch * dataset_size + segment.start
            fault = "went in twice" if there < here else "never went in"
            return (
                f"{abs(there - here)} samples {fault} where attempt {attempt} begins: "
                f"epoch {segment.epoch} position {segment.start} after "
                f"epoch {epoch} position {position}"
            )
        position = segment.stop
        sums[epoch] = (sums.get(epoch, 0) + segment.digest) % _WRAP
    done = epoch * dataset_size + position
    if samples is not None and done != samples:
        return f"{done} samples went in, {samples} were to"
    finished = epoch + (position == dataset_size)
    wrong = _check_sums({at: total for at, total in sums.items() if at < finished}, dataset_size)
    return wrong or (None if seed is None else _check_order(segments, dataset_size, seed))


def _check_sums(sums: Mapping[int, int], dataset_size: int) -> str | None:
    """``sums``: finished epoch -> the digests of its stretches together."""
    import numpy as np

    whole = digest(np.arange(dataset_size, dtype=np.int64))
    for epoch, total in sums.items():
        if total != whole:
            return f"epoch {epoch}: the samples that went in are not those of the data set"
    return None


def _check_order(segments: Sequence[Segment], dataset_size: int, seed: int) -> str | None:
    import numpy as np

    current, indices = -1, np.empty(0, dtype=np.int64)
    for segment in segments:
        if segment.epoch != current:
            current, indices = segment.epoch, order(seed, segment.epoch, dataset_size)
        if digest(indices[segment.start : segment.stop]) != segment.digest:
            return (
                f"epoch {segment.epoch}: what went in at positions "
                f"{segment.start}..{segment.stop} is not what the order has there"
            )
    return None
