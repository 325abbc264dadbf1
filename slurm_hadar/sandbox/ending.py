"""A command that holds a sandbox stops the sandbox before it ends on a signal."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def cleaned_up_when_told_to_end() -> Iterator[None]:
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
