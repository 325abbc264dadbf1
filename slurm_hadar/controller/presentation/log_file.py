"""Where the log's lines go: stderr, which journald collects, or a file turned over by size."""

import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol

from slurm_hadar.config import Config
from slurm_hadar.controller.presentation.privacy import Privacy

_PATIENCE_S, _PATIENCE_AFTER_FAILURE_S = 2.0, 0.1
"""Longest wait for another process that writes."""
_POLL_S = 0.01


class Sink(Protocol):
    """Takes whole lines."""

    name: str

    def write(self, line: bytes) -> None:
        """Write one line, all of it or nothing. Raises OSError."""


class SharedFile:
    """A file turned over by size that several processes may write.

    A lock beside it is held for each line, and the file is opened for each: another process, or
    logrotate, may have put it aside.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        """Opens nothing yet: a log that cannot be written must not stop a controller."""
        self.name = str(path)
        self._path, self._max_bytes, self._files = path, max_bytes, files
        self._patience_s = _PATIENCE_S

    def write(self, line: bytes) -> None:
        """Write one line, all of it or nothing. Raises OSError, at the latest after 2 s of waiting
        for another process."""
        with self._locked():
            handle = self._open()
            try:
                size = os.fstat(handle).st_size
                if size and size + len(line) > self._max_bytes:
                    os.close(handle)
                    handle = -1
                    self._turn_over()
                    handle, size = self._open(), 0
                _append(handle, size, line)
            finally:
                if handle >= 0:
                    os.close(handle)

    def _open(self) -> int:
        # A link in place of the file would lead the lines elsewhere, a pipe would let them wait.
        flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        return os.open(self._path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)

    def _turn_over(self) -> None:
        for number in range(self._files, 1, -1):
            with suppress(FileNotFoundError):
                Path(f"{self._path}.{number - 1}").replace(f"{self._path}.{number}")
        self._path.replace(f"{self._path}.1")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(f"{self._path}.lock", flags, 0o600)
        try:
            with suppress(OSError):
                # A reader could lock it forever; older ones were 0640.
                os.fchmod(handle, 0o600)
            self._wait_for(handle)
            yield
        finally:
            os.close(handle)

    def _wait_for(self, handle: int) -> None:
        end = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    self._patience_s = _PATIENCE_AFTER_FAILURE_S
                    why = "another process holds the lock beside it"
                    raise OSError(errno.EAGAIN, why) from None
                time.sleep(_POLL_S)
            else:
                self._patience_s = _PATIENCE_S
                return


class Stderr:
    """This process's stderr."""

    name = "on stderr"

    def __init__(self) -> None:
        self._torn = False

    def write(self, line: bytes) -> None:
        """Write one line. Raises OSError."""
        try:
            handle = sys.stderr.fileno()
        except (OSError, ValueError):
            sys.stderr.write(line.decode("ascii"))
            return
        # Past Python's buffer, which would write again later what fails now.
        sys.stderr.flush()
        rest = b"\n" + line if self._torn else line
        while rest:
            written = os.write(handle, rest)
            rest = rest[written:]
            self._torn = bool(rest)


class EventLog:
    """The controller's log: whole lines, and what of persons may stand in them.

    ``missed``: lines of what no journal keeps that could not be written.
    """

    def __init__(self, sink: Sink, privacy: Privacy) -> None:
        """``sink``: where the lines go."""
        self.privacy = privacy
        self.missed = 0
        self._sink = sink
        self._out = False

    def write(self, line: str) -> bool:
        """Write a line; False where that cannot be done now, which is said once on stderr."""
        try:
            self._sink.write(line.encode("ascii") + b"\n")
        except OSError as error:
            if not self._out:
                self._out = True
                why = error.strerror or str(error)
                text = (
                    # With the time, as all that a daemon prints.
                    f"{datetime.now().astimezone().isoformat(timespec='seconds')} "
                    f"the log {self._sink.name} cannot be written: {why}; "
                    "moves and decisions are written later\n"
                )
                # What stays in Python's buffer would end the process with 120.
                with suppress(OSError):
                    Stderr().write(text.encode("ascii", "backslashreplace"))
            return False
        self._out = False
        return True


def open_log(config: Config) -> EventLog | None:
    """The log of a site; None where no lines are wanted."""
    settings = config.log
    if not settings.enabled:
        return None
    if settings.file is not None:
        sink: Sink = SharedFile(settings.file, int(settings.max_mb * 1e6), settings.files)
    elif sys.stderr is None or sys.stderr.isatty():
        return None
    else:
        sink = Stderr()
    return EventLog(sink, Privacy(config))


def _append(handle: int, size: int, line: bytes) -> None:
    # A machine that went down may have left half a line.
    if size and os.pread(handle, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        while line:
            line = line[os.write(handle, line) :]
    except OSError:
        with suppress(OSError):
            os.ftruncate(handle, size)
        raise
