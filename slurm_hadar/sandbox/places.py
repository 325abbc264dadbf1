"""Where the parts of a sandbox lie."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.sandbox.pretend_devices import make_devices

_SAFE = re.compile(r"/[A-Za-z0-9_.+/-]*")
_SOCKET_MOST = 107
"""Longest path of a unix socket, bytes (108 with the closing zero)."""
_LONGEST_STEP = "_4294967295.4294967295.4294967295"
RECORD = "sandbox.json"
SHORT_RUN = "/tmp/hadar-"  # noqa: S108
"""How the path of a short folder for sockets begins."""


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """Paths of one sandbox. ``run`` lies elsewhere when sockets would not fit into the folder."""

    folder: Path
    run: Path

    @property
    def record(self) -> Path:
        """What :class:`Sandbox` must know to find a running sandbox again."""
        return self.folder / RECORD

    @property
    def slurm_conf(self) -> Path:
        """SLURM_CONF."""
        return self.folder / "etc" / "slurm.conf"

    @property
    def task_prolog(self) -> Path:
        """Script that gives HADAR_TRUE_RATES to each task."""
        return self.folder / "etc" / "task_prolog.sh"

    @property
    def log(self) -> Path:
        """Logs of all daemons."""
        return self.folder / "log"

    @property
    def state(self) -> Path:
        """slurmctld's state."""
        return self.folder / "state"

    @property
    def munge(self) -> Path:
        """munged's key and seed."""
        return self.folder / "munge"

    @property
    def devices(self) -> Path:
        """The pretend GPUs."""
        return self.folder / "dev"

    @property
    def spool(self) -> Path:
        """Spool folders of the slurmds, with the sockets of the steps."""
        return self.run / "spool"

    @property
    def munge_socket(self) -> Path:
        """Socket of the private munged."""
        return self.run / "munge.sock"

    @property
    def database(self) -> Path:
        """MariaDB's data, where there is accounting."""
        return self.folder / "database"

    @property
    def database_socket(self) -> Path:
        """MariaDB's socket, in a folder that no other user may enter."""
        return self.run / "database" / "sock"

    @property
    def slurmdbd_conf(self) -> Path:
        """slurmdbd.conf, which must lie beside slurm.conf."""
        return self.slurm_conf.parent / "slurmdbd.conf"

    @property
    def exchange(self) -> Path:
        """slurm-hadar's exchange folder."""
        return self.folder / "exchange"

    @property
    def hadar_state(self) -> Path:
        """slurm-hadar's state folder."""
        return self.folder / "hadar-state"

    @property
    def true_rates(self) -> Path:
        """The rates of the pretend GPUs."""
        return self.folder / "true_rates.json"

    @property
    def site(self) -> Path:
        """hadar.toml of this sandbox."""
        return self.folder / "hadar.toml"


def choose(folder: Path, longest_node: str) -> SandboxPaths:
    """The places of a new sandbox; makes a short folder for sockets where ``folder`` is too deep.

    Raises UsageError for a folder that Slurm's configuration cannot name.
    """
    if not _SAFE.fullmatch(str(folder)):
        raise UsageError(
            f"sandbox folder {str(folder)!r}: Slurm's files cannot name it; "
            "take a path of letters, digits and . _ + -"
        )
    deepest = folder / "run" / "spool" / longest_node / (longest_node + _LONGEST_STEP)
    if len(os.fsencode(deepest)) <= _SOCKET_MOST:
        return SandboxPaths(folder, folder / "run")
    return SandboxPaths(folder, Path(tempfile.mkdtemp(prefix=SHORT_RUN)))


def forget_run(places: SandboxPaths) -> None:
    """Remove the short folder for sockets of a sandbox that is down, if it had one."""
    if places.run.parent != places.folder:
        shutil.rmtree(places.run, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold ``folder`` while its sandbox is started or stopped.

    Raises UsageError when another process does. The lock ends with the process.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"the sandbox in {folder} is being started or stopped by another process; try later"
            ) from None
        yield
    finally:
        os.close(handle)


def make(places: SandboxPaths, nodes: list[str], gpus: int) -> None:
    """Make the folders of a fresh sandbox, without what an earlier one left, and ``gpus`` devices.

    A pretend GPU is a symbolic link to the null device: Slurm wants a character device behind
    ``File=`` and follows links, so that no mknod, and no root, is needed.
    """
    for path in (
        places.state,
        places.munge,
        places.log,
        places.devices,
        places.run,
        places.exchange,
        places.hadar_state,
        places.database,
    ):
        if path.exists():
            shutil.rmtree(path)
    for path, mode in (
        (places.folder, 0o755),
        (places.slurm_conf.parent, 0o755),
        (places.log, 0o755),
        (places.state, 0o700),
        (places.munge, 0o700),
        (places.devices, 0o755),
        (places.run, 0o755),
        (places.spool, 0o755),
        *((places.spool / node, 0o755) for node in nodes),
        (places.exchange, 0o1777),
        (places.hadar_state, 0o700),
        (places.database, 0o700),
        (places.database_socket.parent, 0o700),
    ):
        try:
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
        except OSError as error:
            raise HadarError(f"the sandbox's folder cannot be made: {error}") from None
    make_devices(places.devices, gpus)
