"""The GPUs of this machine, of whichever maker: one :class:`~.gpu_sampling.GpuReader`."""

from collections.abc import Callable

from slurm_hadar.profiles import gpu_sampling_amd, gpu_sampling_nvml
from slurm_hadar.profiles.gpu_sampling import GpuReader, NoGpuDriver


def open_gpus() -> GpuReader:
    """The first driver that has GPUs. Raises :class:`NoGpuDriver` with what each one misses."""
    makers: tuple[Callable[[], GpuReader], ...] = (gpu_sampling_nvml.Nvml, gpu_sampling_amd.AmdSmi)
    missing = []
    for maker in makers:
        try:
            reader = maker()
        except NoGpuDriver as error:
            missing.append(str(error))
            continue
        if reader.gpus():
            return reader
        reader.close()
        missing.append(f"{getattr(maker, '__name__', 'a driver')} shows no GPU")
    raise NoGpuDriver("; ".join(missing))
