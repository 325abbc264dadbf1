"""Parameters, buffers and optimizer state of a copy as one contiguous vector on the host."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slurm_hadar.domain.errors import UsageError


class Flat:
    """The floating-point tensors of a model and its optimizer, arranged once, the same everywhere.

    ``vector`` is (n,) float32, or float64 where a tensor is: what goes through MPI. Whole-number
    buffers (counters of batch norms) stay the copy's own. ``with_state``: the optimizer's state is
    part of it; it is made now where the optimizer would make it at its first step.
    """

    def __init__(self, model: Any, optimizer: Any, *, with_state: bool) -> None:
        bare = model.module if hasattr(model, "module") else model
        tensors = [*bare.parameters(), *bare.buffers()]
        if with_state:
            make_state(optimizer)
            tensors += _state_tensors(optimizer)
        self._tensors = [tensor for tensor in tensors if tensor.is_floating_point()]
        double = any(tensor.dtype == torch.float64 for tensor in self._tensors)
        size = sum(tensor.numel() for tensor in self._tensors)
        host = torch.zeros(size, dtype=torch.float64 if double else torch.float32)
        self.vector: NDArray[Any] = host.numpy()
        self._views: list[torch.Tensor] = []
        start = 0
        for tensor in self._tensors:
            view = host[start : start + tensor.numel()]
            self._views.append(view.view(tensor.shape))
            start += tensor.numel()

    def pack(self) -> NDArray[Any]:
        """The tensors' values now, in :attr:`vector`."""
        with torch.no_grad():
            for view, tensor in zip(self._views, self._tensors, strict=True):
                view.copy_(tensor)
        return self.vector

    def unpack(self) -> None:
        """Set the tensors to what :attr:`vector` holds."""
        with torch.no_grad():
            for view, tensor in zip(self._views, self._tensors, strict=True):
                tensor.copy_(view)


def weighted(
    vectors: list[NDArray[Any]], weights: list[float], out: NDArray[Any], spare: NDArray[Any]
) -> None:
    """``out`` = sum of ``weights`` x ``vectors``, each (n,); ``spare`` (n,) is written over.

    ``out`` may be the first of the vectors.
    """
    np.multiply(vectors[0], weights[0], out=out)
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        np.multiply(vector, weight, out=spare)
        np.add(out, spare, out=out)


def make_state(optimizer: Any) -> None:
    """Let the optimizer make the state that it would make at its first step, as it begins.

    A step with gradients of zero makes it; what was there before and the parameters are put back.
    Raises UsageError for an optimizer that cannot step without a closure.
    """
    held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if all(p in optimizer.state and optimizer.state[p] for p in held):
        return
    with torch.no_grad():
        values = [p.detach().clone() for p in held]
        grads = [p.grad for p in held]
        before = {
            p: {
                key: value.clone() if torch.is_tensor(value) else value
                for key, value in optimizer.state[p].items()
            }
            for p in held
            if p in optimizer.state
        }
        for p in held:
            p.grad = torch.zeros_like(p)
    try:
        optimizer.step()
    except TypeError:
        raise UsageError(
            f"{type(optimizer).__name__} cannot be averaged; take one whose step needs no closure, "
            "or optimizer_state='local'"
        ) from None
    with torch.no_grad():
        for p, value, grad in zip(held, values, grads, strict=True):
            p.copy_(value)
            p.grad = grad
            state = optimizer.state[p]
            for key, made in state.items():
                if key in before.get(p, {}):
                    state[key] = before[p][key]
                elif torch.is_tensor(made):
                    # NAdam's product of momenta begins at 1, all else at 0.
                    made.fill_(1.0 if key == "mu_product" else 0.0)


def reset_state(optimizer: Any) -> None:
    """Forget the optimizer's state."""
    optimizer.state.clear()


def _state_tensors(optimizer: Any) -> list[Any]:
    found = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            found += [state[key] for key in sorted(state) if torch.is_tensor(state[key])]
    return found
