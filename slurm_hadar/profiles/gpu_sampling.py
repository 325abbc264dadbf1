"""What a job's GPUs do, as means over a window: utilization, memory, power, and time held in vain.

The arithmetic only; :mod:`.gpu_sampling_watch` opens real GPUs and :mod:`.gpu_sampling_watch`
reads them again and again. Readings are kept by UUID, since a GPU's index may change with a boot.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

IDLE_BELOW = 0.01
"""A GPU whose utilization stays below this over a whole interval did nothing in it."""


class NoGpuDriver(Exception):
    """GPUs cannot be read on this machine; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class SampledGpu:
    """One GPU of this machine. ``minor``: the N of /dev/nvidiaN, by which Slurm counts; of other
    makers its place among their GPUs. ``render``: the N of /dev/dri/renderDN, None: it has none."""

    uuid: str
    name: str
    minor: int
    render: int | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one time; None: this GPU or driver does not tell.

    ``time_s``: monotonic clock. ``utilization`` (0 to 1) and ``power_w`` are means since the
    reading before where the driver counts that, else of the moment. ``processes`` that compute on
    it.
    """

    time_s: float
    utilization: float | None
    memory_mb: float | None
    power_w: float | None
    processes: int | None


class GpuReader(Protocol):
    """Where readings come from."""

    def gpus(self) -> list[SampledGpu]:
        """All GPUs that can be seen."""
        ...

    def read(self, uuid: str) -> GpuReading:
        """One GPU now. Raises KeyError for a GPU that is not there."""
        ...

    def close(self) -> None:
        """Release the driver."""
        ...


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU over ``seconds`` of a window.

    ``utilization`` 0 to 1, ``memory_mb`` the mean and ``most_memory_mb`` the most, ``power_w``;
    None: unknown. Each second counts once as ``busy_s``, as ``held_idle_s`` (a process holds the
    GPU and computes nothing) or as ``unused_s`` (no process is on it); idle time counts as held
    where the driver does not tell the processes.
    """

    uuid: str
    name: str
    seconds: float
    utilization: float | None
    memory_mb: float | None
    most_memory_mb: float | None
    power_w: float | None
    busy_s: float
    held_idle_s: float
    unused_s: float


class SampleWindow:
    """The last ``window_s`` seconds of one GPU.

    A reading stands for the time since the one before. Where that is above ``gap_s`` there was
    no look (a suspended machine, a busy node), and the time in between counts for nothing.
    """

    def __init__(self, gpu: SampledGpu, window_s: float, gap_s: float) -> None:
        self._gpu, self._window_s, self._gap_s = gpu, window_s, gap_s
        self._last: float | None = None
        self._kept: deque[tuple[float, GpuReading]] = deque()

    def add(self, reading: GpuReading) -> None:
        """Take one more reading; one that is not later than the last is left out."""
        last, self._last = self._last, reading.time_s
        if last is None:
            return
        span = reading.time_s - last
        if span <= 0:
            self._last = last
            return
        if span <= self._gap_s:
            self._kept.append((span, reading))
        while self._kept and self._kept[0][1].time_s <= reading.time_s - self._window_s:
            self._kept.popleft()

    def use(self) -> GpuUse | None:
        """The window as it stands; None before two readings."""
        if not self._kept:
            return None
        start = self._kept[-1][1].time_s - self._window_s
        # The oldest interval may reach out of the window: only the part inside counts.
        rows = [(min(span, one.time_s - start), one) for span, one in self._kept]
        memory = [one.memory_mb for _, one in rows if one.memory_mb is not None]
        busy = sum(span for span, one in rows if not _idle(one))
        unused = sum(span for span, one in rows if _idle(one) and one.processes == 0)
        total = sum(span for span, _ in rows)
        return GpuUse(
            uuid=self._gpu.uuid,
            name=self._gpu.name,
            seconds=total,
            utilization=_mean((span, one.utilization) for span, one in rows),
            memory_mb=_mean((span, one.memory_mb) for span, one in rows),
            most_memory_mb=max(memory, default=None),
            power_w=_mean((span, one.power_w) for span, one in rows),
            busy_s=busy,
            held_idle_s=max(0.0, total - busy - unused),
            unused_s=unused,
        )


@dataclass(frozen=True, slots=True)
class TrainingUse:
    """A training and its GPUs together: what a profile can take of them.

    ``samples_per_s`` of the whole job, 0 where it is not known; ``utilization`` and ``memory_mb``
    are means over its ``gpus``, ``most_memory_mb`` the most that one of them held, ``power_w``
    their sum; ``held_idle``: share of the GPU time held in vain, ``unused``: share in which no
    process was on them, 0 to 1; ``seconds``: of the window.
    """

    samples_per_s: float
    gpus: int
    utilization: float | None
    memory_mb: float | None
    most_memory_mb: float | None
    power_w: float | None
    joules_per_sample: float | None
    held_idle: float
    unused: float
    seconds: float


def training_use(samples_per_s: float, uses: Iterable[GpuUse]) -> TrainingUse | None:
    """Put a rate and the GPUs that it was reached on together; None without any GPU."""
    found = list(uses)
    total = sum(one.seconds for one in found)
    if not found or total <= 0:
        return None
    powers = [one.power_w for one in found if one.power_w is not None]
    power = sum(powers) if len(powers) == len(found) else None
    return TrainingUse(
        samples_per_s=samples_per_s,
        gpus=len(found),
        utilization=_mean((one.seconds, one.utilization) for one in found),
        memory_mb=_mean((one.seconds, one.memory_mb) for one in found),
        most_memory_mb=max(
            (one.most_memory_mb for one in found if one.most_memory_mb is not None), default=None
        ),
        power_w=power,
        joules_per_sample=power / samples_per_s
        if power is not None and samples_per_s > 0
        else None,
        held_idle=min(1.0, sum(one.held_idle_s for one in found) / total),
        unused=min(1.0, sum(one.unused_s for one in found) / total),
        seconds=max(one.seconds for one in found),
    )


def chosen(gpus: Iterable[SampledGpu], environment: Mapping[str, str]) -> list[SampledGpu]:
    """The job's own among all GPUs of a node, by SLURM_JOB_GPUS; else by the UUIDs in
    CUDA_VISIBLE_DEVICES.

    None of them where neither names GPUs of this machine, as outside of a job.
    """
    found = list(gpus)
    minors = _numbers(environment.get("SLURM_JOB_GPUS", ""))
    if minors:
        return [gpu for gpu in found if gpu.minor in minors or gpu.render in minors]
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return [gpu for gpu in found if any(gpu.uuid.startswith(name) for name in visible)]


def _numbers(text: str) -> set[int]:
    """``0,2-3`` as numbers; empty for anything else."""
    numbers: set[int] = set()
    for part in text.split(",") if text else []:
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            return set()
        least, most = int(low), int(high or low)
        if most > 4096:
            return set()
        numbers.update(range(least, most + 1))
    return numbers


def _idle(reading: GpuReading) -> bool:
    return reading.utilization is not None and reading.utilization < IDLE_BELOW


def _mean(weighted: Iterable[tuple[float, float | None]]) -> float | None:
    total = weight = 0.0
    for span, value in weighted:
        if value is not None:
            total += span * value
            weight += span
    return total / weight if weight > 0 else None
