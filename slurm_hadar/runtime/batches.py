"""The global batch: cut into micro-batches for whatever GPUs there are, and its learning rate."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

LearningRateRule = str | Callable[[float], float]
"""``linear``, ``sqrt``, ``none``, ``auto``, or a function: batch ratio -> learning-rate ratio."""

_ADAPTIVE = ("adam", "lamb", "rmsprop", "adagrad", "adadelta", "adafactor", "lion", "nadam")
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")


@dataclass(frozen=True, slots=True)
class BatchPart:
    """What one process computes in one pass: positions ``start`` to ``stop`` of the global batch.

    ``weight`` is its share of the global batch. A process that has nothing left to do computes a
    sample of another with weight 0, since all processes must take part in the exchange of
    gradients.
    """

    start: int
    stop: int
    weight: float
    last: bool


def split(size: int, rank: int, ranks: int, limit: int) -> list[BatchPart]:
    """The passes of process ``rank`` over a global batch of ``size`` samples.

    Each process takes a contiguous part of nearly the same size, in passes of at most ``limit``
    samples; every process makes the same number of passes.
    """
    low, high = size * rank // ranks, size * (rank + 1) // ranks
    longest = -(-size // ranks)
    passes = max(1, -(-longest // limit))
    parts = []
    for number in range(passes):
        start = low + (high - low) * number // passes
        stop = low + (high - low) * (number + 1) // passes
        weight = (stop - start) / size
        if stop == start:
            start = min(start, size - 1)
            stop = start + 1
        parts.append(BatchPart(start, stop, weight, number == passes - 1))
    return parts


def rate_factor(rule: LearningRateRule, optimizer: Any, old: int, new: int) -> tuple[float, str]:
    """By what the learning rate changes when the global batch goes from ``old`` to ``new``.

    ``linear``: Goyal et al. 2017, section 2.1 (recalled), the default for SGD. ``sqrt``: Malladi
    et al. 2022 (recalled), the default for Adam and its family. Returns the factor and the rule's
    name for the log. Raises ValueError for an unknown rule.
    """
    ratio = new / old
    if callable(rule):
        return float(rule(ratio)), "own rule"
    if rule == "auto":
        name = type(optimizer).__name__.lower()
        rule = "sqrt" if any(word in name for word in _ADAPTIVE) else "linear"
    if rule == "linear":
        return ratio, rule
    if rule == "sqrt":
        return sqrt(ratio), rule
    if rule == "none":
        return 1.0, rule
    raise ValueError(f"learning-rate rule {rule!r} is unknown; linear, sqrt, none or auto")


def scale_rate(optimizer: Any, scheduler: Any, factor: float) -> None:
    """Multiply the learning rates of the optimizer, and what the scheduler derives them from."""
    for group in optimizer.param_groups:
        for key in _RATES:
            if key in group:
                group[key] = group[key] * factor
    for part in [scheduler, *getattr(scheduler, "_schedulers", [])]:
        for key in ("base_lrs", "_last_lr"):
            if hasattr(part, key):
                setattr(part, key, [rate * factor for rate in getattr(part, key)])
