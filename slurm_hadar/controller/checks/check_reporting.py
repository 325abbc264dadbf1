"""``hadar check`` on the tables that say who learns what, and whose jobs count: files, programs,
users and accounts that are not there. Parts that are switched off are not judged."""

import errno
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slurm_hadar import users
from slurm_hadar.config import AlertSettings, Config, uid_of
from slurm_hadar.controller.checks.controller_user import ControllerUser
from slurm_hadar.controller.checks.finding import Finding
from slurm_hadar.controller.lock import controllers_uid, process_ended
from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.exchange.heartbeat import STOPPED, read_heartbeat
from slurm_hadar.reading import shown
from slurm_hadar.slurm.accounting import unknown_accounts
from slurm_hadar.slurm.commands import Commands
from slurm_hadar.slurm.database import database_cure, database_message

_USUAL_MAIL_PROG = "/bin/mail"
"""Slurm's own default of MailProg."""
_USUAL_LOG = "/var/log/slurm-hadar/hadar.log"
"""Its folder is made by the units."""
_UNITS_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where systemd has a unit's programs looked up."""
_CHOICE = "alerts.command, alerts.smtp or alerts.mail_prog"


def reporting_findings(config: Config, user: ControllerUser) -> Iterator[Finding]:
    """What can be judged without Slurm: log, metrics and the live page."""
    if config.log.enabled and config.log.file is not None:
        yield from _file("log.file", config.log.file, user)
    if config.metrics.textfile is not None:
        yield from _file("metrics.textfile", config.metrics.textfile, user)
    if config.metrics.port and not _runs_here(config) and _is_taken(config.metrics.port):
        yield Finding(
            "problem",
            f"metrics.port: another process holds port {config.metrics.port}, and no controller "
            "runs here",
            "set metrics.port to a free one, or stop that process",
        )
    if config.web.proxy_user:
        try:
            uid_of("web.proxy_user", config.web.proxy_user)
        except UsageError as error:
            yield Finding("problem", str(error), "correct the name")


def people_findings(
    config: Config, settings: dict[str, str], user: ControllerUser
) -> Iterator[Finding]:
    """Alerts and the rollout. ``settings``: what slurmctld runs with."""
    if config.alerts.enabled:
        yield from _program(config.alerts, settings, user)
        yield from _operators(config.alerts)
    for name in config.rollout.users:
        if users.number_of(name) is None:
            yield Finding(
                "problem",
                f"rollout.users: there is no user {shown(name)} on this machine",
                "correct the name, then hadar check --write",
            )
    yield from _accounts(config, settings, user)


def _file(key: str, path: Path, user: ControllerUser) -> Iterator[Finding]:
    """A file that is written beside itself and renamed, or put aside: its folder counts too."""
    folder = path.parent
    if _is_folder(path):
        name = "hadar.log" if key == "log.file" else "hadar.prom"
        yield Finding(
            "problem",
            f"{key}: {path} is a folder, and {key} takes a file",
            f'set {key} = "{path / name}"',
        )
    elif not _is_there(folder, stat.S_IFDIR):
        yield Finding(
            "problem",
            f"{key}: folder {folder} does not exist",
            f"{user.cure_first}install -d -o {user.for_cure} {folder}, or correct {key}",
        )
    elif not user.is_controllers or not user.known:
        # The caller's rights say nothing of the controller's.
        return
    elif not user.can(folder, os.W_OK | os.X_OK):
        yield Finding(
            "problem",
            f"{key}: {user.name} cannot write in folder {folder}",
            _own_folder(key, folder, user),
        )
    elif path.exists() and not (path.is_file() and user.can(path, os.R_OK | os.W_OK)):
        yield Finding(
            "problem",
            f"{key}: {user.name} cannot write {path}",
            f"move it away, or correct {key}",
        )


