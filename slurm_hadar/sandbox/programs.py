"""The Slurm and munge that are installed, and a clean way to run them."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.domain.errors import HadarError, SlurmError

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CLIENTS = ("scontrol", "sinfo", "squeue", "sbatch", "scancel", "srun")
_CURE = "apt-get install slurmctld slurmd slurm-client munge, or name the prefix of a Slurm"


@dataclass(frozen=True, slots=True)
class Programs:
    """Where things are. ``release``: (22, 5); ``version``: as Slurm prints it."""

    slurmctld: Path
    slurmd: Path
    munged: Path
    bin_dir: Path
    release: tuple[int, int]
    version: str
    prefix: Path | None = None

    @property
    def path(self) -> str:
        """PATH by which these are found: a prefix goes first, else the caller's PATH stands."""
        own = [str(self.bin_dir), str(self.slurmctld.parent)]
        rest = [*os.environ.get("PATH", "").split(":"), *_SYSTEM_PATH.split(":")]
        folders = [*own, *rest] if self.prefix else [*rest, *own]
        return ":".join(dict.fromkeys(folder for folder in folders if folder))


def find(prefix: Path | None = None) -> Programs:
    """Find Slurm under ``prefix``, or on PATH and in the system's folders; munge on PATH.

    Raises HadarError naming what is missing and how to install it.
    """
    prefix = prefix.absolute() if prefix else None
    where = f"{prefix}/bin:{prefix}/sbin" if prefix else _everywhere()
    found = {name: _which(name, where, prefix) for name in ("slurmctld", "slurmd", *_CLIENTS)}
    munged = _which("munged", _everywhere())
    try:
        answer = subprocess.run(
            [found["slurmctld"], "-V"],
            env=environment({}),
            capture_output=True,
            text=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HadarError(f"{found['slurmctld']} cannot be run: {error}") from None
    numbers = re.search(r"(\d+)\.(\d+)", answer)
    if not numbers:
        raise HadarError(f"{found['slurmctld']} -V says {answer[:80]!r}, which names no version")
    release = int(numbers[1]), int(numbers[2])
    bin_dir = found["scontrol"].parent
    return Programs(found["slurmctld"], found["slurmd"], munged, bin_dir, release, answer, prefix)


def _everywhere() -> str:
    return os.environ.get("PATH", "") + ":" + _SYSTEM_PATH


def _which(name: str, where: str, prefix: Path | None = None) -> Path:
    found = shutil.which(name, path=where)
    if not found:
        place = "on PATH" if name == "munged" or not prefix else f"under {prefix}"
        raise HadarError(f"the sandbox finds no {name} {place}; {_CURE}")
    return Path(found)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """A clean environment: nothing of Slurm or the loader that the caller may have set."""
    kept = ("HOME", "USER", "LOGNAME", "TMPDIR")
    own = {key: os.environ[key] for key in kept if key in os.environ}
    return {"PATH": _SYSTEM_PATH, "LC_ALL": "C", **own, **more}


def run(
    argv: Sequence[str | Path], env: Mapping[str, str], timeout_s: float = 30.0, text: str = ""
) -> str:
    """Run a command with ``text`` as standard input; its standard output.

    Raises SlurmError with its first line of stderr when it fails or takes longer.
    """
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            [str(part) for part in argv],
            env=dict(env),
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{name} did not answer within {timeout_s:g} s", retry=True) from None
    except OSError as error:
        raise SlurmError(f"{name} cannot be run: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[0]
        raise SlurmError(f"{name} failed (exit {done.returncode}): {said}")
    return done.stdout


def start(
    argv: Sequence[str | Path], env: Mapping[str, str], output: Path, timeout_s: float = 30.0
) -> None:
    """Start a daemon that puts itself into the background; what it prints is added to ``output``.

    Not through pipes: a daemon keeps them open. Raises HadarError when it ends with an error.
    """
    name = Path(argv[0]).name
    try:
        with output.open("ab") as stream:
            code = subprocess.run(
                [str(part) for part in argv],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                timeout=timeout_s,
                cwd="/",
            ).returncode
    except subprocess.TimeoutExpired:
        raise HadarError(f"{name} did not start within {timeout_s:g} s") from None
    except OSError as error:
        raise HadarError(f"{name} cannot be started: {error}") from None
    if code:
        raise HadarError(f"{name} did not start (exit {code})\n{tail(output)}")


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log, indented, with the log's name above."""
    try:
        text = log.read_text(errors="replace").splitlines()
    except OSError:
        return f"  ({log} is not there)"
    return "\n".join([f"  last lines of {log}:", *(f"    {line}" for line in text[-lines:])])
