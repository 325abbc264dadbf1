"""Whether the Slurm that we steer is a sandbox, of the user who runs the controller."""

import os
import re
from pathlib import Path

from slurm_hadar import reading, users
from slurm_hadar.config import Config

_PLACES = (
    "/run/slurm/conf/slurm.conf",
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
)
"""Where Slurm looks when no variable names one."""
_LOOPBACK = re.compile(r"\S+\((127\.[0-9.]+|::1)\)")
_LINE = re.compile(r"\s*(SlurmctldHost|SlurmUser)\s*=\s*(\S+)", re.IGNORECASE)


def is_sandbox(config: Config) -> bool:
    """Whether slurmctld listens on this machine's loopback address alone, and SlurmUser is the
    caller: such a Slurm serves no other user.

    Source slurm.conf itself, so that nothing is asked of a Slurm before this is known.
    """
    settings = _settings(config)
    hosts, users = settings["slurmctldhost"], settings["slurmuser"]
    return (
        bool(hosts)
        and all(_LOOPBACK.fullmatch(host) for host in hosts)
        and _uid(users[-1] if users else "root") == os.geteuid()
    )


def is_slurm_user(config: Config) -> bool:
    """Whether this process is SlurmUser, as far as slurm.conf can be read here."""
    users = _settings(config)["slurmuser"]
    return bool(users) and _uid(users[-1]) == os.geteuid()


def _settings(config: Config) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"slurmctldhost": [], "slurmuser": []}
    named = config.slurm.conf or os.environ.get("SLURM_CONF")
    for place in (named,) if named else _PLACES:
        try:
            text = reading.content(Path(place), reading.TABLE_BYTES).decode(errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            match = _LINE.match(line.partition("#")[0])
            if match:
                found[match[1].lower()].append(match[2])
        break
    return found


def _uid(user: str) -> int | None:
    try:
        return int(user) if user.isdecimal() else users.number_of(user)
    except ValueError:
        return None
