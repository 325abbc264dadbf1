"""Where the log's lines go: stderr, which journald collects, or a file turned over by size."""

import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from slurm_hadar import config

_MODE = 0o640


class SharedFile(RotatingFileHandler):
    """A file turned over by size that several processes may write.

    A lock beside it is held for each line. Whoever finds that another process (or logrotate) put
    the file aside opens the new one first.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        """Opens nothing yet: a log that cannot be written must not stop a controller."""
        super().__init__(path, maxBytes=max_bytes, backupCount=files, encoding="ascii", delay=True)
        self._complained = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; a failure is said once, on stderr."""
        try:
            with self._locked():
                self._follow()
                if self.shouldRollover(record):
                    self.doRollover()
                stream = self.stream or self._open()
                self.stream = stream
                stream.write(self.format(record) + "\n")
                stream.flush()
        except OSError as error:
            self._close_stream()
            if not self._complained:
                self._complained = True
                why = error.strerror or str(error)
                print(f"hadar: the log {self.baseFilename} cannot be written: {why}",
                      file=sys.stderr)  # fmt: skip

    def _open(self) -> TextIOWrapper:
        handle = _opener(self.baseFilename, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        return os.fdopen(handle, "a", encoding="ascii")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = _opener(f"{self.baseFilename}.lock", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _follow(self) -> None:
        if self.stream is None:
            return
        try:
            there = Path(self.baseFilename).lstat()
        except FileNotFoundError:
            there = None
        mine = os.fstat(self.stream.fileno())
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            self._close_stream()

    def _close_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError):
                stream.close()


class _Stderr(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        """Whoever read them is gone: nobody misses the lines."""


def open_log(settings: config.Log) -> logging.Logger | None:
    """A logger for whole lines; None where none are wanted. Close it with :func:`close_log`."""
    if not settings.enabled or (settings.file is None and sys.stderr.isatty()):
        return None
    handler: logging.Handler
    if settings.file is None:
        handler = _Stderr()
    else:
        handler = SharedFile(settings.file, int(settings.max_mb * 1e6), settings.files)
    # Not registered by a name: a logger of the process would gather handlers.
    logger = logging.Logger("hadar", logging.INFO)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    return logger


def close_log(logger: logging.Logger | None) -> None:
    """Close its file."""
    for handler in list(logger.handlers) if logger else []:
        handler.close()


def _opener(path: str, flags: int) -> int:
    # A link in place of the file would lead the controller's lines elsewhere.
    return os.open(path, flags | os.O_NOFOLLOW, _MODE)
