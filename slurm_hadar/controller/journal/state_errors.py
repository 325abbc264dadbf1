"""Messages about the state folder and its file: why they cannot be used, with the cause and a cure;
and that the file is new where an earlier one would be expected."""

import errno
import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path

from slurm_hadar import users
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange.folder import why_not_given
from slurm_hadar.reports import formats

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ELSEWHERE = "set site.state_dir to a folder on a local disk"


def folder_error(folder: Path, error: OSError) -> HadarError:
    """What the operator sees where the folder cannot be made or written."""
    return HadarError(
        f"state folder {folder} cannot be used ({error.strerror}): {_cause_of(folder, error)}"
    )


def heartbeat_error(folder: Path, error: OSError) -> HadarError:
    """The same of the exchange folder, into which a controller writes at each tick."""
    return HadarError(
        f"the heartbeat in {folder} cannot be written ({error.strerror}): "
        f"{_exchange_cause(folder, error)}"
    )


def require_own(folder: Path, found: os.stat_result) -> None:
    """Raises HadarError for what is no folder, or another user's. ``found``: of the folder
    itself, not of what a link leads to."""
    if not stat.S_ISDIR(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no folder"
        raise HadarError(
            f"state folder {folder} is {what}; remove it, or set site.state_dir to a folder"
        )
    if found.st_uid != os.getuid():
        owner, own = _name(found.st_uid), _name(os.getuid())
        raise HadarError(
            f"state folder {folder} does not belong to {own} but to {owner}; run as {owner} if "
            f"{owner} runs the controller, else set site.state_dir to a folder of {own}'s own"
        )


def file_cause(path: Path, error: sqlite3.Error) -> str:
    """Why SQLite cannot use a file that is not damaged, and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return _full(path)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"another process has it in use; find it with: fuser {path}"
    found = None
    # As where the folder may not be entered.
    with suppress(OSError):
        found = path.stat()
    if found is not None and not stat.S_ISREG(found.st_mode):
        return "it is no file; remove it"
    if (place := place_cause(path.parent)) is not None:
        return place
    if found is not None and found.st_uid != os.geteuid():
        owner, own = found.st_uid, _name(os.geteuid())
        # Another user may have put it there.
        cure = f"chown {own} {path}" if owner == 0 else f"set site.state_dir to a folder of {own}'s"
        return f"it belongs to {_name(owner)}; {cure}"
    usable = os.access(path.parent, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)
    if found is not None:
        usable = usable and os.access(path, os.R_OK | os.W_OK, effective_ids=True)
    if not usable:
        return f"this user may not write it; run: chmod 600 {path} && chmod 700 {path.parent}"
    return "its disk may be full or failing; see df and dmesg"


def new_file_message(folder: Path, steered: int, of_another_host: bool = False) -> str:
    """Where ``steered`` jobs were steered before: an admin may have wanted a new folder.
    ``of_another_host``: by a controller there, whose file is its own."""
    text = (
        f"{folder} holds no earlier state file, and {formats.counted(steered, 'job')} were steered "
        "before it was made: what was done to them is read from Slurm and the exchange folder; "
        "measured speeds and history begin anew"
    ).replace("1 job were", "1 job was")
    if of_another_host:
        return text
    return (
        f"{text}. If another folder holds the earlier file, stop the controller and set "
        "site.state_dir to it, or move it here"
    )


def _cause_of(folder: Path, error: OSError) -> str:
    if error.errno in _FULL:
        return _full(folder)
    if error.errno == errno.EROFS:
        return _read_only(folder)
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is in its place or above it; remove that, or set site.state_dir"
    if isinstance(error, PermissionError):
        own = _name(os.getuid())
        name = str(error.filename or "")
        if name != str(folder) and _is_file(name):
            return f"{own} may not write {name}; run as root: chown {own} {name}; chmod 600 {name}"
        cure = f"run as root: install -d -m 0700 -o {own} {folder}"
        with suppress(OSError):
            if (owner := folder.stat().st_uid) != os.geteuid():
                return f"it belongs to {_name(owner)}; if {own} is to use it, {cure}"
        above = next((one for one in folder.parents if os.access(one, os.F_OK)), folder)
        return f"{own} may not write in it or in {above}; {cure}"
    return f"see its disk, or {_ELSEWHERE}"


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:
        return False


def _exchange_cause(folder: Path, error: OSError) -> str:
    make = f"run as root: install -d -m 1777 -o {_name(os.geteuid())} {folder}"
    if error.errno in _FULL:
        return f"its disk is full; free some space (df {folder})"
    if error.errno == errno.EROFS:
        return f"its file system is read-only (findmnt -T {folder}); mount it writable"
    if isinstance(error, FileNotFoundError):
        return _not_given(folder) or f"the folder is gone; mount it, or {make}"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is in its place or above it; remove that, or set site.exchange_dir"
    if not isinstance(error, PermissionError):
        return f"see its disk (df {folder}), then hadar check"
    try:
        owner = folder.stat().st_uid
    except OSError:
        above = next((one for one in folder.parents if os.access(one, os.X_OK)), folder)
        return f"let {_name(os.geteuid())} enter the folders below {above}"
    return f"it belongs to {_name(owner)}; {_not_given(folder) or make}"


def _not_given(folder: Path) -> str:
    unsafe = why_not_given(folder)
    return f"{unsafe}, so set site.exchange_dir to a folder of its own" if unsafe else ""


def place_cause(folder: Path) -> str | None:
    """What the file system of a folder says; None where there is nothing."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    if found.f_flag & os.ST_RDONLY:
        return _read_only(folder)
    return _full(folder) if found.f_blocks and not found.f_bavail else None


def _full(place: Path) -> str:
    return f"its disk is full; free some space (df {place}), or {_ELSEWHERE}"


def _read_only(place: Path) -> str:
    return f"its file system is read-only (findmnt -T {place}); mount it writable, or {_ELSEWHERE}"


def _name(uid: int) -> str:
    return users.name_of(uid, f"user {uid}")
