"""Which attempt of a training may write its checkpoint.

Slurm may start a job again while processes of its last attempt still run: on a node that lost its
network, or stopped in the middle of a save. Such a stale attempt must never write over what a later
one saved, however long it was stopped and wherever in a save.

Each attempt makes a folder of its own in ``.NAME.attempts`` beside the checkpoint NAME, with a
higher number than all others, and then removes the others. A checkpoint is written inside that
folder and renamed out of it. So the rename of a stale attempt fails: what it would rename is gone.
The file system decides this in one step, and no process ever waits for another, as it would with a
lock: a stopped process keeps its lock, and a lock that can be broken protects nothing.

On NFS the server carries out mkdir, rename, unlink and rmdir one by one, so this holds between
clients too. A client may show an old listing of a folder, but not after a change of its own; hence
the probe before the first listing. Not covered: mounts that report a write or rename as done before
the server has it (``async`` exports after a crash of the server), and file systems whose rename is
not atomic (some FUSE and object-store mounts).
"""

import contextlib
import errno
import os
import re
import shutil
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.domain.errors import UsageError

SUPERSEDED = 77
"""Exit code of an attempt that a later one has taken over from."""
_NAME = re.compile(r"(\d{1,9})\.(\d{1,10}(?:_\d{1,10})?|none)\.(\d{1,7})\.([0-9a-f]{16})")
_OWNER = "owner"
_REMOVED, _PROBE = "removed.", "probe."
_PROBE_BYTES = 4096
_LONGEST_NAME = 255 - 17
"""Bytes: a save has a random word and a dot before the name."""
_PATIENCE_S = 5.0


class Superseded(SystemExit):
    """A later attempt writes this checkpoint now; the process ends with :data:`SUPERSEDED`.

    ``reason``: one sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(SUPERSEDED)
        self.reason = reason


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One attempt. The order is that of their numbers; see :meth:`supersedes`.

    ``number``: 1 for the first attempt. ``restarts``: Slurm's restart count of ``job``, which is
    ``none`` outside Slurm. ``token``: random.
    """

    number: int
    restarts: int
    job: str
    token: str

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.number}.{self.job}.{self.restarts}.{self.token}"

    @property
    def label(self) -> str:
        """What a message calls it."""
        where = "outside Slurm" if self.job == "none" else f"of job {self.job}"
        return f"attempt {self.number} {where} (restart {self.restarts})"

    def supersedes(self, other: "AttemptId") -> bool:
        """Whether this attempt takes over from ``other``.

        Of two starts of one job it is the later start: an attempt may have been stopped between
        choosing its number and making its folder, so that a stale one has the higher number.
        """
        if self.job == other.job != "none" and self.restarts != other.restarts:
            return self.restarts > other.restarts
        return self > other

    @classmethod
    def parse(cls, name: str) -> "AttemptId | None":
        """The attempt whose folder has this name; None for any other name."""
        match = _NAME.fullmatch(name)
        return None if match is None else cls(int(match[1]), int(match[3]), match[2], match[4])


def next_attempt(job: str, restarts: int, present: Collection[AttemptId], token: str) -> AttemptId:
    """The attempt that takes over from all of ``present``.

    Raises Superseded where a later start of the same job has taken over already.
    """
    for other in present:
        if job != "none" and other.job == job and other.restarts > restarts:
            raise Superseded(f"{other.label} has taken over")
    number = 1 + max((other.number for other in present), default=0)
    return AttemptId(number, restarts, job or "none", token)


def later(mine: AttemptId, present: Collection[AttemptId]) -> AttemptId | None:
    """The newest attempt in ``present`` that has taken over from ``mine``; None: there is none."""
    return max((other for other in present if other.supersedes(mine)), default=None)


