"""The gradient noise scale of a training, from the gradients that it computes anyway.

B_simple = tr(S) / |G|^2: the batch at which the noise of a step is as large as its progress
(McCandlish et al., arXiv 1812.06162, appendix A.1; recalled). From the squared norms of gradients
over b and B samples, b < B, without bias:

    |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b)        tr(S) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)

Both are averaged over steps before the one is divided by the other. The small gradient is what
the first process has after the first pass of a step, before anything is exchanged; a step that
would be one pass is made in two now and then. So nothing is stored, and the sum over the step stays
the same.
"""

from collections.abc import Iterable
from math import isfinite
from typing import Any

import torch

EVERY = 8
"""A step of so many is measured: its norms make the CPU wait for the GPU."""
_KEEP = 0.99
"""Weight of what was measured before, at each measurement."""
_ENOUGH = 20
"""Measurements before anything is said: the ratio of two short means says little."""
_MOST = 1e12


class Moments:
    """Running means of |G|^2 and tr(S)."""

    def __init__(self) -> None:
        self._signal = self._noise = self._weight = 0.0
        self.count = 0

    def add(self, small: float, few: int, large: float, many: int) -> None:
        """One step's squared norms ``small`` over ``few`` samples, ``large`` over ``many``."""
        if not (0 < few < many and isfinite(small) and isfinite(large)):
            return
        self._signal = _KEEP * self._signal + (many * large - few * small) / (many - few)
        self._noise = _KEEP * self._noise + (small - large) / (1.0 / few - 1.0 / many)
        self._weight = _KEEP * self._weight + 1.0
        self.count += 1

    @property
    def squared_gradient(self) -> float:
        """|G|^2 of the true gradient; can be below 0 by chance."""
        return self._signal / self._weight if self.count else 0.0

    @property
    def variance(self) -> float:
        """tr(S): the variance of one sample's gradient, summed over the parameters."""
        return self._noise / self._weight if self.count else 0.0

    def scale(self) -> float | None:
        """tr(S) / |G|^2 in samples; None while too little is known, or the gradient is lost in
        its noise."""
        if self.count < _ENOUGH or self._signal <= 0:
            return None
        return min(max(self._noise / self._signal, 0.0), _MOST)


class NoiseScale:
    """Measures one training, in its first process; ``active`` False: never."""

    def __init__(
        self, optimizer: Any, ranks: int, *, first: bool, active: bool, before: float | None
    ) -> None:
        """``before``: what an earlier attempt said; it holds until this one knows enough."""
        self._groups: Iterable[dict[str, Any]] = optimizer.param_groups
        self._ranks, self._first, self._active = ranks, first, active
        self._before = before
        self._small: tuple[float, int] | None = None
        self.moments = Moments()

    def limit(self, done: int, size: int, limit: int) -> int:
        """Most samples of a pass in the step of ``size`` samples after ``done``; the same in every
        process."""
        longest = -(-size // self._ranks)
        if not self._measured(done, size) or longest < 2:
            return limit
        return min(limit, -(-longest // 2))

    def after(self, done: int, size: int, weight: float, last: bool, scaler: Any = None) -> None:
        """A backward pass over ``weight`` x ``size`` samples ended, in the step after ``done``."""
        if not self._first or not self._measured(done, size):
            return
        if last:
            if self._small is not None:
                self.moments.add(*self._small, self._squared(scaler), size)
            self._small = None
        elif self._small is None:
            samples = round(weight * size)
            # The loss was scaled so that the mean over the processes is that over the samples.
            factor = weight * self._ranks
            if samples:
                self._small = self._squared(scaler) / factor**2, samples

    def scale(self) -> float | None:
        """Samples, None while unknown."""
        if not self._active:
            return None
        known = self.moments.scale()
        return self._before if known is None else known

    def _measured(self, done: int, size: int) -> bool:
        return self._active and (done // max(size, 1)) % EVERY == 0

    def _squared(self, scaler: Any) -> float:
        gradients = [
            parameter.grad
            for group in self._groups
            for parameter in group["params"]
            if parameter.grad is not None and not parameter.grad.is_sparse
        ]
        if not gradients:
            return 0.0
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(gradients)])
        factor = float(scaler.get_scale()) if scaler is not None else 1.0
        return float(norms.square().sum()) / factor**2
