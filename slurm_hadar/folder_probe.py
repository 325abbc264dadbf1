"""A folder that may never answer, such as a network mount whose server is gone.

A process that waits for such a folder in the kernel can often not be ended, not even by SIGKILL,
and a process that waits for it waits as well. So a child of our own looks into the folder, and
is left behind where it gives no answer. Few imports, since ``hbatch`` comes here.
"""
# pathlib or contextlib alone would cost a submit a millisecond or more.
# ruff: noqa: PTH102, PTH112, PTH118, SIM105

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ANSWER_S = 5.0
"""Longest wait for a folder."""
SKIP_S = 60.0
"""A folder that did not answer is left alone this long."""
_FRESH_S = 1.0
"""An answer counts this long for the process that got it."""
_MOST_BYTES = 1 << 24

_answered: dict[str, float] = {}
_silent: dict[str, float] = {}
_left_behind: list[int] = []


class Unanswered(OSError):
    """The folder gave no answer in time, now or a moment ago."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            errno.ETIMEDOUT, f"no answer; it is left alone for {SKIP_S:g} s after each try", folder
        )


def asked(
    folder: str, work: Callable[[], bytes], limit_s: float = ANSWER_S, *, marks: bool = True
) -> bytes:
    """What ``work``, which looks into ``folder``, returns; it runs in a child of this process.

    ``marks``: also leave the folder alone where another process of this user got no answer, and
    tell those that come later. Raises :class:`Unanswered`, and OSError where ``work`` fails.
    """
    return ask(folder, work, limit_s, marks=marks)()


def ask(
    folder: str, work: Callable[[], bytes], limit_s: float = ANSWER_S, *, marks: bool = True
) -> Callable[[], bytes]:
    """As :func:`asked`, in two parts: the child begins now, and what this returns, called once,
    waits for its answer. Either may raise :class:`Unanswered`."""
    now = time.monotonic()
    if now - _silent.get(folder, -SKIP_S) < SKIP_S or (marks and _is_marked(folder)):
        raise Unanswered(folder)
    _reap()
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(work, theirs)
    os.close(theirs)

    def answer() -> bytes:
        try:
            said = _read(ours, now + limit_s)
        finally:
            os.close(ours)
        if said is None:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
            _left_behind.append(pid)
            _silent[folder] = time.monotonic()
            if marks:
                _mark(folder)
            raise Unanswered(folder)
        os.waitpid(pid, 0)
        if not said.startswith(b"+"):
            raise OSError(errno.EIO, said[1:].decode(errors="replace") or "it failed", folder)
        return said[1:]

    return answer


def ensure_answers(folder: str) -> None:
    """Return when the folder answers, or has within the last second. Raises :class:`Unanswered`."""
    if time.monotonic() - _answered.get(folder, -SKIP_S) < _FRESH_S:
        return

    def look() -> bytes:
        try:
            with os.scandir(folder) as entries:
                next(entries, None)
        except OSError:
            pass
        return b""

    asked(folder, look, marks=False)
    _answered[folder] = time.monotonic()


def _answer(work: Callable[[], bytes], out: int) -> None:
    """In the child: nothing of the parent's stays open, so that no process waits for its end."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(nothing, handle)
        os.dup2(out, 3)
        os.closerange(4, 1 << 16)
        try:
            said = b"+" + work()
        except OSError as error:
            said = b"-" + (error.strerror or "").encode()
        left = memoryview(said)
        while left:
            left = left[os.write(3, left) :]
    finally:
        os._exit(0)


def _read(handle: int, until: float) -> bytes | None:
    """All that the child says; None where it does not come in time."""
    parts: list[bytes] = []
    size = 0
    while True:
        ready, _, _ = select.select([handle], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        part = os.read(handle, 1 << 16)
        size += len(part)
        if not part or size > _MOST_BYTES:
            return b"".join(parts)
        parts.append(part)


def _reap() -> None:
    for pid in [*_left_behind]:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        except ChildProcessError:
            pass
        _left_behind.remove(pid)


def _mark_path(folder: str, make: bool = False) -> str:
    """A file in a folder of this user's on this machine; ``make``: that folder, where it lacks."""
    uid = os.geteuid()
    own = f"/run/user/{uid}"
    if not os.path.isdir(own):
        # Whose it is, and who may write there, is looked at below.
        own = f"/tmp/slurm-hadar-{uid}"  # noqa: S108
        if make:
            try:
                os.mkdir(own, 0o700)
            except FileExistsError:
                pass
    status = os.lstat(own)
    if status.st_uid != uid or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
        raise OSError(errno.EPERM, "belongs to another user", own)
    return os.path.join(own, "unanswered." + folder.encode().hex()[-200:])


def _mark(folder: str) -> None:
    try:
        path = _mark_path(folder, make=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.utime(handle)
        os.close(handle)
    except OSError:
        pass


def _is_marked(folder: str) -> bool:
    """Whether a fresh mark is there; an old one is removed, with its folder where that is empty."""
    try:
        path = _mark_path(folder)
        if 0.0 <= time.time() - os.lstat(path).st_mtime < SKIP_S:
            return True
        os.unlink(path)  # noqa: PTH108
        # /run/user/UID is systemd's.
        if not path.startswith("/run/user/"):
            os.rmdir(os.path.dirname(path))  # noqa: PTH106, PTH120
    except OSError:
        pass
    return False
