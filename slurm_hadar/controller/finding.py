"""What a check found."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the check. ``cure`` says what to do about a warning or a problem."""

    level: Literal["ok", "warning", "problem"]
    what: str
    cure: str = ""
