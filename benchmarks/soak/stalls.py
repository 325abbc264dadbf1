"""Trainings that are stopped (SIGSTOP), in the middle of a save where that can be had."""

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak.jobs import Ended, ends
from slurm_hadar.runtime.attempts import SUPERSEDED, AttemptId, later, present
from slurm_hadar.runtime.leaving import LEFT_ON_TERM

PATIENCE_S = 7.0
"""How long a save is waited for; trainings save every 5 s."""
_LOOK_S = 0.0005


@dataclass(frozen=True, slots=True)
class Saver:
    """A process that saves a training: ``name`` of the submission, its attempt and its node.

    ``started``: when it began, in the kernel's ticks, by which it is known from another process
    that has its ID later.
    """

    name: str
    path: Path
    attempt: AttemptId
    pid: int
    started: str
    node: str

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return _started(self.pid) == self.started

    @property
    def superseded(self) -> bool:
        """Whether a later attempt has taken over."""
        return later(self.attempt, present(self.path)) is not None

    @property
    def saving(self) -> bool:
        """Whether it is in the middle of a save."""
        with contextlib.suppress(OSError):
            names = os.listdir(self.path.parent / self._folder)  # noqa: PTH208
            return any(name.endswith(f".{self.path.name}") for name in names)
        return False

    @property
    def _folder(self) -> str:
        return f".{self.path.name}.attempts/{self.attempt.name}"


@dataclass(slots=True)
class Stall:
    """One time that a process was stopped, s since the epoch. ``in_save``: in the middle of a save;
    ``superseded``: a later attempt had taken over when it was continued."""

    saver: Saver
    from_s: float
    in_save: bool
    to_s: float = 0.0
    superseded: bool = False
    gone: bool = False
    """It had ended before it was continued: Slurm continues what it kills."""


def outcome(stall: Stall, ended: Sequence[Ended]) -> str:
    """How the process of a stall ended that was superseded; what begins with "not" is wrong."""
    mine = [one for one in ended if one.pid == stall.saver.pid and one.at_s >= stall.from_s]
    if not mine:
        return "not ended" if stall.saver.alive else "killed"
    code = mine[0].code
    if code == SUPERSEDED:
        return f"ended with {SUPERSEDED}"
    if code in (0, LEFT_ON_TERM) and not stall.in_save:
        return "had nothing left to write"
    return f"not {SUPERSEDED} but {code}"


class Stalls:
    """Stops trainings and continues them; used by several threads."""

    def __init__(self, folder: Path, random_: random.Random, stop: Callable[[], bool]) -> None:
        """``stop``: whether the storm is over."""
        self._folder, self._random, self._stop = folder, random_, stop
        self.done: list[Stall] = []
        self._stopped: dict[int, Stall] = {}
        self._lock = threading.Lock()

    def run(self, every_s: float, longest_s: float) -> None:
        """A stall about every ``every_s``, of up to ``longest_s``, until the storm is over."""
        while not self._wait(self._random.uniform(0.5, 1.5) * every_s):
            stall = self.begin()
            if stall is not None:
                self._wait(self._random.uniform(1.0, longest_s))
                self.end(stall)

    def begin(self) -> Stall | None:
        """Stop a training, in the middle of its next save if that comes soon."""
        with self._lock:
            free = [one for one in savers(self._folder) if one.pid not in self._stopped]
            if not free:
                return None
            saver = self._random.choice(free)
            stall = self._stopped[saver.pid] = Stall(saver, time.time(), False)
        end = time.monotonic() + PATIENCE_S
        while not saver.saving and time.monotonic() < end and not self._stop():
            time.sleep(_LOOK_S)
        stall.from_s = time.time()
        if not saver.alive:
            self._forget(stall)
            return None
        os.kill(saver.pid, signal.SIGSTOP)
        stall.in_save = saver.saving
        return stall

    def begin_within(self, seconds: float) -> Stall | None:
        """:meth:`begin`, as soon as there is a training."""
        end = time.monotonic() + seconds
        while (stall := self.begin()) is None and time.monotonic() < end:
            if self._wait(0.5):
                break
        return stall

    def wait_superseded(self, stall: Stall, seconds: float) -> None:
        """Wait until a later attempt has taken over, ``seconds`` at most."""
        end = time.monotonic() + seconds
        while not stall.saver.superseded and time.monotonic() < end and not self._wait(0.2):
            pass

    def end(self, stall: Stall) -> None:
        """Continue it."""
        # Slurm continues what it kills: that saves, and a later attempt takes over afterwards.
        stall.gone = not stall.saver.alive
        stall.superseded = stall.saver.superseded and not stall.gone
        stall.to_s = time.time()
        if not stall.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stall.saver.pid, signal.SIGCONT)
        self._forget(stall)
        self.done.append(stall)

    def _forget(self, stall: Stall) -> None:
        with self._lock:
            self._stopped.pop(stall.saver.pid, None)

    def outcomes(self) -> Counter[str]:
        """How the superseded ones ended; for the end of a soak."""
        return Counter(
            outcome(stall, ends(self._folder, stall.saver.name))
            for stall in self.done
            if stall.superseded
        )

    def wrong(self) -> list[str]:
        """A sentence for each superseded attempt that did not end as it should."""
        found = []
        for stall in self.done:
            how = outcome(stall, ends(self._folder, stall.saver.name))
            if stall.superseded and how.startswith("not"):
                found.append(
                    f"{stall.saver.name}: process {stall.saver.pid} of attempt "
                    f"{stall.saver.attempt.number}, stopped from {stall.from_s:.1f} to "
                    f"{stall.to_s:.1f}: {how}"
                )
        return found

    def _wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self._stop() and time.monotonic() < end:
            time.sleep(min(0.2, max(0.0, end - time.monotonic())))
        return self._stop()


def savers(folder: Path) -> list[Saver]:
    """The processes of this host that save the trainings in ``folder``."""
    found = []
    for container in folder.glob(".*.pt.attempts"):
        path = folder / container.name[1:].removesuffix(".attempts")
        newest = max(present(path), default=None)
        if newest is None:
            continue
        with contextlib.suppress(OSError, ValueError):
            host, pid = (container / newest.name / "owner").read_text().split()
            saver = Saver(path.stem, path, newest, int(pid), _started(int(pid)), _node(int(pid)))
            if host == socket.gethostname() and _trains(saver):
                found.append(saver)
    return found


def _trains(saver: Saver) -> bool:
    argv = Path(f"/proc/{saver.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return str(saver.path) in argv


def _node(pid: int) -> str:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return environment.get("SLURMD_NODENAME", "")


def _started(pid: int) -> str:
    """When the process began, in the kernel's ticks; "" where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
