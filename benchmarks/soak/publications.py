"""Whether a stale attempt ever publishes a checkpoint, watched from outside while jobs train."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.attempts import AttemptId, present

Stamp = tuple[int, int, int]
"""Inode, time (ns) and size (bytes) of a file."""


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint as it was published: attempt that wrote it, samples in its lineage."""

    attempt: int
    samples: int


@dataclass(slots=True)
class Course:
    """What was seen of one training. ``alone``: the newest attempt that was seen after it had
    removed the folders of all others; an older one can publish nothing from then on."""

    last: Published = Published(0, 0)
    alone: int = 0

    def fault(self, new: Published) -> str | None:
        """What is wrong with a checkpoint that was published after all that was seen."""
        if new.attempt < self.alone:
            return f"attempt {new.attempt} published after attempt {self.alone} had taken over"
        if new.attempt < self.last.attempt or new.samples < self.last.samples:
            return (
                f"the checkpoint went back from attempt {self.last.attempt}, {self.last.samples} "
                f"samples, to attempt {new.attempt}, {new.samples} samples"
            )
        return None

    def note(self, there: Sequence[AttemptId]) -> None:
        """``there``: the attempts that had a folder before the checkpoint was looked at."""
        if len(there) == 1:
            self.alone = max(self.alone, there[0].number)


class Publications:
    """Looks at the checkpoints of trainings again and again; ``wrong`` holds sentences."""

    def __init__(self, folder: Path) -> None:
        self.seen = 0
        """Checkpoints that were published, as far as they were seen."""
        self.wrong: list[str] = []
        self._folder = folder
        self._courses: dict[str, Course] = {}
        self._stamps: dict[str, Stamp] = {}

    def look(self, names: Collection[str]) -> None:
        """Look at the trainings ``names`` once."""
        for name in names:
            path = self._folder / f"{name}.pt"
            # Listed first: what is published after that is judged by it at the next look.
            there = present(path)
            course = self._courses.setdefault(name, Course())
            stamp = _stamp(path)
            if stamp is not None and stamp != self._stamps.get(name):
                self._stamps[name] = stamp
                self._judge(name, path, course)
            course.note(there)

    def _judge(self, name: str, path: Path, course: Course) -> None:
        try:
            state = json.loads(checkpoint.read(path, lazy=True)["state"])
        except HadarError as error:
            self.wrong.append(f"{name}: its checkpoint cannot be read: {error}")
            return
        self.seen += 1
        new = Published(state["attempt"], state["samples"])
        fault = course.fault(new)
        if fault:
            self.wrong.append(f"{name}: {fault}")
        course.last = new


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
