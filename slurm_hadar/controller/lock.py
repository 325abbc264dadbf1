"""One controller at a time: a lock in its state folder, a heartbeat in the exchange folder.

Each state folder has a random identity, which stands in the heartbeat beside the host's name, so
that two controllers with one host name and a state folder each know each other apart. One that
finds no heartbeat, or an old one, writes its own first, and acts after :data:`SETTLE_S` if that
still stands.

A controller that was stopped in the middle of a tick goes on when another machine's may have taken
over. So it looks at the heartbeat (:func:`taken_over`) before it sends anything, and for each file
between writing it aside and its rename; the one that takes over writes its heartbeat first and then
removes what lies aside. Either the look finds the heartbeat, or the rename finds nothing. A command
to Slurm has no such second step: one that was on its way is carried out.
"""

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.state_errors import folder_error
from slurm_hadar.controller.journal.store import make_private
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange.heartbeat import (
    STOPPED,
    Heartbeat,
    Writer,
    read_heartbeat,
    write_heartbeat,
)
from slurm_hadar.folder_probe import ensure_answers

_POLL_S = 0.1
_LONGEST_INTERVAL_S = 3600.0
"""As hbatch has it; no file excludes all controllers without end."""
_MOST_AHEAD_S = 600.0
"""A heartbeat from further ahead is of no controller that could act: munge takes nothing from a
clock that is 300 s off. Within it the one whose clock is ahead acts, and the other one
steps back."""
SETTLE_S = 2.0
"""Two that take over at once both see the later heartbeat after this time."""
IDENTITY = "identity"
LOCK = "lock"
_WRITTEN = re.compile(r"([0-9a-f]{32}) (\d{1,20})")


@dataclass(frozen=True, slots=True)
class Who:
    """A controller. ``identity``: of its state folder; empty where it has none yet."""

    host: str
    identity: str = ""

    def wrote(self, beat: Heartbeat) -> bool:
        """Whether a heartbeat is this controller's; by the host alone where one of both has no
        identity, as in earlier versions."""
        known = bool(beat.identity and self.identity)
        return beat.host == self.host and (not known or beat.identity == self.identity)


def identity_of(folder: Path) -> str:
    """The identity of a state folder; empty where it has none of its own.

    The file names its own inode: a copy of the folder is another controller's.
    """
    with suppress(OSError, ValueError), (folder / IDENTITY).open("rb") as stream:
        match = _WRITTEN.fullmatch(stream.read(100).decode())
        if match and int(match[2]) == os.fstat(stream.fileno()).st_ino:
            return match[1]
    return ""


def _give_identity(folder: Path) -> None:
    """For the holder of the lock."""
    if identity_of(folder):
        return
    aside = folder / f".{IDENTITY}.{os.getpid()}"
    # On a full disk nothing is kept of this tick anyway.
    with suppress(OSError):
        with aside.open("w") as stream:
            stream.write(f"{os.urandom(16).hex()} {os.fstat(stream.fileno()).st_ino}")
        aside.replace(folder / IDENTITY)


def me(config: Config) -> Who:
    """This controller."""
    return Who(socket.gethostname(), identity_of(config.site.state_dir))


@contextmanager
def only_one(folder: Path, wait_s: float) -> Iterator[None]:
    """Hold the state folder's lock. Raises HadarError when another holds it after ``wait_s``."""
    make_private(folder)
    try:
        handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise folder_error(folder, error) from None
    try:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise HadarError(f"another hadar is running (lock in {folder})") from None
                time.sleep(_POLL_S)
        _give_identity(folder)
        yield
    finally:
        os.close(handle)


def rival(config: Config, now: float) -> str | None:
    """The host of another controller that is alive; None when we may act. Raises HadarError where
    the exchange folder does not answer."""
    return rival_in(newest_heartbeat(config), me(config), now)


def newest_heartbeat(config: Config) -> Heartbeat | None:
    """What the exchange folder shows; None where nothing is to be believed. Raises HadarError where
    the folder does not answer."""
    try:
        ensure_answers(str(config.site.exchange_dir))
    except OSError as error:
        raise HadarError(
            f"exchange folder {config.site.exchange_dir}: {error.strerror}; see its file system"
        ) from None
    return read_heartbeat(config.site.exchange_dir, config.controller_uid)


def rival_in(beat: Heartbeat | None, who: Who, now: float) -> str | None:
    """The host of the other controller that ``beat`` shows alive and acting; see :func:`rival`."""
    if beat is None or who.wrote(beat) or beat.mode != "act":
        return None
    if not is_fresh(beat, now) or (beat.host == who.host and is_left_behind(beat)):
        return None
    if beat.host == who.host and process_ended(beat):
        # On another machine of this name it may run, and ticks of a timer have a new one each.
        left = f"{silent_in_s(beat, now):.0f} s"
        more = (
            f"its process {beat.pid} has ended: without another heartbeat this one acts in {left}"
        )
        return f"{beat.host} (this host, another state folder; {more})"
    return _named(beat, who)


