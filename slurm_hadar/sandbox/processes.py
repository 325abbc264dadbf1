"""The processes of one sandbox: who they are, waiting for their end, ending them."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox.places import SHORT_RUN, SandboxPaths

_NAMES = {
    "slurmctld",
    "slurmscriptd",
    "slurmd",
    "slurmstepd",
    "munged",
    "slurmdbd",
    "mariadbd",
}


def wait_until(condition: Callable[[], object], seconds: float, every_s: float = 0.05) -> bool:
    """Whether ``condition`` came true within ``seconds``, asked ``every_s``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(every_s)
    return True


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    return _state(pid)[0] not in ("", "Z", "X")


def _state(pid: int) -> tuple[str, int]:
    """State letter and parent of a process; "" and 0 when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[1])
    except (OSError, IndexError, ValueError):
        return "", 0


def pid_of(file: Path, places: SandboxPaths) -> int | None:
    """The live process of ours behind a pid file, None when there is none."""
    try:
        pid = int(file.read_text())
    except (OSError, ValueError):
        return None
    return pid if is_alive(pid) and _is_ours(pid, places) else None


def ours(places: SandboxPaths, names: Iterable[str] = _NAMES) -> list[int]:
    """Live daemons and steps of this sandbox."""
    wanted = set(names)
    return [
        pid
        for pid in _all_pids()
        if _command(pid) in wanted and is_alive(pid) and _is_ours(pid, places)
    ]


def raise_for_left(places: SandboxPaths) -> None:
    """Raises HadarError where a process of a sandbox that was ended is still there."""
    if left := ours(places):
        raise HadarError(
            f"processes of the sandbox in {places.folder} do not end: " + ", ".join(map(str, left))
        )


def steps(places: SandboxPaths) -> list[int]:
    """The slurmstepds of this sandbox."""
    return ours(places, ("slurmstepd",))


def without_record(folder: Path) -> SandboxPaths | None:
    """The places of this user's sandbox in a folder that is gone; None where none runs. munged,
    the first daemon to start and the last to end, names them in its command line."""
    key = b"--key-file=" + os.fsencode(SandboxPaths(folder, folder).munge / "key")
    for pid in _all_pids():
        try:
            process = Path(f"/proc/{pid}")
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            own = process.stat().st_uid == os.geteuid()
        except OSError:
            continue
        if own and key in arguments and _command(pid) == "munged" and is_alive(pid):
            for run in _socket_folders(arguments):
                # No other folder is a sandbox's: it is removed with what is in it.
                if run == folder / "run" or str(run).startswith(SHORT_RUN):
                    return SandboxPaths(folder, run)
    return None


def _socket_folders(arguments: Iterable[bytes]) -> Iterator[Path]:
    for argument in arguments:
        option, _, path = argument.partition(b"=")
        if option == b"--socket":
            yield Path(os.fsdecode(path)).parent


def descendants(pids: Iterable[int]) -> list[int]:
    """Live processes below ``pids``."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        children.setdefault(_state(pid)[1], []).append(pid)
    found: list[int] = []
    queue = list(pids)
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return [pid for pid in found if is_alive(pid)]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal; a process that has gone meanwhile is fine."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def end(pids: list[int], grace_s: float) -> None:
    """TERM, and KILL for those that are there after ``grace_s``."""
    send(pids, signal.SIGTERM)
    if not wait_until(lambda: not any(map(is_alive, pids)), grace_s):
        send([pid for pid in pids if is_alive(pid)], signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), 5.0)


def kill_trees(tops: Iterable[int]) -> None:
    """KILL these processes and all below them, which are stopped first: one that is killed as it
    begins another would leave that one behind."""
    first = set(tops)
    found: set[int] = set()
    while new := {*first, *descendants(first)} - found:
        send(new, signal.SIGSTOP)
        wait_until(partial(_stand_still, new), 2.0, 0.005)
        found |= new
    send(found, signal.SIGKILL)


def _stand_still(pids: Iterable[int]) -> bool:
    return all(_state(pid)[0] in ("", "Z", "X", "T", "t") for pid in pids)


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _is_ours(pid: int, places: SandboxPaths) -> bool:
    """Daemons are known by their name and by what only ours have: our SLURM_CONF, our paths in
    their arguments, or one of our logs open (a slurmstepd writes over its environment)."""
    if _command(pid) not in _NAMES:
        return False
    folder = Path(f"/proc/{pid}")
    try:
        environ = (folder / "environ").read_bytes().split(b"\0")
        named = [word for word in environ if word.startswith(b"SLURM_CONF=")]
        if named:
            return named == [b"SLURM_CONF=" + os.fsencode(places.slurm_conf)]
        words = (folder / "cmdline").read_bytes().split(b"\0")
        if b"--socket=" + os.fsencode(places.munge_socket) in words:
            return True
        inside = tuple(f"{path}/" for path in (places.log, places.run))
        return any(_target(fd).startswith(inside) for fd in (folder / "fd").iterdir())
    except OSError:
        return False


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:
        return ""
