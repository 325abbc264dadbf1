"""What a check found, and the names of users in it."""

import os
import pwd
from dataclasses import dataclass
from typing import Literal

from slurm_hadar.domain.errors import HadarError


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the check. ``cure`` says what to do about a warning or a problem."""

    level: Literal["ok", "warning", "problem"]
    what: str
    cure: str = ""


def me() -> str:
    """The user who asks. Raises HadarError where this machine knows no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise HadarError(f"user {os.getuid()} has no name on this machine") from None


def user_name(uid: int) -> str:
    """A user's name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
