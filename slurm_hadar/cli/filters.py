"""Filters by users and accounts: an unknown name is one sentence, not an empty list."""

import os
import sys
from collections.abc import Iterable

from slurm_hadar import users
from slurm_hadar.config import Config
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.reading import shown
from slurm_hadar.slurm import accounting
from slurm_hadar.slurm.commands import Commands

ALL = "all"
"""In place of users: those of all."""
_TIMEOUT_S = 10.0


def names_of(value: str) -> list[str]:
    """The names of a list with commas."""
    return [name for name in value.split(",") if name]


def me() -> str:
    """The caller's name, or number where there is none."""
    return users.name_of(os.getuid())


def require_users(names: Iterable[str]) -> None:
    """Raises HadarError for a name that is no user of this host."""
    for name in names:
        if users.number_of(name) is None:
            raise HadarError(f"there is no user {shown(name)} on this host")


def require_accounts(site: Config, names: Iterable[str]) -> None:
    """Raises HadarError for accounts that Slurm does not know. Where it has no database of accounts
    a job's account may be any word: then a line on stderr says that they are not checked."""
    wanted = list(names)
    if not wanted:
        return
    commands = Commands(site.slurm.bin_dir, site.slurm.conf, _TIMEOUT_S)
    try:
        unknown = accounting.unknown_accounts(commands, wanted)
    except SlurmError:
        names_text = ", ".join(shown(name) for name in wanted)
        print(
            f"hadar: no job shown is of account {names_text}; whether Slurm has it is not known, "
            "as sacctmgr shows no accounts",
            file=sys.stderr,
        )
        return
    if unknown:
        raise HadarError(
            f"Slurm shows you no account {shown(unknown[0])}; sacctmgr show account lists those "
            "that there are"
        )
