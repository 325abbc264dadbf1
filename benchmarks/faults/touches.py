"""Every statement of a controller that touches Slurm or the journal, and death just before one."""

import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

import slurm_hadar

_PACKAGE = str(Path(slurm_hadar.__file__).parent) + os.sep
_BELOW = (f"{_PACKAGE}slurm{os.sep}", f"{_PACKAGE}controller{os.sep}store.py")
"""Where the doors to Slurm and to the journal are; who comes through them is in other files."""


class Touches:
    """Counts touches from 1, writes each to a file, and kills this process before number ``at``."""

    def __init__(self, log: Path, at: int = 0) -> None:
        self._log = log.open("a", buffering=1)
        self._at, self._number = at, 0

    def watch(self, journal: sqlite3.Connection) -> None:
        """Every program that is started from now on, and every statement of this connection."""
        sys.addaudithook(self._started)
        journal.set_trace_callback(self._executed)

    def _started(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen":
            words = arguments[1]
            argv = [str(word) for word in words] if isinstance(words, list | tuple) else []
            self._touch("slurm", " ".join([Path(argv[0]).name, *argv[1:3]]) if argv else "?")

    def _executed(self, statement: str) -> None:
        self._touch("journal", " ".join(statement.split()[:3]))

    def _touch(self, what: str, words: str) -> None:
        self._number += 1
        place = _place()
        self._log.write(json.dumps([self._number, what, words, place]) + "\n")
        if self._number == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def _place() -> str:
    """``moves.py:142``, the statement that came through the door."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE) and not name.startswith(_BELOW):
            return f"{name.removeprefix(_PACKAGE)}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "?"
