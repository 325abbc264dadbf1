"""How far a training is, from what it prints: the job's own output file, read as the job's user."""

import os
import re
import stat
from pathlib import Path

from slurm_hadar.domain.declaration_values import PROGRESS
from slurm_hadar.runtime.meter import SampleCount

_MOST_BYTES = 1 << 20
"""Read at one look; of more the end."""
_LONGEST = 4096
"""Characters of a line that are looked at."""
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,6})?(?:[eE]\+?[0-9]{1,2})?)"
_MOST_SAMPLES = 10**15


class LinePattern:
    """A declared ``progress``: text with ``*`` for anything and one number that counts.

    Each piece is looked for behind the one before, so a line takes time in proportion to its
    length. Raises ValueError for what is no such pattern.
    """

    def __init__(self, text: str) -> None:
        match = re.fullmatch(PROGRESS, text, re.ASCII)
        if match is None:
            raise ValueError(text)
        self._unit = int(match["unit"] or 1)
        before, after = match["before"].split("*"), match["after"].split("*")
        left, right = before.pop(), after.pop(0)
        self._before: list[str] = before
        self._after: list[str] = after
        # Without text in front no number begins in the middle of another.
        begin = re.escape(left) or r"(?<![0-9.])"
        self._counts = re.compile(begin + _NUMBER + re.escape(right))

    def samples(self, line: str) -> int | None:
        """What the line says, in samples; None where it does not match."""
        at = 0
        for piece in self._before:
            at = line.find(piece, at)
            if at < 0:
                return None
            at += len(piece)
        found = self._counts.search(line, at)
        if found is None:
            return None
        at = found.end()
        for piece in self._after:
            at = line.find(piece, at)
            if at < 0:
                return None
            at += len(piece)
        value = float(found[1]) * self._unit
        return int(value) if value <= _MOST_SAMPLES else None


class LogProgress(SampleCount):
    """The newest count in a growing file, and its rate. What was there before is not read."""

    def __init__(self, pattern: LinePattern, log: Path) -> None:
        super().__init__()
        self._pattern, self._log = pattern, log
        self._at: int | None = None
        self._rest = ""

    def look(self) -> None:
        """Read what was printed since the last look. A file that cannot be read says nothing."""
        lines = re.split(r"[\r\n]", self._rest + self._new().decode(errors="replace"))
        self._rest = lines.pop()[:_LONGEST]
        counts = [self._pattern.samples(line[:_LONGEST]) for line in lines]
        last = next((count for count in reversed(counts) if count is not None), None)
        if last is not None:
            self.note(last)

    def _new(self) -> bytes:
        try:
            # A pipe or a terminal is not to be read: its reader would miss that.
            if not stat.S_ISREG(self._log.stat().st_mode):
                return b""
            with self._log.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if self._at is None:
                    self._at = size
                elif self._at > size:
                    self._at = 0
                stream.seek(max(self._at, size - _MOST_BYTES))
                found = stream.read(_MOST_BYTES)
                self._at = stream.tell()
                return found
        except OSError:
            return b""


def output_of(process: int) -> Path:
    """The output file of a process, under a name that is right as long as it runs."""
    return Path(f"/proc/{process}/fd/1")
