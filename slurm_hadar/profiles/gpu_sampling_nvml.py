"""NVIDIA's GPUs through NVML. The library is imported when it is used, and not before."""

import contextlib
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from slurm_hadar.profiles.gpu_sampling import GpuReading, NoGpuDriver, SampledGpu

_MB = 1024 * 1024
_T = TypeVar("_T")


class NoNvml(NoGpuDriver):
    """NVIDIA's GPUs cannot be read on this machine; the message says what is missing."""


class Nvml:
    """A :class:`GpuReader`. Raises :class:`NoNvml` without the library or without a driver."""

    def __init__(self) -> None:
        """Open the driver."""
        self._nvml = _library()
        self._handles: dict[str, Any] = {}
        self._gpus: list[SampledGpu] = []
        self._seen_us: dict[str, int] = {}
        self._energy: dict[str, tuple[float, float]] = {}
        for index in range(self._ask(self._nvml.nvmlDeviceGetCount) or 0):
            handle = self._ask(self._nvml.nvmlDeviceGetHandleByIndex, index)
            uuid = None
            if handle is not None:
                uuid = self._ask(self._nvml.nvmlDeviceGetUUID, handle)
            if uuid is None:
                continue
            minor = self._ask(self._nvml.nvmlDeviceGetMinorNumber, handle)
            name = _text(self._ask(self._nvml.nvmlDeviceGetName, handle) or "")
            self._handles[_text(uuid)] = handle
            self._gpus.append(SampledGpu(_text(uuid), name, index if minor is None else minor))

    def gpus(self) -> list[SampledGpu]:
        """All GPUs, in NVML's order."""
        return list(self._gpus)

    def read(self, uuid: str) -> GpuReading:
        """One GPU now. Raises KeyError for one that is not there."""
        handle = self._handles[uuid]
        now = time.monotonic()
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return GpuReading(
            time_s=now,
            utilization=self._utilization(uuid, handle),
            memory_mb=self._memory(handle, processes),
            power_w=self._power(uuid, handle, now),
            processes=None if processes is None else len(processes),
        )

    def close(self) -> None:
        """Release the driver."""
        with contextlib.suppress(Exception):
            self._nvml.nvmlShutdown()

    def _ask(self, call: Callable[..., _T], *values: object) -> _T | None:
        """An answer of NVML, None where this GPU or driver does not give it."""
        try:
            return call(*values)
        except self._nvml.NVMLError:
            return None

    def _utilization(self, uuid: str, handle: Any) -> float | None:
        """Mean of all that the driver sampled since the last call, 0 to 1; else of the moment."""
        kind = self._nvml.NVML_GPU_UTILIZATION_SAMPLES
        since = self._seen_us.get(uuid, 0)
        answer = self._ask(self._nvml.nvmlDeviceGetSamples, handle, kind, since)
        if answer is not None:
            fresh = [one for one in answer[1] if one.timeStamp > since]
            if fresh:
                self._seen_us[uuid] = max(one.timeStamp for one in fresh)
                # The first call returns what was sampled before this program began.
                if since:
                    total = float(sum(one.sampleValue.uiVal for one in fresh))
                    return total / len(fresh) / 100
        rates: Any = self._ask(self._nvml.nvmlDeviceGetUtilizationRates, handle)
        return None if rates is None else float(rates.gpu) / 100

    def _memory(self, handle: Any, processes: list[Any] | None) -> float | None:
        """What processes hold, MB; where the driver does not say that, all that is in use."""
        used = [one.usedGpuMemory for one in processes or []]
        if processes is not None and all(isinstance(one, int) for one in used):
            return float(sum(used)) / _MB
        info: Any = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
        return None if info is None else float(info.used) / _MB

    def _power(self, uuid: str, handle: Any, now: float) -> float | None:
        """W: from the energy since the last call where the GPU counts it, else of the moment."""
        energy = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        if energy is not None:
            before = self._energy.get(uuid)
            self._energy[uuid] = (now, energy)
            if before is not None and now > before[0] and energy >= before[1]:
                return float(energy - before[1]) / 1000 / (now - before[0])
        power = self._ask(self._nvml.nvmlDeviceGetPowerUsage, handle)
        return None if power is None else power / 1000


def _library() -> ModuleType:
    try:
        import pynvml
    except ImportError:
        raise NoNvml("the Python package nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoNvml(f"NVML does not start: {error}; this machine has no NVIDIA driver") from None
    module: ModuleType = pynvml
    return module


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
