"""The gradients of a part of a global batch as one vector, arranged like the parameters."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slurm_hadar.runtime.copies_flat import Flat

Vector = NDArray[Any]


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
