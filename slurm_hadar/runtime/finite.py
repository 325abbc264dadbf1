"""Whether a training is still in the range of numbers: NaN and infinity in loss and parameters."""

from typing import Any

NOT_FINITE = 1
"""Exit code of a training that ends because its loss or its parameters are not finite."""


def nonfinite(model: Any) -> str:
    """The first parameter of ``model`` with NaN or infinity, or buffer with NaN; "": there is none.

    A buffer may hold infinity on purpose, as masks do. One reading of all values, no copy.
    """
    import torch

    names, fine = [], []
    with torch.no_grad():
        for name, parameter in _named(model, "named_parameters"):
            names.append(f"parameter {name}")
            fine.append(torch.isfinite(parameter).all())
        for name, buffer in _named(model, "named_buffers"):
            if buffer.is_floating_point() or buffer.is_complex():
                names.append(f"buffer {name}")
                fine.append(~torch.isnan(buffer).any())
        if not fine:
            return ""
        # One transfer from each GPU, not one for each parameter.
        first = fine[0].device
        flags = torch.stack([flag.to(first, non_blocking=True) for flag in fine]).cpu()
    bad = (~flags).nonzero()
    return names[int(bad[0])] if len(bad) else ""


def _named(model: Any, which: str) -> list[tuple[str, Any]]:
    from torch.nn.parameter import is_lazy

    listed = getattr(model, which, None)
    return [(name, one) for name, one in listed() if not is_lazy(one)] if callable(listed) else []


class LossWatch:
    """Whether a loss of the present global batch was NaN or infinite; asks the GPU when read."""

    def __init__(self) -> None:
        self._bad: Any = None
        self._over = True

    def note(self, loss: Any) -> None:
        """The loss of one pass."""
        import torch

        if not torch.is_tensor(loss):
            return
        bad = (~torch.isfinite(loss.detach())).any()
        # The first pass of the next global batch begins anew.
        self._bad = bad if self._over or self._bad is None else self._bad | bad
        self._over = False

    def step(self) -> None:
        """The passes of a global batch are complete."""
        self._over = True

    @property
    def bad(self) -> bool:
        """Whether one of them was not finite."""
        return self._bad is not None and bool(self._bad)
