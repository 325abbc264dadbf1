"""``hadar check`` on its file, stop file and sockets: whether those who need them reach them."""

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slurm_hadar.config import Config, uid_of
from slurm_hadar.controller.checks.controller_user import ControllerUser, rights_of_user
from slurm_hadar.controller.checks.finding import Finding
from slurm_hadar.controller.lock import stop_file_exists
from slurm_hadar.domain.errors import UsageError


def access_findings(config: Config, user: ControllerUser) -> Iterator[Finding]:
    """The stop file, and the sockets of ``hadar run`` and ``hadar web``. ``user``: whose rights
    count as the controller's."""
    yield from _stop_file(config, user)
    if config.status.serve:
        set_here = config.status.socket is not None
        yield from _socket(config, user, "status.socket", config.status_socket, set_here)
    set_here = config.web.socket is not None
    yield from _socket(config, user, "web.socket", config.web_socket, set_here)


def file_findings(config: Config, path: Path) -> Iterator[Finding]:
    """Whether users can read the configuration, as their ``hadar status`` and others do."""
    if config.site.rights != "operator" or not path.is_file():
        return
    closed = closed_folder(path.parent)
    if closed or not path.stat().st_mode & stat.S_IROTH:
        yield Finding(
            "warning",
            f"{path} is not for all users to read: hadar status, explain, doctor and report fail "
            "for those who cannot",
            f"chmod {'o+x' if closed else 'o+r'} {shlex.quote(str(closed or path))}; what is "
            "secret belongs into a file of its own, which the program of alerts.command reads",
        )


def closed_folder(folder: Path) -> Path | None:
    """The first folder on the way to ``folder``, itself included, that users other than its owner
    and group may not enter; None where there is none or that is unknown."""
    place = Path(os.path.realpath(folder))
    for one in (*reversed(place.parents), place):
        try:
            mode = one.stat().st_mode
        except OSError:
            return None
        if not mode & stat.S_IXOTH:
            return one
    return None


def _stop_file(config: Config, user: ControllerUser) -> Iterator[Finding]:
    path = config.guards.stop_file
    folder = path.parent
    if _is_missing(folder):
        if "stop_file" in config.guards.model_fields_set:
            yield Finding(
                "warning",
                f"guards.stop_file: folder {folder} does not exist, so touch {path} fails when "
                "the controller has to stop",
                f"install -d {folder}, or correct guards.stop_file",
            )
    elif user.is_controllers and user.known and not user.can(folder, os.X_OK):
        yield Finding(
            "problem",
            f"guards.stop_file: {user.name} cannot look for {path}, so the controller changes "
            "nothing",
            f"set guards.stop_file to a file in a folder that {user.name} may enter, such as "
            "/etc/slurm-hadar",
        )
    with suppress(OSError):
        if stop_file_exists(config):
            yield Finding(
                "warning",
                f"guards.stop_file: {path} exists, so the controller changes nothing",
                f"rm {shlex.quote(str(path))}, once it may go on",
            )


def _socket(
    config: Config, user: ControllerUser, key: str, path: Path, set_here: bool
) -> Iterator[Finding]:
    folder = path.parent
    make = f"{user.cure_first}install -d -m 0755 -o {user.for_cure} {folder}"
    without = f"remove {key}, whose default the controller can use"
    if config.site.rights == "operator":
        without = f"remove {key}: the units make the folder of its default"
        if not set_here:
            without = f"{make}, as the units do when they start"
    if _is_missing(folder):
        # The units make the folder of the default when they start.
        if set_here:
            yield Finding(
                "problem",
                f"{key}: folder {folder} does not exist",
                f"{make}, or {without}",
            )
        return
    if not set_here and config.site.rights != "operator":
        # In the state folder, which another finding judges.
        return
    if user.is_controllers and user.known and not user.can(folder, os.W_OK | os.X_OK):
        yield Finding(
            # hadar web is optional, and another user may run it.
            "warning" if key == "web.socket" else "problem",
            f"{key}: {user.name} cannot make the socket in folder {folder}",
            f"set {key} to a file in a folder of its own that {user.name} may write, or {without}",
        )
    elif config.site.rights == "operator":
        yield from _callers(config, key, folder, without)


def _callers(config: Config, key: str, folder: Path, without: str) -> Iterator[Finding]:
    """Whether those who connect reach a socket: all users, or the web server alone."""
    closed = closed_folder(folder)
    if closed is None:
        return
    who, proxy = "users", config.web.proxy_user if key == "web.socket" else ""
    if proxy:
        try:
            may_enter = rights_of_user(uid_of("web.proxy_user", proxy)).can(folder, os.X_OK)
        except UsageError:
            # Another finding says so.
            return
        if may_enter:
            return
        who = proxy
    yield Finding(
        "problem",
        f"{key}: {who} cannot enter folder {closed}, so they cannot connect to the socket below it",
        f"set {key} to a file in a folder that {who} may enter, or {without}",
    )


def _is_missing(folder: Path) -> bool:
    try:
        return not stat.S_ISDIR(folder.stat().st_mode)
    except PermissionError:
        return False
    except OSError:
        return True
