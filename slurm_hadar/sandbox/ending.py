"""Ends a sandbox with the process that started it: on a signal, or by its finisher process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from slurm_hadar.sandbox import places, processes

_FINISHER = "slurm_hadar.sandbox.finisher"
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 15.0


@contextmanager
def stopped_on_signal() -> Iterator[None]:
    """Within it SIGTERM and a closed terminal raise SystemExit, as Ctrl-C raises its own exception.

    Daemons have sessions of their own, so nothing else would end them. A signal that was ignored
    before (nohup) stays ignored. Only for a process's main thread.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        for other in taken:
            # A second signal must not cut the cleaning up short.
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def end_without_record(folder: Path) -> bool:
    """End the sandbox in ``folder`` although its record is gone; False where none runs there.

    Raises HadarError when a process of it stays.
    """
    found = processes.without_record(folder)
    if found is None:
        return False
    munged = processes.ours(found, ("munged",))
    others = [pid for pid in processes.ours(found) if pid not in munged]
    processes.end([*processes.descendants(others), *others], _GRACE_S)
    # Last: where this is cut short too, it is by munged that the rest is found.
    processes.end(munged, _GRACE_S)
    processes.raise_for_left(found)
    places.forget_run(found)
    return True


def start_finisher(record: Path) -> "subprocess.Popen[bytes]":
    """Start ``finisher.py`` for the sandbox of ``record``, which must be written."""
    root = Path(__file__).parents[2]
    born = record.stat().st_mtime_ns
    argv = [sys.executable, "-I", "-m", _FINISHER, str(os.getpid()), str(record), str(born)]
    # Nothing of the caller's is kept open, and its terminal's signals are not for this one.
    return subprocess.Popen(
        argv,
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop_finisher(finisher: "subprocess.Popen[bytes]") -> None:
    """The sandbox is down: nothing is left to be done."""
    finisher.kill()
    finisher.wait()
