"""Faults put into saves and answers of trainings: the harness must catch each of them."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_hadar.exchange.progress import Ack
from slurm_hadar.runtime import attempts, checkpoint, save_and_leave

CHECKPOINT = "c.pt"


def _nothing_is_removed() -> None:
    """The folder of a stale attempt stays, and no attempt looks whether it is superseded."""
    _put(attempts, _remove=lambda folder: None)
    _put(attempts.Attempt, check=lambda self: None, _raise_if_later=lambda self: None)


def _check_then_write() -> None:
    """A checkpoint is written beside its place, and the attempt looks once before it is renamed."""

    def outside(attempt: attempts.Attempt, written: Path) -> None:
        attempt.check()
        beside = attempt.path.with_name(f".{attempt.path.name}.{os.urandom(8).hex()}")
        written.rename(beside)
        checkpoint.sync(beside)
        beside.rename(attempt.path)

    _put(checkpoint, publish=outside)


def _lock() -> None:
    """An attempt holds a lock as long as it lives, and the next one waits for it."""
    begin = attempts.Attempt._begin.__func__  # type: ignore[attr-defined]

    def locked(cls: Any, path: Path, *rest: Any) -> attempts.Attempt:
        handle = os.open(f"{path}.lock", os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        begun: attempts.Attempt = begin(cls, path, *rest)
        return begun

    _put(attempts.Attempt, _begin=classmethod(locked))


def _left() -> None:
    """What earlier attempts left is set aside and stays there."""

    def aside(folder: Path) -> None:
        shutil.move(folder, f"{folder}.old")

    _put(attempts, _remove=aside, _remove_leftovers=lambda path: None)


def _any_wish() -> None:
    """An attempt follows a wish to save that was meant for another one."""

    def any_start(plan: Any, restarts: int, answered: Any) -> str:
        return "" if plan is None or plan.save in answered else str(plan.save)

    _put(save_and_leave, save_wish=any_start)


def _answers_first() -> None:
    """An attempt answers before it has saved."""
    answer = save_and_leave.TrainingSteering._answer

    def early(self: save_and_leave.TrainingSteering) -> None:
        plan = self._exchange.plan() if self._exchange else None
        self._acked = Ack(plan.save if plan else "", time.time(), self._state.samples)
        self._tell()
        answer(self)

    _put(save_and_leave.TrainingSteering, _answer=early)


def _put(where: object, **names: object) -> None:
    for name, value in names.items():
        setattr(where, name, value)


@dataclass(frozen=True)
class SavePlant:
    """A fault: ``put`` makes it, and a sentence with ``shown`` in it is how it must show.

    ``at``, ``scene``: how the names of the points begin at which it is tried, and of which scene.
    """

    put: Callable[[], None]
    shown: str
    at: str = "checkpoint.py publish os.rename"
    scene: str = "again"

    def reported_by(self, wrong: Iterable[str]) -> str | None:
        """The sentence that belongs to this fault."""
        return next((sentence for sentence in wrong if self.shown in sentence), None)


SAVE_FAULTS: dict[str, SavePlant] = {
    "nothing is removed": SavePlant(_nothing_is_removed, "it changed"),
    "check, then write": SavePlant(
        _check_then_write, "it changed", f"checkpoint.py save os.rename .{CHECKPOINT}.R"
    ),
    "a lock": SavePlant(_lock, "did not complete within"),
    "left behind": SavePlant(_left, "left over"),
    "any wish": SavePlant(_any_wish, "answer counts for another attempt", scene="asked"),
    "answers first": SavePlant(_answers_first, "answered before it was saved", scene="asked"),
}
