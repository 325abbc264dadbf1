"""A later Debian in a folder, with its Slurm: made once, entered in namespaces of its own.

Whatever is mounted there is mounted for the command alone and gone with it, and so is every process
that it started, so that nothing can be left behind and no removal reaches this machine's files.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from slurm_hadar.domain.errors import HadarError, UsageError

_PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "munge", "python3", "python3-venv", "procps", "hostname",
    "ca-certificates",
)  # fmt: skip
_PYTHON = ("pytest>=8.2", "pytest-timeout>=2.3", "hypothesis>=6.100")
_ETC = Path("/etc")
_NETWORK = ("resolv.conf", "hosts")
_TRUST = "ssl/certs/ca-certificates.crt"
_MARK = "hadar-is-ready"
_ENTER = """\
set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t sysfs sysfs "$1/sys"
mkdir -p "$1/src"
mount --bind "$2" "$1/src"
mount -o remount,ro,bind "$1/src"
root=$1
shift 2
exec chroot "$root" "$@"
"""
_CLEAN = (
    "env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
    "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=/src",
    "DEBIAN_FRONTEND=noninteractive",
)  # fmt: skip
PYTHON = "/opt/venv/bin/python"


class Debian:
    """A Debian of some suite in ``folder``, where ``source`` (this checkout) stands as /src,
    read-only."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder = folder.resolve()
        self.source = source.resolve()

    def make(self, suite: str) -> None:
        """Make it, or use what is there. Raises HadarError where a step fails, UsageError for a
        folder that holds something else."""
        if (self.folder / _MARK).exists():
            return
        if self.folder.exists() and any(self.folder.iterdir()):
            raise UsageError(f"{self.folder} is not empty and was not made here; name another one")
        # Suites that this machine's debootstrap has not heard of are made as sid is.
        _run(["debootstrap", "--variant=minbase", suite, str(self.folder), _mirror(), "sid"], 1800)
        for name in (*_NETWORK, _TRUST):
            self._as_here(name)
        # Nothing that is installed may be started by that.
        quiet = self.folder / "usr/sbin/policy-rc.d"
        quiet.write_text("#!/bin/sh\nexit 101\n")
        quiet.chmod(0o755)
        self.run(["apt-get", "install", "-y", "--no-install-recommends", *_PACKAGES], 1800)
        # The package of certificates has written its own over those of this machine.
        self._as_here(_TRUST)
        self.run(["python3", "-m", "venv", "/opt/venv"], 300)
        self.run([PYTHON, "-m", "pip", "install", "-q", "--prefer-binary", "/src", *_PYTHON], 1800)
        (self.folder / _MARK).write_text(suite + "\n")

    def run(self, argv: Sequence[str], timeout_s: float, check: bool = True) -> str:
        """Run a command inside, from /src; its standard output. Raises HadarError where it fails
        (``check``) or takes longer."""
        inside = [*_CLEAN, "sh", "-c", 'cd /src && exec "$@"', "sh", *argv]
        spaces = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
        enter = ["sh", "-c", _ENTER, "sh", str(self.folder), str(self.source)]
        return _run([*spaces, *enter, *inside], timeout_s, check)

    def _as_here(self, name: str) -> None:
        here, there = _ETC / name, self.folder / "etc" / name
        if here.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(here.read_bytes())

    def remove(self) -> None:
        """Delete the folder. Raises HadarError while anything is mounted below it."""
        below = f"{self.folder}/"
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if line.split()[1].startswith(below):
                raise HadarError(
                    f"{line.split()[1]} is mounted; unmount it, then remove the folder"
                )
        _run(["rm", "-rf", "--one-file-system", str(self.folder)], 300)


def _mirror() -> str:
    """Where this machine gets its own Debian from. Raises HadarError where apt names nothing."""
    argv = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]
    found = [line for line in _run(argv, 60).splitlines() if "security" not in line]
    if not found:
        raise HadarError("apt names no archive to take another Debian from; see apt's sources")
    return found[0]


def _run(argv: Sequence[str], timeout_s: float, check: bool = True) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HadarError(f"{argv[0]}: {error}") from None
    if check and done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise HadarError(f"{' '.join(argv)[-200:]} failed: {'; '.join(said)}")
    return done.stdout
