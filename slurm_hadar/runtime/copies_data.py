"""The samples of a copy's part of a round: positions in, indices and the account of them out."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from slurm_hadar.runtime import samples
from slurm_hadar.runtime.copies_ledger import Piece, Range

_KEPT_EPOCHS = 3


class RoundPart:
    """One part of a round, in steps of at most ``batch`` samples of nearly the same size.

    A step may reach over gaps and epochs. ``done`` counts the samples that :meth:`advance` ended.
    """

    def __init__(self, orders: "Orders", ranges: Sequence[Range], batch: int) -> None:
        self._orders, self._ranges = orders, ranges
        self._positions = np.concatenate([np.arange(*span) for span in ranges] or [np.arange(0)])
        self.steps = -(-len(self._positions) // batch)
        self._given: list[NDArray[np.int64]] = []
        self.done = 0

    def indices(self, step: int) -> tuple[torch.Tensor, int]:
        """(n,) int64 indices of the samples of step number ``step``, and the first one's epoch."""
        end = len(self._positions) * (step + 1) // self.steps
        positions = self._positions[self.done : end]
        found = self._orders.indices(positions)
        self._given.append(found)
        return torch.from_numpy(found), int(positions[0]) // self._orders.dataset_size

    def advance(self) -> int:
        """The step that was given last is trained; its samples."""
        size = len(self._given[-1])
        self.done += size
        return size

    def pieces(self) -> list[Piece]:
        """What was trained, with the digests of what the loop was given."""
        given = np.concatenate(self._given or [np.arange(0)])
        size, begin = self._orders.dataset_size, 0
        found: list[Piece] = []
        for start, stop in self._ranges:
            while start < stop and begin < self.done:
                end = min(stop, (start // size + 1) * size, start + self.done - begin)
                digest = samples.digest(given[begin : begin + end - start])
                found.append((start, end, digest))
                begin += end - start
                start = end
        return found


class Orders:
    """The orders of the epochs, the last few kept."""

    def __init__(self, seed: int, dataset_size: int) -> None:
        self._seed, self.dataset_size = seed, dataset_size
        self._known: dict[int, NDArray[np.int64]] = {}

    def indices(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) positions -> (n,) indices of samples."""
        epochs, places = np.divmod(positions, self.dataset_size)
        found = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            found[inside] = self._order(int(epoch))[places[inside]]
        return found

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._known:
            while len(self._known) >= _KEPT_EPOCHS:
                del self._known[min(self._known)]
            self._known[epoch] = samples.order(self._seed, epoch, self.dataset_size)
        return self._known[epoch]
