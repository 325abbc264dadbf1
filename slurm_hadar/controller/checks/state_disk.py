"""The disks below the state and exchange folders: whether the first is a local one, as SQLite's WAL
needs shared memory, and whether both have space left."""

import os
import re
from pathlib import Path

from slurm_hadar.controller.checks.finding import Finding

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p"),
    *("orangefs", "pvfs2", "panfs", "wekafs", "ocfs2", "gfs2", "glusterfs", "coda", "vastnfs"),
)
_OCTAL = re.compile(r"\\([0-3][0-7]{2})")
_FUSE_LOCAL = frozenset({"fuse.fuse-overlayfs", "fuse.ext4", "fuse.ntfs-3g", "fuseblk"})


_LITTLE_BYTES = 50 * 2**20
"""Below this a disk is nearly full: SQLite's log alone may take some of it."""


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
