"""AMD's GPUs through amdsmi, which comes with ROCm. Imported when it is used, and not before.

The names and units are those of amdsmi 7.0.2. A figure that a GPU does not give is ``"N/A"``.
"""

import contextlib
import io
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from slurm_hadar.profiles.gpu_sampling import GpuReading, NoGpuDriver, SampledGpu

_MB = 1024 * 1024
_UJ_PER_J = 1e6


class NoAmdSmi(NoGpuDriver):
    """AMD's GPUs cannot be read on this machine; the message says what is missing."""


class AmdSmi:
    """A :class:`~.gpu_sampling.GpuReader`. Raises :class:`NoAmdSmi` without the library or
    driver."""

    def __init__(self) -> None:
        """Open the driver."""
        self._smi = _library()
        self._handles: dict[str, Any] = {}
        self._gpus: list[SampledGpu] = []
        self._energy: dict[str, tuple[float, float]] = {}
        for index, handle in enumerate(self._ask(self._smi.amdsmi_get_processor_handles) or []):
            uuid = self._ask(self._smi.amdsmi_get_gpu_device_uuid, handle)
            if not uuid:
                continue
            asic = self._ask(self._smi.amdsmi_get_gpu_asic_info, handle) or {}
            # Releases before 6.4 do not enumerate.
            enumerate_ = getattr(self._smi, "amdsmi_get_gpu_enumeration_info", None)
            place = self._ask(enumerate_, handle) if enumerate_ is not None else None
            render = _number((place or {}).get("drm_render"))
            self._handles[uuid] = handle
            self._gpus.append(
                SampledGpu(
                    uuid,
                    str(asic.get("market_name", "")),
                    index,
                    None if render is None else int(render),
                )
            )

    def gpus(self) -> list[SampledGpu]:
        """All GPUs, in amdsmi's order."""
        return list(self._gpus)

    def read(self, uuid: str) -> GpuReading:
        """One GPU now. Raises KeyError for one that is not there."""
        handle = self._handles[uuid]
        now = time.monotonic()
        activity = self._ask(self._smi.amdsmi_get_gpu_activity, handle) or {}
        percent = _number(activity.get("gfx_activity"))
        holders = self._holders(handle)
        return GpuReading(
            time_s=now,
            utilization=None if percent is None else min(1.0, percent / 100),
            memory_mb=self._memory(handle, holders),
            power_w=self._power(uuid, handle, now),
            processes=None if holders is None else len(holders),
        )

    def close(self) -> None:
        """Release the driver."""
        with contextlib.suppress(Exception):
            self._smi.amdsmi_shut_down()

    def _ask(self, call: Callable[..., Any], *values: object) -> Any | None:
        """An answer of amdsmi, None where this GPU or driver does not give it."""
        try:
            return call(*values)
        except self._smi.AmdSmiException:
            return None

    def _holders(self, handle: Any) -> list[float] | None:
        """Bytes of its memory that each process holds which has any; None: not known."""
        found = self._ask(self._smi.amdsmi_get_gpu_process_list, handle)
        if found is None:
            return None
        # The list also has processes of other GPUs.
        held = (_number(one.get("memory_usage", {}).get("vram_mem")) for one in found)
        return [one for one in held if one]

    def _memory(self, handle: Any, holders: list[float] | None) -> float | None:
        """What processes hold, MB; where the driver does not say that, all that is in use."""
        if holders is not None:
            return sum(holders) / _MB
        usage = self._ask(self._smi.amdsmi_get_gpu_vram_usage, handle) or {}
        return _number(usage.get("vram_used"))

    def _power(self, uuid: str, handle: Any, now: float) -> float | None:
        """W: from the energy since the last call where the GPU counts it, else of the moment."""
        count = self._ask(self._smi.amdsmi_get_energy_count, handle) or {}
        # Called "power" before 6.3.
        ticks = _number(count.get("energy_accumulator", count.get("power")))
        unit_uj = _number(count.get("counter_resolution"))
        if ticks is not None and unit_uj:
            energy_j = ticks * unit_uj / _UJ_PER_J
            before = self._energy.get(uuid)
            self._energy[uuid] = (now, energy_j)
            if before is not None and now > before[0] and energy_j > before[1]:
                return (energy_j - before[1]) / (now - before[0])
        power = self._ask(self._smi.amdsmi_get_power_info, handle) or {}
        found = (_number(power.get(f"{kind}_socket_power")) for kind in ("current", "average"))
        return next((one for one in found if one), None)


def _number(value: object) -> float | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and isinstance(value, int | float) else None


def _library() -> ModuleType:
    try:
        # Without its shared library the package prints that and fails in ways of its own.
        with contextlib.redirect_stdout(io.StringIO()):
            import amdsmi
    except ImportError:
        raise NoAmdSmi("the Python package amdsmi of ROCm is not installed") from None
    except Exception as error:
        raise NoAmdSmi(f"amdsmi cannot be loaded: {error}") from None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise NoAmdSmi(f"amdsmi does not start: {error}; this machine has no AMD driver") from None
    module: ModuleType = amdsmi
    return module
