"""Every statement of a controller that touches Slurm, the journal or the files that jobs read, and
a signal just before one."""

import json
import os
import re
import signal
import sqlite3
import sys
import threading
from collections import Counter
from pathlib import Path

import slurm_hadar

_PACKAGE = str(Path(slurm_hadar.__file__).parent) + os.sep
_BELOW = tuple(
    f"{_PACKAGE}{folder.replace('/', os.sep)}"
    for folder in ("slurm/", "controller/journal/", "exchange/")
)
"""Where the interfaces to Slurm, the journal and the files are; what calls them is elsewhere."""
_ASIDE = re.compile(r"\.(.+)\.[0-9a-f]{16}")
"""What a file is called before it takes its place."""


class Touches:
    """Writes each touch to a file, and sends this process ``by`` before the one named ``at``.

    A touch is named by who asks, by the first words, and by how often that came: a move that takes
    longer is looked at more often, and a plain number would be another statement each time.
    """

    def __init__(self, log: Path, at: str = "", by: signal.Signals = signal.SIGKILL) -> None:
        self._log = log.open("a", buffering=1)
        self._at, self._by = at, by
        self._seen: Counter[str] = Counter()

    def watch(self, journal: sqlite3.Connection) -> None:
        """Every program that is started from now on, every file that is put in its place, and every
        statement of this connection."""
        sys.addaudithook(self._started)
        journal.set_trace_callback(self._executed)

    def _started(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen":
            words = arguments[1]
            argv = [str(word) for word in words] if isinstance(words, list | tuple) else []
            self._touch("slurm", " ".join([Path(argv[0]).name, *argv[1:3]]) if argv else "?")
        elif event == "os.rename":
            # Until then nobody but the writer knows of what is in a file.
            aside = _ASIDE.fullmatch(Path(os.fsdecode(str(arguments[0]))).name)
            if aside is not None:
                self._touch("file", aside[1])

    def _executed(self, statement: str) -> None:
        self._touch("journal", " ".join(statement.split()[:3]))

    def _touch(self, what: str, words: str) -> None:
        place, words = _place(), re.sub(r"\d+", "N", words)
        name = f"{place} {what} {words}"
        self._seen[name] += 1
        self._log.write(json.dumps([what, words, place, self._seen[name]]) + "\n")
        if f"{name} #{self._seen[name]}" == self._at:
            # This very thread: another one that is stopped first would let it go on.
            signal.pthread_kill(threading.get_ident(), self._by)


def _place() -> str:
    """The function that came through: ``controller/actuation/running/moves.py advance``."""
    frame, door = sys._getframe(2), "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            # Updates are sent by threads, which know the door only.
            door = f"{name.removeprefix(_PACKAGE)} {frame.f_code.co_name}"
            if not name.startswith(_BELOW):
                return door
        if frame.f_back is None:
            break
        frame = frame.f_back
    return door
