"""Running a command to its end, for a limited time and for a limited amount of output."""

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MOST_BYTES = 1_000_000_000
"""Most that a command may print; squeue's JSON of 100,000 jobs is 0.8 of it (24.11.5)."""
_CHUNK = 1 << 20
_MOST_TIMES = 10
"""A command that works or answers may take so many times ``timeout_s`` in all. squeue's JSON of
50,000 jobs takes longer than the usual 30 s on a busy machine, and squeue makes all of it before it
prints the first byte (24.11.5)."""
_WORKS = 0.05
"""A silent command that used this part of ``timeout_s`` of processor time works: it does not wait
for an answer that does not come."""


class OutputTooLarge(Exception):
    """The command printed more than the limit and was ended."""


def run(
    argv: Sequence[str],
    text: bytes,
    env: Mapping[str, str],
    timeout_s: float,
    take: Callable[[bytes], object],
) -> tuple[int, bytes]:
    """Exit status and standard error; ``text`` goes to its standard input.

    Standard output goes to ``take`` as it comes, whose own time does not count as the command's.
    ``timeout_s`` is how long it may wait, neither printing nor computing, s; in all it may take ten
    times as long.

    Raises :class:`subprocess.TimeoutExpired` with what stood on standard error, OSError where it
    cannot be started, and :class:`OutputTooLarge` for more than :data:`MOST_BYTES`.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(list(argv), stdin=pipe, stdout=pipe, stderr=pipe, env=env) as process:
        try:
            said, end = _exchanged(process, text, timeout_s, take)
            code = process.wait(max(0.0, end - time.monotonic()))
        except BaseException:
            process.kill()
            raise
    return code, said


def _exchanged(
    process: subprocess.Popen[bytes],
    text: bytes,
    timeout_s: float,
    take: Callable[[bytes], object],
) -> tuple[bytes, float]:
    """Standard error, and until when (monotonic) the command has to end."""
    assert process.stdin and process.stdout and process.stderr
    end, said = time.monotonic() + timeout_s, bytearray()
    last = end + (_MOST_TIMES - 1) * timeout_s
    worked_s = 0.0
    size, left = 0, memoryview(text)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        if text:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready and (now_s := _processor_s(process.pid)) >= worked_s + _WORKS * timeout_s:
                worked_s, end = now_s, min(last, time.monotonic() + timeout_s)
                if end < last:
                    continue
            if not ready:
                raise subprocess.TimeoutExpired(process.args, timeout_s, None, bytes(said))
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    left = _written(process.stdin.fileno(), left)
                    if not left:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, _CHUNK)
                if not data:
                    selector.unregister(key.fileobj)
                size += len(data)
                if size > MOST_BYTES:
                    raise OutputTooLarge
                if key.fileobj is process.stderr:
                    said += data
                    continue
                began = time.monotonic()
                take(data)
                taken_s = time.monotonic() - began
                last += taken_s
                end = min(last, max(end + taken_s, time.monotonic() + timeout_s))
    return bytes(said), end


def _processor_s(pid: int) -> float:
    """Processor time that a process used so far, s; 0 where the system does not say."""
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _written(handle: int, left: memoryview) -> memoryview:
    """What is still to be written; nothing where it is not read any more."""
    try:
        return left[os.write(handle, left[:_CHUNK]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]
