"""Signals set flags; the training loop looks at them where it is safe to save."""

import contextlib
import os
import signal
import threading
from types import FrameType

DEFAULT = "USR2"
"""The signal to save on, where neither the job nor ``HADAR_SIGNAL`` says another.

USR2 rather than USR1, which communication libraries use for themselves.
"""


def number(name: str) -> signal.Signals:
    """The signal named ``USR2`` or ``SIGUSR2``. Raises ValueError for an unknown name."""
    try:
        return signal.Signals["SIG" + name.upper().removeprefix("SIG")]
    except KeyError:
        raise ValueError(f"{name!r} is no signal; USR2 is the usual one") from None


class Signals:
    """The wish to save (``asked``) and to leave (``leave``), as other processes signalled them.

    Python takes signals in the main thread only: in another thread nothing is installed, and a
    plan file is then the only way to ask.
    """

    def __init__(self, name: str | None = None) -> None:
        self.asked = False
        self.leave = False
        self._ask = number(name or os.environ.get("HADAR_SIGNAL") or DEFAULT)
        self._before: dict[signal.Signals, object] = {}

    def install(self) -> None:
        """Take the two signals."""
        if threading.current_thread() is threading.main_thread() and not self._before:
            for which in {self._ask, signal.SIGTERM}:
                self._before[which] = signal.signal(which, self._note)

    def restore(self) -> None:
        """Give the signals back to whom they belonged."""
        for which, handler in self._before.items():
            with contextlib.suppress(ValueError, TypeError):
                signal.signal(which, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _note(self, which: int, frame: FrameType | None) -> None:
        if which == signal.SIGTERM:
            self.leave = True
        else:
            self.asked = True
