"""The priorities of waiting jobs as Slurm last counted them, and the age that is in each."""

import re
from dataclasses import dataclass

from slurm_hadar.domain.errors import SlurmError

SHOWN = ("--noheader", "--format=%i|%Y|%A|%a|")
"""sprio's arguments."""
_NUMBER = r"-?\d{1,20}(?:\.\d{1,20})?"
_LINE = re.compile(r"\s*(\d{1,10})\s*\|" + rf"\s*({_NUMBER})\s*\|" * 3 + r"\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class CountedPriority:
    """A priority and the part of it that is ``age``: that of the last time when Slurm computed it
    (:mod:`slurm_hadar.slurm.waiting_age`), both in points. ``age_part``: the same age as a part of
    PriorityMaxAge, 0 to 1."""

    priority: int
    age: int
    age_part: float = 0.0


def parse(text: str) -> dict[int, list[CountedPriority]]:
    """From sprio with :data:`SHOWN`. Raises SlurmError for any other text."""
    found: dict[int, list[CountedPriority]] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise SlurmError(f"sprio answered with a line that is not understood: {line[:80]!r}")
        one = CountedPriority(round(float(match[2])), round(float(match[3])), float(match[4]))
        found.setdefault(int(match[1]), []).append(one)
    return found
