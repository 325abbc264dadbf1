"""What else may be known of a job: how its speed hangs on CPUs, batch and distance; its prospects.

Each is optional. A view without it has jobs whose speed hangs on type and count alone. Axes as in
``domain/view.py``: J jobs, R GPU types, C counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

TIERS = ("machine", "rack", "network")
"""How far apart a job's GPUs are: on one node, in one rack, anywhere."""


@dataclass(frozen=True)
class _PerJob:
    """Arrays whose first axis is J, but for those that ``shared`` names."""

    def take(self, rows: Sequence[int] | IntArray) -> Self:
        """The same for these jobs, in this order."""
        at = np.asarray(rows, dtype=np.intp)
        shared = ("cpus", "mem_mb")
        cut = {f.name: getattr(self, f.name)[at] for f in fields(self) if f.name not in shared}
        return replace(self, **cut)


@dataclass(frozen=True)
class CpuTrait(_PerJob):
    """CPUs and memory beside each GPU (Synergy, arXiv 2110.06073)."""

    cpus: FloatArray
    """(P,) CPUs per GPU, rising."""
    mem_mb: FloatArray
    """(M,) memory per GPU in MB, rising."""
    factor: FloatArray
    """(J, P, M) rate with so much, over the rate with what the job asks for."""
    least_cpus: FloatArray
    """(J,) CPUs per GPU that the job needs at the least."""
    most_cpus: FloatArray
    """(J,) CPUs per GPU that it may get at the most."""
    least_mem_mb: FloatArray
    """(J,) memory per GPU that the job needs at the least, MB."""
    most_mem_mb: FloatArray
    """(J,) memory per GPU that it may get at the most, MB."""
    present_cpus: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(J,) CPUs per GPU that a running job has now; 0: unknown or not running."""
    present_mem_mb: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(J,) memory per GPU that a running job has now, MB; 0: unknown or not running."""

    def __post_init__(self) -> None:
        """Fill in what the jobs have now where it was left out."""
        for name in ("present_cpus", "present_mem_mb"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(len(self.least_cpus)))

    def at(self, job: int, cpus: float, mem_mb: float) -> float:
        """Factor of one job, bilinear between the points, the nearest one outside of them."""
        x = np.interp(cpus, self.cpus, np.arange(len(self.cpus)))
        y = np.interp(mem_mb, self.mem_mb, np.arange(len(self.mem_mb)))
        i, j = int(x), int(y)
        u, v = float(x) - i, float(y) - j
        grid = self.factor[job]
        k, m = min(i + 1, len(self.cpus) - 1), min(j + 1, len(self.mem_mb) - 1)
        low = grid[i, j] * (1 - v) + grid[i, m] * v
        high = grid[k, j] * (1 - v) + grid[k, m] * v
        return float(low * (1 - u) + high * u)


@dataclass(frozen=True)
class BatchTrait(_PerJob):
    """Global batches that a job may train with (ONES, arXiv 2108.03645).

    Work is counted in samples at the declared batch ``base``. With a batch b a sample counts for
    :meth:`efficiency` of one: (noise + base) / (noise + b), the gradient noise scale's rule
    (McCandlish et al., arXiv 1812.06162; as in Pollux, OSDI 2021; recalled).
    """

    sizes: IntArray
    """(J, B) global batches in samples, rising; 0: no such choice."""
    rate: FloatArray
    """(J, R, C, B) samples/s of the whole job with that batch; 0: cannot."""
    noise: FloatArray
    """(J,) gradient noise scale in samples; inf: a larger batch costs nothing."""
    base: FloatArray
    """(J,) the declared batch in samples; 0: unknown, the batch stays as it is."""
    present: IntArray
    """(J,) the batch of a running job, 0: unknown or not running."""

    def efficiency(self) -> FloatArray:
        """(J, B) what a sample at that batch is worth, 1 at ``base``."""
        return worth(self.noise[:, None], self.base[:, None], self.sizes.astype(np.float64))

    def goodput(self) -> FloatArray:
        """(J, R, C, B) samples at ``base`` that a second's training is worth."""
        return self.rate * self.efficiency()[:, None, None, :]


def worth(noise: FloatArray, base: FloatArray, batch: FloatArray) -> FloatArray:
    """Value of a sample trained with ``batch``, in samples with ``base``; shapes broadcast."""
    with np.errstate(invalid="ignore"):
        found: FloatArray = np.where(np.isinf(noise), 1.0, (noise + base) / (noise + batch))
    return found


@dataclass(frozen=True)
class NetworkTrait(_PerJob):
    """What a job loses when its GPUs are apart (network-sensitive scheduling, arXiv 2401.16492)."""

    factor: FloatArray
    """(J, 3) rate at each of :data:`TIERS` over the rate on one machine, links free of others."""
    slowed: FloatArray
    """(J,) the present rate of a running job over its rate on one machine, others' traffic
    included; 1 where it does not run or is not known."""
    per_node: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(J,) GPUs that the job wants on each of its nodes; 0: split as it comes."""

    def __post_init__(self) -> None:
        """Fill in ``per_node`` where it was left out."""
        if not len(self.per_node):
            object.__setattr__(self, "per_node", np.zeros(len(self.slowed), dtype=np.int64))


@dataclass(frozen=True)
class Prospects(_PerJob):
    """How sure the rates are, and what a job's next start, move or batch would mean.

    Each array says where a value is not known; a policy must do without.
    """

    rate_error: FloatArray
    """(J, R, C) standard deviation of ``JobArrays.rate`` over that rate; nan: not known. With
    ``rate`` and ``known`` each cell is impossible (rate 0), untried (above 0 and not known) or
    possible."""
    restarts: IntArray
    """(J,) times that Slurm has requeued the job so far."""
    first_start_s: FloatArray
    """(J,) seconds from a start without a checkpoint to the first sample; nan: not known.
    ``JobArrays.restart_s`` is the cost of a later one."""
    work_unknown: BoolArray
    """(J,) whether ``JobArrays.left`` is an assumption, as nothing that was declared counts."""
    movable_from_s: FloatArray
    """(J,) time from which the job may be moved, s, on the clock of ``View.now``; 0: it waits; inf:
    not as things are. ``JobArrays.movable`` says whether that has come."""
    batch_in_place: BoolArray
    """(J,) whether a running job takes another global batch without a restart."""