def _own_folder(key: str, folder: Path, user: ControllerUser) -> str:
    """A cure that opens no folder of another user, such as /var/log with the machine's logs."""
    # A folder above it may be closed to the caller.
    with suppress(OSError):
        if folder.stat().st_uid == user.uid:
            return f"chmod u+wx {folder}, and let {user.name} enter the folders above it"
    usual = f", such as {_USUAL_LOG}" if key == "log.file" else ""
    return f"set {key} to a file in a folder of its own that {user.name} may write{usual}"


def _is_folder(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return stat.S_ISDIR(path.stat().st_mode)
    return False


def _is_there(path: Path, kind: int) -> bool:
    """Whether a file or folder exists, or is where the caller may not look: its rights say that."""
    try:
        return stat.S_IFMT(path.stat().st_mode) == kind
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False


def _runs_here(config: Config) -> bool:
    """Whether a controller of this machine may hold the port itself."""
    beat = read_heartbeat(config.site.exchange_dir, controllers_uid(config))
    if beat is None or beat.mode == STOPPED or beat.host != socket.gethostname():
        return False
    return not process_ended(beat)


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _program(
    alerts: AlertSettings, settings: dict[str, str], user: ControllerUser
) -> Iterator[Finding]:
    """The one program that alerts go through; a mail server is not asked."""
    if alerts.command:
        key, program = "alerts.command", alerts.command[0]
    elif alerts.smtp:
        return
    elif alerts.mail_prog is not None:
        key, program = "alerts.mail_prog", str(alerts.mail_prog)
    else:
        key, program = "MailProg of slurm.conf", settings.get("MailProg", "")
        program = program if program.startswith("/") else _USUAL_MAIL_PROG
    found = program if "/" in program else shutil.which(program)
    if found is None:
        yield Finding(
            "problem",
            f"{key}: there is no program {shown(program)} on this PATH",
            "write its full path: the PATH of the controller's unit counts",
        )
    elif not _is_there(Path(found), stat.S_IFREG):
        yield Finding(
            "problem", f"{key}: there is no program {shown(program)}", f"correct {_CHOICE}"
        )
    elif user.is_controllers and user.known and not user.can(Path(found), os.X_OK):
        yield Finding(
            "problem",
            f"{key}: {user.name} cannot run {found}",
            f"let {user.name} run it and enter the folders above it, or correct {_CHOICE}",
        )
    elif "/" not in program and str(Path(found).parent) not in _UNITS_PATH:
        yield Finding(
            "warning",
            f"{key}: {shown(program)} is on this PATH, but may not be on the PATH of the "
            "controller's unit",
            f"write its full path, {found}",
        )


def _operators(alerts: AlertSettings) -> Iterator[Finding]:
    if not alerts.operators:
        missed = "the controller" if alerts.owners else "the controller and of jobs"
        yield Finding(
            "warning",
            f"alerts.enabled is true and alerts.operators is empty: alerts of {missed} go to no "
            "user",
            "set alerts.operators to those who look after the controller",
        )
    if alerts.command or alerts.smtp or alerts.mail_domain:
        # Names of another system.
        return
    for name in alerts.operators:
        if "@" not in name and users.number_of(name) is None:
            yield Finding(
                "warning",
                f"alerts.operators: there is no user {shown(name)} on this machine",
                "correct the name, unless the mail system has an alias of it",
            )


def _accounts(config: Config, settings: dict[str, str], user: ControllerUser) -> Iterator[Finding]:
    hidden = "accounts" in settings.get("PrivateData", "").split(",") and not user.is_controllers
    without = settings.get("AccountingStorageType", "").endswith("/none")
    if not config.rollout.accounts or hidden or without:
        # Without a database an account may be any word.
        return
    commands = Commands(config.slurm.bin_dir, config.slurm.conf, config.slurm.timeout_s)
    try:
        unknown = unknown_accounts(commands, config.rollout.accounts)
    except SlurmError as error:
        yield Finding(
            "warning",
            f"rollout.accounts cannot be compared: {database_message(error)}",
            database_cure(error),
        )
        return
    for name in unknown:
        yield Finding(
            "problem",
            f"rollout.accounts: Slurm's accounting has no account {shown(name)}",
            "correct the name, then hadar check --write; sacctmgr show account lists them",
        )
