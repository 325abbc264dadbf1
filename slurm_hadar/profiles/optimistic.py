"""Optimistic profiling: few points of CPUs are measured, memory follows from a model.

Synergy (Mohan et al., arXiv 2110.06073) [V: from its code]: measure at full memory only, from the
most CPUs down; where the epoch time changed by 10% or less halve the CPUs, else take off one per
GPU. Memory by the MinIO model: a cache of a part f of a data set of D bytes leaves the epoch time
T(c, f) = max(T(c, 1), f D / BW_mem(c) + (1 - f) D / BW_disk).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

NEAR = 0.10
"""Epoch times that differ by this part or less are the same."""
MEMORY_PARTS = (0.125, 0.25, 0.5, 0.75, 1.0)
"""Memory of the table's rows, in parts of the full memory."""


@dataclass(frozen=True, slots=True)
class RateMeasurement:
    """One measurement. ``rate`` in samples/s of the whole job, ``seconds`` that it took in all."""

    cpus: int
    """CPUs per GPU."""
    rate: float
    seconds: float


@dataclass(frozen=True, slots=True)
class DataSet:
    """What the memory model needs. Bandwidths in bytes/s."""

    samples: int
    bytes: float
    disk: float
    memory: Callable[[int], float]
    """Bandwidth of reading from memory with so many CPUs."""


def next_cpus(measured: Sequence[RateMeasurement]) -> int:
    """CPUs per GPU to measure next, 0 when it is enough; ``measured`` in the order of measuring.

    After the first point the CPUs are halved, as there is nothing to compare it with.
    """
    last = measured[-1]
    if len(measured) == 1 or _same_time(measured[-2].rate, last.rate):
        return last.cpus // 2
    return last.cpus - 1


def _same_time(before: float, after: float) -> bool:
    return abs(1.0 / max(after, 1e-12) - 1.0 / max(before, 1e-12)) * before <= NEAR


def profile(most: int, measure: Callable[[int], RateMeasurement]) -> list[RateMeasurement]:
    """Measure from ``most`` CPUs per GPU down, by the rule; the points by rising CPUs."""
    points = [measure(most)]
    while cpus := next_cpus(points):
        points.append(measure(cpus))
    return sorted(points, key=lambda point: point.cpus)


def with_memory(rate: float, cpus: int, cached: float, data: DataSet) -> float:
    """Samples/s with a part ``cached`` (0-1) of the data set in memory, out of the rate with all
    of it there. ``cpus`` of the whole job."""
    read = cached * data.bytes / data.memory(cpus) + (1.0 - cached) * data.bytes / data.disk
    return data.samples / max(data.samples / rate, read)


def rows(
    model: str, gpus: int, points: Sequence[RateMeasurement], memory_gb: float, data: DataSet | None
) -> list[tuple[str, int, int, float, float]]:
    """Rows of ``cpu_table.COLUMNS``. ``memory_gb``: the full memory per GPU. Without a data set
    memory makes no difference, and the table has the full memory only."""
    parts = MEMORY_PARTS if data else (1.0,)
    found = []
    for point in points:
        for part in parts:
            gb = part * memory_gb
            rate = point.rate
            if data is not None:
                cached = min(1.0, gb * gpus * 2**30 / data.bytes)
                rate = with_memory(rate, point.cpus * gpus, cached, data)
            found.append((model, gpus, point.cpus, round(gb, 3), float(f"{rate:.5g}")))
    return found


def saved_min(points: Sequence[RateMeasurement], memory_points: int) -> tuple[float, float]:
    """(minutes that were spent, minutes that the full grid would have taken besides).

    The full grid: every number of CPUs up to the most, at every amount of memory, each as long as a
    measured point was on average.
    """
    spent = sum(point.seconds for point in points)
    grid = max(point.cpus for point in points) * memory_points
    return spent / 60.0, (grid * spent / len(points) - spent) / 60.0