class Attempt:
    """The right of this process to write the checkpoint ``path``, until another takes over."""

    def __init__(self, path: Path, identity: AttemptId) -> None:
        self.path, self.identity = path, identity
        self.folder = attempts_folder(path) / identity.name
        """Where checkpoints are written before they are published."""
        self.newest_is_damaged = False
        """Whether the file at ``path`` is damaged, so that it must not replace the one before."""

    @classmethod
    def begin(cls, path: Path, job: str, restarts: int) -> "Attempt":
        """Take over ``path`` from all earlier attempts; when this returns none of them can write.

        Raises Superseded where a later start of the same job has taken over already, UsageError
        where the checkpoint could not be written.
        """
        try:
            return cls._begin(path, job, restarts)
        except OSError as error:
            raise UsageError(
                f"checkpoint {path} could not be saved: {error.strerror or error} "
                f"({error.filename or path.parent})"
            ) from None

    @classmethod
    def _begin(cls, path: Path, job: str, restarts: int) -> "Attempt":
        _check_replaceable(path)
        container = attempts_folder(path)
        make_folder(container)
        _probe(container)
        token = os.urandom(8).hex()
        attempt = cls(path, next_attempt(job or "none", restarts, present(path), token))
        try:
            make_folder(attempt.folder)
            (attempt.folder / _OWNER).write_text(f"{socket.gethostname()} {os.getpid()}\n")
        finally:
            # Before any error: a later attempt may have removed the folder already.
            attempt._raise_if_later()
        try:
            for other in present(path):
                if attempt.identity.supersedes(other):
                    _remove(container / other.name)
        except OSError:
            # As where another user owns it: what cannot go on must not stand in the way of others.
            shutil.rmtree(attempt.folder, ignore_errors=True)
            raise
        _remove_leftovers(path)
        # Between the listing and the removal a later one may have begun.
        attempt._raise_if_later()
        return attempt

    @property
    def current(self) -> bool:
        """Whether no other attempt has taken over. Raises OSError where that cannot be seen."""
        try:
            # The folder alone proves nothing: a framework that saves into it makes it anew.
            (self.folder / _OWNER).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def check(self) -> None:
        """Raises Superseded where another attempt has taken over, OSError where that cannot be
        seen."""
        if self.current:
            return
        found = later(self.identity, present(self.path))
        if found is not None:
            raise Superseded(f"{found.label} has taken over")
        raise Superseded(f"{self.folder} was removed")

    def _raise_if_later(self) -> None:
        found = later(self.identity, present(self.path))
        if found is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise Superseded(f"{found.label} has taken over")


def attempts_folder(path: Path) -> Path:
    """Where the attempts to write the checkpoint ``path`` have their folders."""
    return path.with_name(f".{path.name}.attempts")


def present(path: Path) -> list[AttemptId]:
    """The attempts that have a folder; empty where there is none."""
    try:
        names = os.listdir(attempts_folder(path))  # noqa: PTH208
    except FileNotFoundError:
        return []
    return [found for found in map(AttemptId.parse, names) if found is not None]


def _check_replaceable(path: Path) -> None:
    """Raises OSError where ``path`` could not be replaced by a rename."""
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    if path.is_dir():
        raise IsADirectoryError(None, "it is a folder", str(path))
    folder = path.parent.stat()
    with contextlib.suppress(FileNotFoundError):
        owners = (path.stat().st_uid, folder.st_uid)
        if folder.st_mode & 0o1000 and os.geteuid() not in (0, *owners):
            raise PermissionError(None, "the file belongs to another user", str(path))


def make_folder(folder: Path) -> None:
    """Make it, if it is not there, with the group and the rights of the folder around it."""
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        # A group that shares the folder of its checkpoints shares this one.
        around = folder.parent.stat()
        os.chown(folder, -1, around.st_gid)
        folder.chmod(around.st_mode & 0o7777)


def _probe(container: Path) -> None:
    """Write a file and remove it. Raises OSError where that cannot be done."""
    probe = container / f"{_PROBE}{os.urandom(8).hex()}"
    handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        left = _PROBE_BYTES
        while left:
            # A full disk or a quota may take a part, and refuse the rest only when asked again.
            left -= os.write(handle, b"\0" * left)
        os.fsync(handle)
    finally:
        os.close(handle)
        probe.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Make every path through ``folder`` fail from now on. Raises OSError where it stays.

    Renamed first: what a process of this node holds open may stay in the folder on NFS, so that it
    cannot be removed. Then emptied: another node may still know the folder by its old name.
    """
    gone = folder.with_name(f"{_REMOVED}{os.urandom(8).hex()}")
    try:
        folder.rename(gone)
    except FileNotFoundError:
        return
    end = time.monotonic() + _PATIENCE_S
    while _rest(gone) and time.monotonic() < end:
        time.sleep(0.05)
    if _rest(gone):
        raise OSError(None, "files of an earlier attempt cannot be removed", str(gone))


def _rest(gone: Path) -> bool:
    """Remove what can be removed; whether anything is left that a process could publish."""
    shutil.rmtree(gone, ignore_errors=True)
    try:
        return any(not name.startswith(".nfs") for name in os.listdir(gone))  # noqa: PTH208
    except FileNotFoundError:
        return False


def _remove_leftovers(path: Path) -> None:
    """Remove what killed saves left: of attempts that were removed, and of releases before 0.1."""
    for folder in attempts_folder(path).glob(f"{_REMOVED}*"):
        shutil.rmtree(folder, ignore_errors=True)
    for probe in attempts_folder(path).glob(f"{_PROBE}*"):
        probe.unlink(missing_ok=True)
    old = re.compile(rf"\.{re.escape(path.name)}\.(\d+(\.link)?|aside)")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if old.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()
