"""``hadar check`` on the state folder and the exchange folder: whose they are, who may write, and
on which disks they lie: whether the state is on a local one, as SQLite's WAL needs shared memory,
and whether both have space left.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_hadar import users
from slurm_hadar.config import Config
from slurm_hadar.controller.checks.check_access import closed_folder
from slurm_hadar.controller.checks.controller_user import ControllerUser, controller_user
from slurm_hadar.controller.checks.finding import Finding, me
from slurm_hadar.controller.journal.notified_owners import FILE as ALERTS_FILE
from slurm_hadar.controller.journal.state_errors import place_cause
from slurm_hadar.controller.journal.store import FILE as STATE_FILE
from slurm_hadar.controller.lock import IDENTITY, LOCK, controllers_uid
from slurm_hadar.exchange.folder import why_not_given

_STATE_NAMES = (LOCK, IDENTITY, ALERTS_FILE)
"""What lies in a state folder beside the state file and what SQLite keeps with it."""
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p"),
    *("orangefs", "pvfs2", "panfs", "wekafs", "ocfs2", "gfs2", "glusterfs", "coda", "vastnfs"),
)
_OCTAL = re.compile(r"\\([0-3][0-7]{2})")
_FUSE_LOCAL = frozenset({"fuse.fuse-overlayfs", "fuse.ext4", "fuse.ntfs-3g", "fuseblk"})


_LITTLE_BYTES = 50 * 2**20
"""Below this a disk is nearly full: SQLite's log alone may take some of it."""


def folder_findings(config: Config, user: ControllerUser | None = None) -> Iterator[Finding]:
    """Both folders of the site. ``user``: as whom; None: see :func:`controller_user`."""
    user = user or controller_user(config)
    state, exchange = config.site.state_dir, config.site.exchange_dir
    if os.path.realpath(state) == os.path.realpath(exchange):
        yield Finding(
            "problem",
            f"state folder and exchange folder are both {state}: the first must be open to its "
            "owner alone, the second to all jobs",
            "set site.state_dir and site.exchange_dir to two folders",
        )
        return
    yield _state_finding(state, user)
    yield from filter(None, (disk_finding(state), space_finding("state", state)))
    yield _placed(config, exchange_finding(config, exchange, user))
    yield from filter(None, (space_finding("exchange", exchange),))


def _placed(config: Config, found: Finding) -> Finding:
    """A finding on the exchange folder, or why jobs do not get to a folder that is right."""
    state, exchange = config.site.state_dir, config.site.exchange_dir
    if found.level != "ok" or config.site.rights == "user":
        # In per-user mode the jobs are the controller's user's own.
        return found
    if Path(os.path.realpath(state)) in Path(os.path.realpath(exchange)).parents:
        return Finding(
            "problem",
            f"exchange folder {exchange} is inside state folder {state}, which only its owner may "
            "enter: jobs of other users cannot read their plans",
            "set site.exchange_dir to a folder outside site.state_dir",
        )
    closed = closed_folder(exchange) if config.site.rights == "operator" else None
    if closed is not None:
        return Finding(
            "warning",
            f"exchange folder {exchange}: not all users may enter {closed} above it, and jobs of "
            "those who may not cannot read their plans",
            f"let all users of jobs enter {closed}, or set site.exchange_dir to another folder",
        )
    return found


