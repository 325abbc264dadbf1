"""Whether a training is still in the range of numbers: NaN and infinity in loss and parameters."""

from typing import Any

NOT_FINITE = 1
"""Exit code of a training that ends because its loss or its parameters are not finite."""


def nonfinite(model: Any) -> str:
    """The first parameter of ``model`` with NaN or infinity, or buffer with NaN; "": there is none.

    A buffer may hold infinity on purpose, as masks do. One reading of all values; a tensor of a
    kind that cannot be looked at counts as finite.
    """
    import torch

    names: list[str] = []
    flags: list[Any] = []
    with torch.no_grad():
        for name, tensor in _named(model, "named_parameters"):
            found = _extremes(tensor)
            if found is not None:
                names.append(f"parameter {name}")
                flags.append(~torch.isfinite(found).all())
        for name, tensor in _named(model, "named_buffers"):
            found = _extremes(tensor)
            if found is not None:
                names.append(f"buffer {name}")
                flags.append(torch.isnan(found).any())
        if not flags:
            return ""
        # One transfer from each GPU, not one for each tensor.
        first = flags[0].device
        bad = torch.stack([flag.to(first) for flag in flags]).cpu()
    where = bad.nonzero()
    return names[int(where[0])] if len(where) else ""


def _extremes(tensor: Any) -> Any:
    """(2,) the least and the greatest value, NaN where one is; None where there are no numbers."""
    import torch

    # Of a tensor that is spread over processes the part that is here: no process waits for others.
    local = getattr(tensor, "to_local", None)
    tensor = tensor if local is None else local()
    try:
        if tensor.is_quantized or tensor.is_meta:
            return None
        if tensor.layout is torch.sparse_coo:
            tensor = tensor._values()
        elif tensor.layout is not torch.strided:
            tensor = tensor.values()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        if not tensor.is_floating_point() or not tensor.numel():
            return None
        if tensor.element_size() == 1:
            tensor = tensor.float()
        return torch.stack(torch.aminmax(tensor))
    except RuntimeError:
        # PyTorch has no minimum and maximum for some kinds of tensors (nested, mkldnn) and says so
        # by a RuntimeError or its subclass NotImplementedError. A training that uses them is valid
        # and must not end because this check cannot read them, so they count as finite. A broken
        # GPU is not hidden: the training's next operation on it raises again.
        return None


def _named(model: Any, which: str) -> list[tuple[str, Any]]:
    from torch.nn.parameter import is_lazy

    listed = getattr(model, which, None)
    return [(name, one) for name, one in listed() if not is_lazy(one)] if callable(listed) else []


class LossWatch:
    """Whether a loss of the present global batch was NaN or infinite; looked at when it is asked
    for, as a look at a GPU's value waits for the GPU."""

    def __init__(self) -> None:
        self._losses: list[Any] = []
        self._over = True

    def note(self, loss: Any) -> None:
        """The loss of one pass."""
        detach = getattr(loss, "detach", None)
        if detach is None:
            return
        if self._over:
            # The first pass of the next global batch begins anew.
            self._losses.clear()
            self._over = False
        self._losses.append(detach())

    def step(self) -> None:
        """The passes of a global batch are complete."""
        self._over = True

    @property
    def bad(self) -> bool:
        """Whether one of them was not finite."""
        import torch

        return any(not bool(torch.isfinite(loss).all()) for loss in self._losses)
