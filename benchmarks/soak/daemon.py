"""``hadar run`` as a process of its own: started, killed, weighed."""

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from slurm_hadar import config as configuration
from slurm_hadar.sandbox.cluster import Sandbox

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
_FAULTS = ("internal error", "Traceback (most recent call last)")

_OF_THE_UNIT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""The environment that packaging/slurm-hadar.service gives it."""

_WAIT_S, _FIRST_S = 10.0, 30.0
"""Longest wait for a move to kill it in; not every policy moves jobs all the time."""


class Daemon:
    """One controller after another on a sandbox, each under a policy of its own."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder = box, folder
        self.log = folder / "controller.log"
        self.lives = 0
        self.kills_in_moves = 0
        self.ended: list[str] = []
        """Ends that nobody asked for."""
        self._site = box.config_path.read_text()
        self._state = configuration.load(box.config_path).site.state_dir / "hadar.sqlite"
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False
        self._starting = threading.Lock()

    def start(self, policy: str) -> None:
        """Begin a life; nothing happens after :meth:`stop`."""
        site = self.folder / f"{policy}.toml"
        site.write_text(self._site.replace('policy = "hadar"', f'policy = "{policy}"'))
        argv = [str(Path(sys.executable).parent / "hadar"), "run", "--config", str(site)]
        with self.log.open("ab") as log, self._starting:
            if self._over:
                return
            env = {**os.environ, **self.box.env, **_OF_THE_UNIT}
            self._process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
            self.lives += 1

    def alive(self) -> bool:
        """Whether it runs; an end by itself is noted."""
        if self._process is None:
            return False
        code = self._process.poll()
        if code is not None:
            self.ended.append(f"exit status {code}: {self.log.read_text()[-300:].strip()}")
            self._process = None
        return code is None

    def kill(self, random_: random.Random, give_up: Callable[[], bool]) -> None:
        """SIGKILL; half of the times, and until that was had once, when the journal shows a move
        under way. ``give_up``: whether to wait for none any more."""
        if not self.alive() or self._process is None:
            return
        first = not self.kills_in_moves
        if first or random_.random() < 0.5:
            end = time.monotonic() + (_FIRST_S if first else _WAIT_S)
            while not self._in_a_move() and not give_up() and time.monotonic() < end:
                time.sleep(0.05)
            if not first:
                self._process.send_signal(signal.SIGCONT)
                time.sleep(random_.uniform(0.0, 0.6))
            self.kills_in_moves += self._in_a_move()
        self._process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """Its own way to end, for good."""
        with self._starting:
            self._over = True
        if self._process is not None and self.alive():
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                self.ended.append("it did not end within 60 s of SIGTERM")
        self._process = None

    def _in_a_move(self) -> bool:
        """Whether it is in the middle of a move; it is stopped there, so that it stays so."""
        if self._process is None or not self.moves_open():
            return False
        self._process.send_signal(signal.SIGSTOP)
        if self.moves_open():
            return True
        self._process.send_signal(signal.SIGCONT)
        return False

    def moves_open(self) -> int:
        """Moves under way in the journal."""
        return self._number("SELECT COUNT(*) FROM journal WHERE kind='move' AND outcome IS NULL")

    def _number(self, query: str) -> int:
        with contextlib.suppress(sqlite3.Error):
            link = sqlite3.connect(f"file:{self._state}?mode=ro", uri=True, timeout=2)
            try:
                return int(link.execute(query).fetchone()[0])
            finally:
                link.close()
        return 0

    def rss_mb(self) -> float | None:
        """Resident memory of the controller that runs now, MB."""
        if self._process is None:
            return None
        try:
            words = Path(f"/proc/{self._process.pid}/statm").read_text().split()
            return int(words[1]) * _PAGE_MB
        except (OSError, IndexError):
            return None

    def faults(self) -> list[str]:
        """Lines of its log that speak of a fault of its own."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [
            line[:300] for number, line in enumerate(lines) if any(word in line for word in _FAULTS)
        ]

    def idle_ticks(self) -> int:
        """Ticks that did nothing because Slurm was away."""
        return self.log.read_text(errors="replace").count(" nothing done: ")

    def ticks(self) -> int:
        """Whole ticks."""
        return self.log.read_text(errors="replace").count(" tick: ")