def _state_finding(state: Path, user: ControllerUser) -> Finding:
    try:
        found = state.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Finding(
            "warning",
            f"state folder {state} does not exist yet",
            f"{user.cure_first}install -d -m 0700 -o {user.for_cure} {state}",
        )
    except OSError as error:
        return Finding(
            "problem",
            f"state folder {state} cannot be looked at: {error.strerror}",
            f"let {user.for_cure} enter the folders above it",
        )
    if not stat.S_ISDIR(found.st_mode):
        return Finding(
            "problem",
            f"state folder {state} is no folder",
            "remove it, or set site.state_dir to a folder",
        )
    if found.st_uid != user.uid and user.uid == os.getuid() != 0:
        owner = users.name_of(found.st_uid)
        return Finding(
            "warning",
            f"state folder {state} is {owner}'s, so {me()} sees only a part of the site",
            f"where {owner} runs the controller: sudo -u {owner} hadar check; where {me()} is "
            f"to run it: {_take_over(state, found, me())}",
        )
    if found.st_uid != user.uid:
        return Finding(
            "problem",
            f"state folder {state} belongs to {users.name_of(found.st_uid)}, not to {user.name}, "
            "who runs the controller",
            _take_over(state, found, user.name),
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        return Finding(
            "problem", f"state folder {state} is not {user.name}'s alone", f"chmod 700 {state}"
        )
    if not user.can(state, os.R_OK | os.W_OK | os.X_OK):
        return Finding(
            "problem",
            f"state folder {state}: {user.name} cannot use it",
            place_cause(state)
            or f"chmod 700 {state}, and let {user.name} enter the folders above it",
        )
    return Finding("ok", f"state folder {state} is {user.name}'s alone")


def _take_over(state: Path, found: os.stat_result, name: str) -> str:
    """How a user gets a state folder that is another's. Only root's is given away, where none of
    it is anything but a controller's: it may be a folder of the system, or of a controller that
    runs, and another user may have put a state file there."""
    elsewhere = f"set site.state_dir to a folder of {name}'s own"
    if found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o022:
        return elsewhere
    given = [str(state)]
    try:
        for file in sorted(state.iterdir()):
            of_file = file.lstat()
            ours = file.name in _STATE_NAMES or file.name.startswith(STATE_FILE)
            if not (ours and stat.S_ISREG(of_file.st_mode) and of_file.st_uid == 0):
                return elsewhere
            given.append(str(file))
    except OSError:
        return f"{elsewhere}, or run: sudo hadar check"
    return f"chown {name} {' '.join(given)} && chmod 700 {state}"


def exchange_finding(config: Config, folder: Path, user: ControllerUser | None = None) -> Finding:
    """Whether jobs and the controller can use the exchange folder, and no other user can use our
    files. ``user``: as whom; None: see :func:`controller_user`."""
    user = user or controller_user(config)
    try:
        found = folder.stat()
    except PermissionError:
        return Finding(
            "problem",
            f"exchange folder {folder}: {user.name} may not enter the folders above it",
            f"let {user.name} and all users of jobs enter them",
        )
    except OSError:
        found = None
    unsafe = why_not_given(folder)
    elsewhere = f"{unsafe}, so set site.exchange_dir to a folder of its own"
    if found is None or not stat.S_ISDIR(found.st_mode):
        make = f"{user.cure_first}install -d -m 1777 -o {user.for_cure} {folder}"
        return Finding(
            "problem",
            f"exchange folder {folder} does not exist",
            elsewhere if unsafe else f"{make} on a file system that all nodes share",
        )
    mode = stat.S_IMODE(found.st_mode)
    if config.site.rights != "user" and mode != 0o1777:
        return Finding(
            "problem",
            f"exchange folder {folder} has mode {mode:o}, jobs cannot answer",
            elsewhere if unsafe else f"chmod 1777 {folder}",
        )
    owner = found.st_uid
    controller = controllers_uid(config)
    if config.site.rights == "operator" and owner != controller:
        name = users.name_of(controller) if user.known else "USER"
        return Finding(
            "problem",
            f"exchange folder {folder} belongs to {users.name_of(owner)}: only the owner of an "
            "open folder can replace or remove what others put there under the names of our files",
            elsewhere if unsafe else f"{user.cure_first}chown {name} {folder}",
        )
    if owner not in (controller, user.uid, 0):
        return Finding(
            "problem",
            f"exchange folder {folder} belongs to {users.name_of(owner)}, who can replace and "
            "remove all files in it",
            "set site.exchange_dir to a folder of your own",
        )
    ours = owner == user.uid
    # The mode as well: access says nothing where root asks.
    closed = ours and mode & 0o700 != 0o700
    if closed or not user.can(folder, os.R_OK | os.W_OK | os.X_OK):
        reach = "" if closed else f", and let {user.name} enter the folders above it"
        return Finding(
            "problem",
            f"exchange folder {folder} has mode {mode:o}: {user.name} cannot use it",
            f"chmod u+rwx {folder}{reach}"
            if ours and not unsafe
            else "set site.exchange_dir to a folder of your own",
        )
    return Finding("ok", f"exchange folder {folder}")


def space_finding(which: str, folder: Path) -> Finding | None:
    """Whether files can still be made below a folder; None where they can or that is unknown.
    ``which``: "state" or "exchange"."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    lost = "the journal stands still" if which == "state" else "no plan reaches a job"
    cure = f"free some space (df -h {folder}; df -i {folder}), or set site.{which}_dir"
    # Some file systems count neither blocks nor files: 0 of 0.
    if found.f_blocks and not found.f_bavail:
        return Finding("problem", f"{which} folder {folder}: its disk is full, so {lost}", cure)
    if found.f_files and not found.f_favail:
        what = f"{which} folder {folder}: its disk has no inode left for a new file, so {lost}"
        return Finding("problem", what, cure)
    free = found.f_bavail * found.f_frsize
    if found.f_blocks and free < _LITTLE_BYTES:
        what = f"{which} folder {folder}: its disk has only {free / 2**20:.0f} MiB left"
        return Finding("warning", what, cure)
    return None


def disk_finding(folder: Path, mounts: str | None = None) -> Finding | None:
    """A warning where the folder is on a network file system, None where it is not or where
    that is unknown. ``mounts``: the text of /proc/self/mountinfo."""
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text(errors="replace")
        except OSError:
            return None
    kind = _kind(folder, mounts)
    if kind in _NETWORK or (kind.startswith("fuse.") and kind not in _FUSE_LOCAL):
        return Finding(
            "warning",
            f"state folder {folder} is on a network file system ({kind}): the journal may be lost "
            "or damaged there when two machines write it",
            "set site.state_dir to a folder on a local disk of this machine",
        )
    return None


def _kind(folder: Path, mounts: str) -> str:
    """The type of the file system that holds a folder, the last mount on its deepest point."""
    place, best, kind = Path(os.path.realpath(folder)), -1, ""
    for line in mounts.splitlines():
        before, dash, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if not dash or len(fields) < 5 or not types:
            continue
        # Blanks and backslashes in a mount point are written as \040 and so on.
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        if (point == place or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), types[0]
    return kind
