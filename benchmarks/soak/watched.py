"""Threads whose faults are reported instead of lost."""

import threading
from collections.abc import Callable, Iterable


class Watched(threading.Thread):
    """Runs one function; ``wrong`` holds a sentence where that ended by an exception."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name)
        self.wrong: list[str] = []
        self._work = work

    def run(self) -> None:
        """The function itself."""
        try:
            self._work()
        except Exception as error:
            self.wrong.append(f"the thread of {self.name} ended: {error!r}")


def join(threads: Iterable[Watched]) -> None:
    """Wait for all that were started, also where one that waits for them is asked to end."""
    late: BaseException | None = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:
                late = error
    if late is not None:
        raise late
