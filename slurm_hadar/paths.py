"""Where the configuration and the small JSON beside it lie, and whose they may be.

Plain strings and few imports, since ``hbatch`` comes here at every submit.
"""
# pathlib alone would cost a submit several milliseconds.
# ruff: noqa: PTH110, PTH111, PTH122, PTH123

from __future__ import annotations

import errno
import os
import stat

from slurm_hadar import users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENV = "HADAR_CONFIG"
"""Environment variable that names the configuration file."""
SYSTEM_CONFIG = "/etc/slurm-hadar/hadar.toml"
USER_CONFIG = "~/.config/slurm-hadar/hadar.toml"


def config_file(environment: Mapping[str, str]) -> str:
    """The configuration file: ``$HADAR_CONFIG``, the user's own, the system's, in this order."""
    named = environment.get(ENV)
    if named:
        return named
    own = os.path.expanduser(USER_CONFIG)
    return own if os.path.exists(own) else SYSTEM_CONFIG


def wrapper_file(config: str) -> str:
    """The small JSON beside the TOML that hbatch reads."""
    return os.path.splitext(config)[0] + ".hbatch.json"


WRAPPER_BYTES = 1 << 20
"""The most that hbatch reads of it."""
PACKAGED_USER = "hadar"
"""The controller's user as the systemd units and the packages have it."""


def opened(path: str, system_config: str = SYSTEM_CONFIG) -> int:
    """A handle of a configuration, or of the JSON beside it, that may be believed.

    These files name programs that run as the reading user, and ``$HADAR_CONFIG`` and ``$HOME``
    pass through ``sudo -E``. So a file counts that belongs to root, to the controller's user or to
    the caller, and that not every user may change. Raises OSError; its ``strerror`` says why.
    """
    # Never waits for the other end of a pipe.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        why = distrust(status.st_mode, status.st_uid, lambda: controller_uid(system_config))
    except BaseException:
        os.close(handle)
        raise
    if not why:
        return handle
    os.close(handle)
    raise PermissionError(errno.EPERM, why, path)


def distrust(mode: int, owner: int, controller: Callable[[], int | None]) -> str:
    """Why a file of this mode and owner is not believed; empty where it is."""
    if not stat.S_ISREG(mode):
        return "it is not a regular file"
    if mode & stat.S_IWOTH:
        return "every user may change it; run chmod o-w on it"
    if owner in (0, os.geteuid()) or owner == controller():
        return ""
    name = users.name_of(owner, f"UID {owner}")
    return (
        f"it belongs to {name}; a configuration must belong to root, the controller's user or the "
        "caller"
    )


def controller_uid(system_config: str = SYSTEM_CONFIG) -> int | None:
    """UID of the controller's user as root says it: in the JSON beside the system's configuration,
    else by the name that the packages use. None where there is no such user."""
    import json

    try:
        with open(wrapper_file(system_config), "rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_uid == 0 and stat.S_ISREG(status.st_mode):
                found = json.loads(stream.read(WRAPPER_BYTES))
                if isinstance(found, dict) and type(found.get("controller_uid")) is int:
                    return int(found["controller_uid"])
    except (OSError, ValueError, RecursionError):
        pass
    return users.number_of(PACKAGED_USER)
