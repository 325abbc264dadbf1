"""What a check found, and who asks."""

import os
from dataclasses import dataclass
from typing import Literal

from slurm_hadar import users
from slurm_hadar.domain.errors import HadarError


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the check. ``cure`` says what to do about a warning or a problem."""

    level: Literal["ok", "warning", "problem"]
    what: str
    cure: str = ""


def me() -> str:
    """The user who asks. Raises HadarError where this machine knows no name."""
    name = users.name_of(os.getuid(), "")
    if not name:
        raise HadarError(f"user {os.getuid()} has no name on this machine")
    return name
