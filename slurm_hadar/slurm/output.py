"""The output of a command of Slurm's as it comes in: within a limited time and amount, and a long
list in a JSON document one member at a time.

The whole document would take many times the memory of what is kept of it: squeue prints 8 kB a job,
of which 2 kB stay.
"""

import json
import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

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
_NO_SPACE = re.compile(r"[^ \t\r\n]")
_BEHIND_A_VALUE = " \t\r\n,:]}"
_T = TypeVar("_T")
_Pass = Generator[None, None, _T]
"""A part of one pass over the document. It pauses where it needs more of the text."""


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


class _BrokenError(Exception):
    """What stands here is no JSON, or a key for the second time."""


class JsonListReader:
    """Hands the members of the list ``key`` of a JSON object to ``take``, in their order.

    The text goes to :meth:`feed`, in as many parts as it comes in; :meth:`end` says whether it was
    whole. Strings may hold control characters, as with ``json.loads(text, strict=False)``. What
    ``take`` raises comes out of :meth:`feed`.
    """

    def __init__(self, key: str, take: Callable[[object], None]) -> None:
        self._key, self._take = key, take
        self._decode = json.JSONDecoder(strict=False).raw_decode
        self._text, self._at, self._least = "", 0, 0
        self._found: dict[str, object] = {}
        self._reading = self._document()
        self._whole = self._broken = False

    def feed(self, text: str) -> None:
        """The next part of the document."""
        if self._broken:
            return
        self._text, self._at = self._text[self._at :] + text, 0
        if len(self._text) >= self._least:
            self._go_on()
            # A value that is not whole is tried again when there is twice as much of it.
            self._least = 2 * (len(self._text) - self._at)

    def end(self) -> dict[str, object]:
        """The object, with an empty list in place of the one whose members were handed on.

        Raises ValueError where the document is broken or not whole.
        """
        self._least = 0
        self.feed("")
        # Paused in the middle it would hold this object, which holds it.
        self._reading.close()
        if not self._whole or self._text[self._at :].strip():
            raise ValueError("the JSON document is broken or not whole")
        return self._found

    def _go_on(self) -> None:
        try:
            next(self._reading)
        except StopIteration:
            self._whole = True
        except (_BrokenError, RecursionError):
            self._broken = True

    def _document(self) -> _Pass[None]:
        yield from self._mark("{")
        if (yield from self._next()) == "}":
            self._at += 1
            return
        while True:
            key = yield from self._value()
            if not isinstance(key, str) or key in self._found:
                raise _BrokenError
            yield from self._mark(":")
            if key == self._key and (yield from self._next()) == "[":
                yield from self._list()
                self._found[key] = []
            else:
                self._found[key] = yield from self._value()
            if (yield from self._mark(",}")) == "}":
                return

    def _list(self) -> _Pass[None]:
        yield from self._mark("[")
        if (yield from self._next()) == "]":
            self._at += 1
            return
        while True:
            self._take((yield from self._value()))
            if (yield from self._mark(",]")) == "]":
                return

    def _value(self) -> _Pass[object]:
        yield from self._next()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except ValueError:
                end = -1
            # A number may go on, such as 0 in "0.".
            if 0 < end < len(self._text) and self._text[end] in _BEHIND_A_VALUE:
                self._at = end
                return value
            yield

    def _mark(self, allowed: str) -> _Pass[str]:
        char = yield from self._next()
        if char not in allowed:
            raise _BrokenError
        self._at += 1
        return char

    def _next(self) -> _Pass[str]:
        """The next character that is no space."""
        while True:
            found = _NO_SPACE.search(self._text, self._at)
            self._at = found.start() if found else len(self._text)
            if found:
                return found[0]
            yield
