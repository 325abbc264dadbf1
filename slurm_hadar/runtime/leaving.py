"""Leave on TERM without taking the interpreter down.

Slurm waits for the processes before it gives the nodes to others, and taking down a Python that
imported PyTorch takes 0.7 s and more, for nothing: the checkpoint is written. Nothing is left
out: ``finally`` blocks, threads that are waited for, atexit handlers, open files have their turn.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import io
import os
import stat
import sys
from multiprocessing import util

LEFT_ON_TERM = 128 + 15
"""Exit code after TERM: a job that has work left must not look completed."""
NOT_SAVED = 74
"""Exit code of a training whose end is not in its checkpoint."""
SLOW = "HADAR_SLOW_EXIT"
"""Environment variable: set to anything, the interpreter is taken down as usual. For programs that
leave a write to a destructor or to an exit handler in C (an HDF5 file that is never closed)."""


class LeftOnTerm(SystemExit):
    """The training has saved and ends this process with LEFT_ON_TERM, unless it is caught.

    Code that catches it keeps a process that ends as usual.
    """

    def __init__(self) -> None:
        super().__init__(LEFT_ON_TERM)

    def __del__(self) -> None:
        """It was not caught when it goes away below no function: the process is ending then."""
        if sys.is_finalizing() or os.environ.get(SLOW):
            return
        with contextlib.suppress(ValueError):
            sys._getframe(1)
            return
        # Threads are still to be waited for; the last handler registered is the first called.
        atexit.register(_end)


def own_the_folder_of_workers(loader: object) -> None:
    """Let this process make the folder ``pymp-*`` that multiprocessing wants in each worker of a
    data loader with ``num_workers``. Slurm's TERM ends workers where they are, so that each would
    leave its own; this process removes the one of all when it ends."""
    if getattr(loader, "num_workers", 0):
        util.get_temp_dir()


def fail_at_exit(code: int) -> None:
    """Let the program go on to its end, and end its process with ``code`` then; 0: as it ends."""
    global _failing
    _failing = _Failing(code) if code else None


class _Failing:
    """Ends the process with ``code`` when the interpreter takes its modules down.

    All exit handlers were called by then. Python has no other way to change the exit code of a
    program that ended well.
    """

    def __init__(self, code: int) -> None:
        # Held here: the names of modules, and what is in sys itself, go away around this object.
        self._code, self._flush, self._exit = code, _flush, os._exit
        self._is_finalizing = sys.is_finalizing

    def __del__(self) -> None:
        if not self._is_finalizing():
            return
        try:
            self._flush()
        finally:
            self._exit(self._code)


_failing: _Failing | None = None


def _end() -> None:
    """Do what the end of the interpreter is relied on for, then end the process."""
    try:
        atexit.unregister(_end)
        atexit._run_exitfuncs()
        _flush()
    finally:
        os._exit(LEFT_ON_TERM)


def _flush() -> None:
    """Write out what files hold back, those that were not closed too."""
    every = gc.get_objects() if _writes_elsewhere() else [sys.stdout, sys.stderr]
    for found in every:
        # By type: to ask the object itself may run anything.
        if issubclass(type(found), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(Exception):
                found.flush()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def _writes_elsewhere() -> bool:
    """Whether a file or pipe is open for writing: to look through all objects takes 0.1 s."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    except OSError:
        return True
    for number in numbers:
        with contextlib.suppress(OSError):
            mode = os.fstat(number).st_mode
            kept = number > 2 and (stat.S_ISREG(mode) or stat.S_ISFIFO(mode))
            if kept and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                return True
    return False
