"""What an sbatch says on stderr, kept back until it is known whether it is to be shown."""

from __future__ import annotations

import _thread
import fcntl
import os
import select

_MOST = 1 << 16
_QUIET_S = 2.0
"""Within which slurmctld refuses a job as a rule; what sbatch said before is shown then."""


class SbatchStderr:
    """The stderr of an sbatch, read beside it and shown when it has been quiet for two seconds, or
    by :meth:`show`. ``writes``: the handle that sbatch is to have as its stderr."""

    def __init__(self) -> None:
        # Not in the place of a stderr that is closed.
        self._reads, self.writes, self._ended, self._end = map(_above, (*os.pipe(), *os.pipe()))
        self._text = b""
        self._done = _thread.allocate_lock()

    def begin(self) -> None:
        """Once sbatch runs."""
        os.close(self.writes)
        self._done.acquire()
        _thread.start_new_thread(self._read, ())

    def end(self) -> bytes:
        """Once sbatch has ended: what is not shown yet."""
        os.close(self._end)
        self._done.acquire()
        return self._text

    def show(self) -> None:
        """Write what was kept to our own stderr, if that takes it."""
        text, self._text = self._text, b""
        try:
            while text:
                text = text[os.write(2, text) :]
        except OSError:
            return

    def _read(self) -> None:
        try:
            while True:
                ready, _, _ = select.select([self._reads, self._ended], [], [], _QUIET_S)
                if self._reads in ready:
                    part = os.read(self._reads, _MOST)
                    self._text += part
                    if not part:
                        return
                elif ready:
                    # Something that sbatch started may hold its stderr for long.
                    return
                if not ready or len(self._text) > _MOST:
                    self.show()
        finally:
            self._done.release()


def _above(handle: int) -> int:
    if handle > 2:
        return handle
    found = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(handle)
    return found
