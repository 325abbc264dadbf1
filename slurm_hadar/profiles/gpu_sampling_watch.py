"""Looking at the GPUs of this machine, of whichever maker, again and again beside something else,
such as a training in the same process.
"""

import threading
from collections.abc import Callable, Iterable

from slurm_hadar.profiles import gpu_sampling_amd, gpu_sampling_nvml
from slurm_hadar.profiles.gpu_sampling import (
    GpuReader,
    GpuUse,
    NoGpuDriver,
    SampledGpu,
    SampleWindow,
)

INTERVAL_S = 10.0
WINDOW_S = 600.0
_GAPS = 5


class SamplingThread:
    """Windows over some GPUs that a thread fills every ``interval_s`` seconds.

    Nothing here can stop what it stands beside: when a GPU cannot be read any more the thread ends,
    and ``problem`` says why.
    """

    def __init__(
        self,
        reader: GpuReader,
        gpus: Iterable[SampledGpu],
        interval_s: float = INTERVAL_S,
        window_s: float = WINDOW_S,
    ) -> None:
        self.problem = ""
        self._reader, self._interval_s = reader, interval_s
        self._windows = {gpu.uuid: SampleWindow(gpu, window_s, _GAPS * interval_s) for gpu in gpus}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hadar-gpus", daemon=True)

    def __enter__(self) -> "SamplingThread":
        """Begin."""
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Look once more and end."""
        self._stop.set()
        self._thread.join(timeout=10)
        self.look()

    def look(self) -> None:
        """Read each GPU once, now."""
        try:
            with self._lock:
                for uuid, window in self._windows.items():
                    window.add(self._reader.read(uuid))
        except Exception as error:  # a driver that goes away must not end a training
            self.problem = f"{type(error).__name__}: {error}"
            self._stop.set()

    def uses(self) -> list[GpuUse]:
        """The windows as they stand, without GPUs that were not seen twice."""
        with self._lock:
            found = [window.use() for window in self._windows.values()]
        return [use for use in found if use is not None]

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.look()


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
