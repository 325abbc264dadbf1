"""One controller at a time: a lock on this machine, a heartbeat across machines.

A controller that was stopped in the middle of a tick goes on when another machine's may have taken
over. So it looks at the heartbeat (:func:`taken_over`) before it sends anything, and for each file
between writing it aside and its rename; the one that takes over writes its heartbeat first and then
removes what lies aside. Either the look finds the heartbeat, or the rename finds nothing. A command
to Slurm has no such second step: one that was on its way is carried out.
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import make_private
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.runtime.heartbeat import Heartbeat, read_heartbeat

_POLL_S = 0.1
_LONGEST_INTERVAL_S = 3600.0
"""As hbatch has it; no file keeps everybody away for ever."""
_MOST_AHEAD_S = 600.0
"""A heartbeat from further ahead is of no controller that could act: munge takes nothing from a
clock that is 300 s off. Within it whoever's clock is ahead acts, and the other one steps back."""
SETTLE_S = 2.0
"""Two that take over at once both see the later heartbeat after this time."""


@contextmanager
def only_one(folder: Path, wait_s: float) -> Iterator[None]:
    """Hold the state folder's lock. Raises HadarError when another holds it after ``wait_s``."""
    make_private(folder)
    handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise HadarError(
                        f"another hadar is in the middle of a tick here (lock in {folder})"
                    ) from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


def rival(config: Config, now: float) -> str | None:
    """The host of another controller that is alive; None when we may act."""
    beat = read_heartbeat(config.site.exchange_dir, config.controller_uid)
    return rival_in(beat, socket.gethostname(), now)


def rival_in(beat: Heartbeat | None, host: str, now: float) -> str | None:
    """The host of the other controller that ``beat`` shows alive and acting; see :func:`rival`."""
    if beat is None or beat.host == host or beat.mode != "act":
        return None
    return beat.host if is_fresh(beat, now) else None


def takes_over(config: Config, now: float) -> bool:
    """Whether another controller, or this one long ago, was the last to act: then somebody else may
    be about to take over as well, and the heartbeat is looked at once more after a while."""
    beat = read_heartbeat(config.site.exchange_dir, config.controller_uid)
    return takes_over_from(beat, socket.gethostname(), now)


def takes_over_from(beat: Heartbeat | None, host: str, now: float) -> bool:
    """Whether the controller on ``host`` takes over from who wrote ``beat``; see
    :func:`takes_over`."""
    if beat is None:
        return False
    return beat.host != host or not is_fresh(beat, now)


def taken_over(config: Config, now: float) -> str:
    """Why a tick that wrote its heartbeat may send nothing more; empty where it may."""
    beat = read_heartbeat(config.site.exchange_dir, config.controller_uid)
    return taken_over_from(beat, socket.gethostname(), now)


def taken_over_from(beat: Heartbeat | None, host: str, now: float) -> str:
    """Why the controller on ``host`` may send nothing more in a tick; see :func:`taken_over`."""
    if beat is None or beat.mode != "act" or not takes_over_from(beat, host, now):
        return ""
    if beat.host != host:
        return f"a controller on {beat.host} took over meanwhile"
    return "this tick has taken longer than its heartbeat lasts, another controller may act now"


def is_fresh(beat: Heartbeat, now: float) -> bool:
    """Whether whoever wrote a heartbeat is taken for alive; a tick may be late, a clock ahead."""
    longest_s = 3 * min(beat.interval_s, _LONGEST_INTERVAL_S) + 30
    return -max(longest_s, _MOST_AHEAD_S) < now - beat.time < longest_s
