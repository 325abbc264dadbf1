"""What optimistic profiling measures: how fast a training is on some CPUs, and how fast its data
set can be read, from its disk and from memory.

A training runs for a while and its speed is read from its own output: either from the runtime's
progress file, or from a rate that it prints.
"""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.exchange.job_side import job_id
from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.profiles.optimistic import RateMeasurement

PATTERN = (
    r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*(?:samples|images|imgs?|examples|sequences)\s*/\s*s"
)
"""What is taken for a rate in a line of output, such as ``812.4 images/sec``."""
CPUS = "{cpus}"
"""In a word of the command: the number of CPUs of the run."""
_PATIENCE_S = 30.0
"""A training that reports rarely is waited for so much longer than asked."""
_LOOK_S = 0.1
_LEAVE_S = 10.0
_TAIL = 5
_BLOCK = 4 << 20
_MEMORY_BLOCK = 32 << 20


@dataclass(frozen=True)
class Trial:
    """How each point is measured. Times in s."""

    command: tuple[str, ...]
    gpus: int
    warmup_s: float
    """From the first rate on; not counted."""
    measure_s: float
    start_s: float
    """Longest wait for the first rate."""
    pattern: str = PATTERN

    def __post_init__(self) -> None:
        """Raise UsageError for a pattern that finds no rate."""
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise UsageError(
                f"--pattern {self.pattern!r} is no regular expression: {error}"
            ) from None
        if groups < 1:
            raise UsageError(f"--pattern {self.pattern!r}: put ( ) around the number")


def allowed_cpus() -> list[int]:
    """The CPUs that this process may use, as the allocation has them."""
    return sorted(os.sched_getaffinity(0))


def measure(trial: Trial, cpus: int) -> RateMeasurement:
    """One point: ``cpus`` per GPU. Raises HadarError where the training ends or says no rate."""
    began = time.monotonic()
    mine = allowed_cpus()
    total = cpus * trial.gpus
    with tempfile.TemporaryDirectory(prefix="hadar-profile-") as folder:
        process = _start(trial, mine, total, Path(folder))
        words = _Words(process, trial.pattern)
        try:
            rate = _watch(trial, process, words, Path(folder), total)
        finally:
            _end(process)
            words.close()
    return RateMeasurement(cpus, rate, time.monotonic() - began)


def _start(trial: Trial, mine: Sequence[int], total: int, folder: Path) -> subprocess.Popen[str]:
    command = [word.replace(CPUS, str(total)) for word in trial.command]
    # A child has the affinity of the thread that starts it.
    os.sched_setaffinity(0, mine[:total])
    try:
        return subprocess.Popen(
            command,
            env=_environment(os.environ, total, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise HadarError(f"{command[0]} cannot be run: {error.strerror}") from None
    finally:
        os.sched_setaffinity(0, mine)


def _environment(given: Mapping[str, str], total: int, folder: Path) -> dict[str, str]:
    """As Slurm would set it for so many CPUs; progress goes to a folder of our own."""
    said = dict.fromkeys(
        ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "OMP_NUM_THREADS"), str(total)
    )
    return {
        **given,
        **said,
        "HADAR_EXCHANGE": str(folder),
        "HADAR_PROGRESS_S": "0.5",
        "PYTHONUNBUFFERED": "1",
    }


class _Words:
    """The rates in the training's output, as they come."""

    def __init__(self, process: subprocess.Popen[str], pattern: str) -> None:
        self.rates: list[tuple[float, float]] = []
        self.tail: list[str] = []
        self._pattern = re.compile(pattern)
        assert process.stdout is not None
        self._stream: IO[str] = process.stdout
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in self._stream:
                self.tail = [*self.tail[-_TAIL + 1 :], line.rstrip()[:200]]
                for found in self._pattern.finditer(line):
                    with contextlib.suppress(ValueError):
                        self.rates.append((time.monotonic(), float(found[1])))

    def finish(self) -> None:
        """Wait for what an ended training had said."""
        self._thread.join(2.0)

    def close(self) -> None:
        self.finish()
        self._stream.close()


def _watch(
    trial: Trial, process: subprocess.Popen[str], words: _Words, folder: Path, total: int
) -> float:
    """Samples/s between the warm-up and the end."""
    job, uid = job_id(os.environ), os.getuid()
    first: float | None = None
    seen: list[tuple[float, int]] = []
    began = time.monotonic()
    while True:
        ended = _ended(process)
        now = time.monotonic()
        progress = read_progress(folder, job, uid) if job else None
        if (
            progress is not None
            and progress.samples > 0
            and (not seen or progress.samples > seen[-1][1])
        ):
            seen.append((progress.time, progress.samples))
        if first is None and (seen or words.rates):
            first = now
        if ended:
            # What it said last may still be on its way to us.
            words.finish()
            break
        if first is not None and now - first >= trial.warmup_s + trial.measure_s:
            known = _of_progress(seen, trial) or _of_words(words.rates, trial)
            if known or now - first >= trial.warmup_s + trial.measure_s + _PATIENCE_S:
                break
        if first is None and now - began > trial.start_s:
            raise _silent(f"said no rate within {trial.start_s:g} s", total, words)
        time.sleep(_LOOK_S)
    rate = _of_progress(seen, trial) or _of_words(words.rates, trial)
    if not rate:
        how = "ended" if ended else "said too little"
        raise _silent(f"{how} before its rate was known", total, words)
    return rate


def _ended(process: subprocess.Popen[str]) -> bool:
    """Whether it is over; it stays a zombie, so that its session can still be ended."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _of_progress(seen: Sequence[tuple[float, int]], trial: Trial) -> float:
    late = [one for one in seen if one[0] >= seen[0][0] + trial.warmup_s]
    if len(late) < 2 or late[-1][0] <= late[0][0]:
        return 0.0
    return (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])


def _of_words(rates: Sequence[tuple[float, float]], trial: Trial) -> float:
    late = [rate for at, rate in rates if at >= rates[0][0] + trial.warmup_s and rate > 0]
    return sum(late) / len(late) if late else 0.0


def _silent(what: str, total: int, words: _Words) -> HadarError:
    said = " | ".join(words.tail[-2:]) or "nothing"
    return HadarError(
        f"with {total} CPUs the training {what}; it last said: {said}. It should use the runtime, "
        "or print its speed (such as '812 samples/s'; see --pattern)"
    )


def _end(process: subprocess.Popen[str]) -> None:
    """TERM to its whole session, KILL to what is left of it after a while."""
    _kill(process, signal.SIGTERM)
    end = time.monotonic() + _LEAVE_S
    while time.monotonic() < end and not _ended(process):
        time.sleep(_LOOK_S / 5)
    _kill(process, signal.SIGKILL)
    process.wait()


def _kill(process: subprocess.Popen[str], name: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, name)


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
