"""Data-sheet speed and memory of common GPUs, to estimate what is not measured yet.

``tflops`` is the peak for single-precision training: FP32, or dense TF32 (AMD: FP32 matrix) on
tensor cores where the GPU has them. From the vendors' data sheets, recalled. A peak overstates
what training gains, so it is only used through :func:`relative_speed`.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

EXPONENT = 0.6
"""Training speed goes with peak speed to this power: recalled, from A100 against V100 and T4,
where 10 to 19 times the peak gave 3 to 10 times the samples/s."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Peak TFLOPS for single-precision training, and GB, of one GPU as Slurm counts them."""

    tflops: float
    memory_gb: float


SPECS = {
    "k80": Spec(4.4, 12),
    "m40": Spec(7.0, 12),
    "m60": Spec(4.8, 8),
    "p4": Spec(5.5, 8),
    "p40": Spec(11.8, 24),
    "p100": Spec(10.6, 16),
    "v100": Spec(15.7, 16),
    "v100s": Spec(16.4, 32),
    "t4": Spec(8.1, 16),
    "gtx1080": Spec(8.9, 8),
    "gtx1080ti": Spec(11.3, 11),
    "titanxp": Spec(12.1, 12),
    "titanv": Spec(14.9, 12),
    "titanrtx": Spec(16.3, 24),
    "rtx2080": Spec(10.1, 8),
    "rtx2080ti": Spec(13.4, 11),
    "rtx6000": Spec(16.3, 24),
    "rtx8000": Spec(16.3, 48),
    "rtx3060": Spec(12.7, 12),
    "rtx3070": Spec(20.3, 8),
    "rtx3080": Spec(29.8, 10),
    "rtx3090": Spec(35.6, 24),
    "rtx4070": Spec(29.1, 12),
    "rtx4080": Spec(48.7, 16),
    "rtx4090": Spec(82.6, 24),
    "rtx5090": Spec(104.8, 32),
    "rtxa4000": Spec(38.3, 16),
    "rtxa5000": Spec(55.6, 24),
    "rtxa6000": Spec(77.4, 48),
    "a6000": Spec(77.4, 48),
    "rtx6000ada": Spec(182.0, 48),
    "a2": Spec(9.0, 16),
    "a10": Spec(62.5, 24),
    "a10g": Spec(35.0, 24),
    "a16": Spec(9.0, 16),
    "a30": Spec(82.0, 24),
    "a40": Spec(74.8, 48),
    "a100": Spec(156.0, 40),
    "a800": Spec(156.0, 80),
    "l4": Spec(60.0, 24),
    "l40": Spec(90.5, 48),
    "l40s": Spec(183.0, 48),
    "h100": Spec(494.0, 80),
    "h800": Spec(494.0, 80),
    "h200": Spec(494.0, 141),
    "gh200": Spec(494.0, 96),
    "b200": Spec(1100.0, 180),
    "mi50": Spec(13.3, 16),
    "mi100": Spec(46.1, 32),
    "mi210": Spec(45.3, 64),
    "mi250": Spec(45.3, 64),
    "mi250x": Spec(47.9, 64),
    "mi300x": Spec(163.4, 192),
}
"""By :func:`canonical` name. K80, M60, MI250: one of the dies of a card, as Slurm counts them."""

_MIG_SLICES = 7


def _tokens(name: str) -> list[str]:
    return [token for token in re.split(r"[^a-z0-9]+", name.lower()) if token]


@lru_cache(4096)
def canonical(name: str) -> str:
    """The key of :data:`SPECS` that a site's type name means, ``""`` where there is none.

    Slurm's own detection gives names such as ``nvidia_a100-sxm4-80gb``.
    """
    tokens = _tokens(name)
    spans = (
        "".join(tokens[i:j]) for i in range(len(tokens)) for j in range(i + 1, len(tokens) + 1)
    )
    return max((span for span in spans if span in SPECS), key=len, default="")


@lru_cache(4096)
def lookup(name: str) -> Spec | None:
    """The specification behind a site's type name, None where it is not one of the common GPUs.

    A memory size in the name stands (``v100-32gb``); a MIG slice ``3g`` counts as 3/7 of the GPU.
    """
    key = canonical(name)
    if not key:
        return None
    tokens = _tokens(name)
    spec = SPECS[key]
    memory = next((float(t[:-2]) for t in tokens if re.fullmatch(r"\d{1,3}gb", t)), spec.memory_gb)
    parts = next((int(t[0]) for t in tokens if re.fullmatch(r"[1-7]g", t)), _MIG_SLICES)
    return Spec(spec.tflops * parts / _MIG_SLICES, memory)


def is_slice(name: str) -> bool:
    """Whether the type is a MIG slice of a GPU rather than a whole one."""
    return any(re.fullmatch(r"[1-7]g", token) for token in _tokens(name))


def relative_speed(tflops: float, reference: float) -> float:
    """Estimated training speed of one GPU relative to another, from their peak TFLOPS."""
    return float((tflops / reference) ** EXPONENT)