def process_ended(beat: Heartbeat) -> bool:
    """Whether no process of this machine has the number of a heartbeat's writer."""
    try:
        os.kill(max(1, beat.pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def process_name() -> str:
    """What tells this process from all others, also of machines of the same name: the machine's
    boot, the namespace in which its number counts, and when it started. Empty where the kernel does
    not show it, or shows the numbers of another namespace."""
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = Path("/proc/self/ns/pid").readlink().name
        return f"{boot} {space} {_started('self')}"
    except (OSError, IndexError):
        return ""


def _started(process: int | str) -> str:
    """When a process started, in clock ticks since the boot. Raises OSError, IndexError."""
    # Behind the program's name, which may hold anything.
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]


def is_left_behind(beat: Heartbeat) -> bool:
    """Whether a heartbeat is of a process that stays from tick to tick and, for sure, has ended on
    this machine, or is this process itself, whose state folder was lost meanwhile."""
    here = process_name() if beat.process else ""
    if not here or beat.process.split()[:2] != here.split()[:2]:
        return False
    if beat.process == here or process_ended(beat):
        return True
    try:
        # Another process may have its number by now.
        return _started(max(1, beat.pid)) != beat.process.split()[2]
    except (OSError, IndexError):
        # Hidden from this user (hidepid, SELinux): it may be alive.
        return False


def _named(beat: Heartbeat, who: Who) -> str:
    return beat.host if beat.host != who.host else f"{beat.host} (this host, another state folder)"


def say_stopped(config: Config) -> None:
    """Note in the heartbeat, where it is this controller's, that it ends in order: others need
    not wait until it is too old."""
    folder, who = config.site.exchange_dir, me(config)
    # Without it the heartbeat ends by its age.
    with suppress(OSError):
        ensure_answers(str(folder))
        beat = read_heartbeat(folder, config.controller_uid)
        if beat is not None and who.wrote(beat):
            write_heartbeat(folder, STOPPED, beat.interval_s, writer=Writer(who.identity))


def takes_over_from(beat: Heartbeat | None, who: Who, now: float) -> bool:
    """Whether ``who`` was not the last to act, by the last heartbeat, or long ago: then another one
    may be about to take over as well, and the heartbeat is looked at once more after a while. Where
    there is none two may begin at once."""
    return beat is None or not who.wrote(beat) or not is_fresh(beat, now)


def taken_over(config: Config, now: float) -> str:
    """Why a tick that wrote its heartbeat may send nothing more; empty where it may."""
    try:
        ensure_answers(str(config.site.exchange_dir))
    except OSError as error:
        return f"exchange folder {config.site.exchange_dir}: {error.strerror}"
    beat = read_heartbeat(config.site.exchange_dir, config.controller_uid)
    return taken_over_from(beat, me(config), now)


def taken_over_from(beat: Heartbeat | None, who: Who, now: float) -> str:
    """Why ``who`` may send nothing more in a tick; see :func:`taken_over`."""
    if beat is None or beat.mode != "act":
        return ""
    if not who.wrote(beat):
        return f"a controller on {_named(beat, who)} took over meanwhile"
    if not is_fresh(beat, now):
        return "the heartbeat of this tick has expired, another controller may be active now"
    return ""


def stop_file_exists(config: Config) -> bool:
    """Whether the stop file of the configuration is there. Raises OSError where this user may not
    look for it."""
    try:
        config.guards.stop_file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_fresh(beat: Heartbeat, now: float) -> bool:
    """Whether the writer of a heartbeat is taken for alive; a tick may be late, a clock ahead."""
    longest_s = _longest_s(beat)
    return -max(longest_s, _MOST_AHEAD_S) < now - beat.time < longest_s


def silent_in_s(beat: Heartbeat, now: float) -> float:
    """After how many seconds a heartbeat is too old, where no other one follows."""
    return beat.time + _longest_s(beat) - now


def _longest_s(beat: Heartbeat) -> float:
    return 3 * min(beat.interval_s, _LONGEST_INTERVAL_S) + 30


def controllers_uid(config: Config) -> int:
    """UID of who runs the controller, or will, as far as is known: the owner of the state folder,
    whose files other users believe."""
    if not config.site.controller_user:
        with suppress(OSError):
            return config.site.state_dir.stat().st_uid
    return config.controller_uid
