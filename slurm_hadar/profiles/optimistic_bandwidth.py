"""How fast a data set can be read: from its disk, and from memory."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np

from slurm_hadar.domain.errors import UsageError

_BLOCK = 4 << 20
_MEMORY_BLOCK = 32 << 20


def size_of(path: Path) -> float:
    """Bytes of a file, or of all files below a folder. Raises UsageError where there are none."""
    try:
        if path.is_dir():
            found = (entry for entry in path.rglob("*") if entry.is_file())
            total = float(sum(entry.stat().st_size for entry in found))
        else:
            total = float(path.stat().st_size)
    except OSError as error:
        raise UsageError(f"--dataset {path} cannot be read: {error.strerror}") from None
    if not total:
        raise UsageError(f"--dataset {path} holds no data")
    return total


def disk_bandwidth(path: Path, seconds: float = 2.0) -> float:
    """Bytes/s of reading the data set's files past the page cache, for so long at the most."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    began, read = time.monotonic(), 0
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            while time.monotonic() - began < seconds and (block := os.read(handle, _BLOCK)):
                read += len(block)
        finally:
            os.close(handle)
        if time.monotonic() - began >= seconds:
            break
    return read / max(time.monotonic() - began, 1e-9)


@cache
def memory_bandwidth(cpus: int, seconds: float = 0.2) -> float:
    """Bytes/s of copying memory with so many threads at once."""

    def copy(_: int) -> int:
        source = np.ones(_MEMORY_BLOCK, dtype=np.uint8)
        target = np.empty_like(source)
        end, copied = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            np.copyto(target, source)
            copied += _MEMORY_BLOCK
        return copied

    threads = max(1, min(cpus, len(os.sched_getaffinity(0))))
    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(copy, range(threads)))
    return total / (time.monotonic() - began)
