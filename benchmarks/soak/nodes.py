"""Faults of nodes and of slurmctld, one after another."""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.soak import hung
from benchmarks.soak.silence import Silence
from benchmarks.soak.stalls import Stall, Stalls
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox import processes
from slurm_hadar.sandbox.cluster import Sandbox

SLURMD_TIMEOUT_S = 10
_UNNOTICED_S = SLURMD_TIMEOUT_S / 2
"""Slurm takes no node for lost that is away for less. It asks each three times in SlurmdTimeout, so
its last answer may be a third of that older than the silence."""
_BACK_S = 90.0
_SOME_TRAIN_S = 20.0
"""So long a training is waited for that could be stopped on a silent node."""
_ELSEWHERE_S = 60.0
"""So long a start elsewhere is waited for: GPUs may be scarce, or no controller be at work."""
_LEAVES_S = 3.0
"""What a stale attempt has to end by itself."""
_FAULTS = (
    "slurmd back",
    "slurmd back",
    "node lost",
    "down",
    "down",
    "silent",
    "silent",
    "slurmctld",
    "hung folder",
)
_UP = ("idle", "mixed", "allocated", "planned", "completing", "reserved")


class Faults:
    """Takes nodes and slurmctld away and gives them back."""

    def __init__(
        self, box: Sandbox, random_: random.Random, stop: Callable[[], bool], stalls: Stalls
    ) -> None:
        """``stop``: whether the storm is over; ``stalls``: stops trainings on silent nodes."""
        self.box, self._random, self._stop, self._stalls = box, random_, stop, stalls
        self._faults = _FAULTS if hung.possible() else _FAULTS[:-1]
        self.done: Counter[str] = Counter()
        self.silences: list[Silence] = []
        """When nodes were cut off while their steps ran on."""
        self.by_hand = 0
        """How often a node did not come back by itself and was resumed."""
        self.wrong: list[str] = []

    def run(self, every_s: float) -> None:
        """A fault about every ``every_s``, until the storm is over; all is back at the end."""
        deck: list[str] = ["silent", "slurmctld"]
        while not self._wait(self._random.uniform(0.5, 1.5) * every_s):
            what = deck.pop()
            # Dealt out of a deck, so that a short storm has them all as well.
            deck = deck or self._random.sample(self._faults, len(self._faults))
            node = self._random.choice(self.box.layout.started)
            try:
                self._one(what, node)
                self.done[what] += 1
            except (HadarError, OSError) as error:
                self.wrong.append(f"{what} of {node}: {str(error)[:300]}")

    def _one(self, what: str, node: str) -> None:
        draw = self._random.uniform
        match what:
            case "slurmctld":
                self.box.stop_slurmctld()
                self._wait(draw(0.5, 6.0))
                self.box.start_slurmctld()
            case "hung folder":
                with hung.hung(self.box.exchange):
                    self._wait(draw(2.0, 8.0))
            case "down":
                self._update(node, "State=DOWN", "Reason=soak")
                self._wait(draw(2.0, 8.0))
                # Slurm may have it back already, since its slurmd answers.
                with contextlib.suppress(HadarError):
                    self._update(node, "State=RESUME")
                self._back(node)
            case "slurmd back":
                self._silence(node, draw(0.0, _UNNOTICED_S))
            case "node lost":
                self.box.kill_slurmd(node)
                _end_steps(self.box, node)
                self._wait(draw(1.0, 2.0 * SLURMD_TIMEOUT_S))
                self._back(node)
            case _:
                # Where a training is stopped on it, Slurm starts that elsewhere meanwhile.
                stall = self._stalls.begin_within(_SOME_TRAIN_S)
                node = node if stall is None else stall.saver.node
                try:
                    self._silence(node, SLURMD_TIMEOUT_S + draw(2.0, 10.0), stall)
                finally:
                    if stall is not None and not stall.to_s:
                        self._stalls.end(stall)

    def _silence(self, node: str, seconds: float, stall: Stall | None = None) -> None:
        """``stall``: what is stopped there, to be continued before the node is back: then Slurm
        kills it."""
        from_s = time.time()
        self.box.kill_slurmd(node)
        try:
            self._wait(seconds)
            if stall is not None:
                self._stalls.wait_superseded(stall, _ELSEWHERE_S)
                self._wait(self._random.uniform(0.0, 8.0))
                self._stalls.end(stall)
                self._wait(_LEAVES_S)
            self._back(node)
        finally:
            # A busy machine may be late with what should have passed unnoticed.
            if (back_s := time.time()) - from_s > _UNNOTICED_S:
                self.silences.append(Silence(node, from_s, back_s))

    def _back(self, node: str) -> None:
        with contextlib.suppress(HadarError):
            self.box.start_slurmd(node, 5)
        end = time.monotonic() + _BACK_S
        while self._state(node) not in _UP:
            if time.monotonic() > end:
                raise HadarError(f"it is {self._state(node)} after {_BACK_S:g} s")
            late = time.monotonic() > end - _BACK_S / 2
            if late and self._state(node).startswith(("down", "drain")):
                # As an operator would. Slurm drains a node where it starts a job again beside a
                # step of the same job that ran on there ("Duplicate jobid").
                with contextlib.suppress(HadarError):
                    self._update(node, "State=RESUME")
                self.by_hand += 1
            time.sleep(0.5)

    def _state(self, node: str) -> str:
        try:
            return self.box.run("sinfo", "-h", "-n", node, "-N", "-o", "%T").split()[0]
        except (HadarError, IndexError):
            return ""

    def _update(self, node: str, *words: str) -> None:
        self.box.run("scontrol", "update", f"NodeName={node}", *words)

    def _wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self._stop() and time.monotonic() < end:
            time.sleep(min(0.2, max(0.0, end - time.monotonic())))
        return self._stop()


def _end_steps(box: Sandbox, node: str) -> None:
    """A node that loses its power loses its steps: those that have its slurmd's log open."""
    log = str(box.places.log / f"slurmd.{node}.log")
    for _ in range(2):
        there = [pid for pid in processes.steps(box.places) if log in _open_files(pid)]
        processes.kill_trees(there)
        # The one that slurmd began last may not have opened it yet.
        time.sleep(0.5)


def _open_files(pid: int) -> set[str]:
    found = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            found.add(str(link.readlink()))
    except OSError:
        pass
    return found
