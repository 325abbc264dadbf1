"""Compiling the SPANK plugin against the site's own headers."""

import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

_COMPILERS = ("cc", "gcc", "clang")
_CURE = "Debian: apt-get install libslurm-dev gcc libc6-dev"
_TIMEOUT_S = 60.0


class NotBuilt(Exception):
    """The plugin cannot be had here; the message says why and what would help."""


class Missing(NotBuilt):
    """There is no compiler, or Slurm's headers are not there: nothing was even tried."""


def build(include: Path | None = None) -> bytes:
    """The plugin as a shared object. ``include``: folder that holds ``slurm/spank.h``.

    Raises :class:`Missing` without a compiler or without Slurm's headers, :class:`NotBuilt` where
    the compiler fails: all else works without.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise Missing(f"there is no C compiler on PATH ({_CURE})")
    folder = _headers(include)
    with tempfile.TemporaryDirectory(prefix="hadar-spank-") as room:
        source, built = Path(room, "hadar.c"), Path(room, "hadar.so")
        source.write_bytes(resources.files(__package__).joinpath("c/hadar.c").read_bytes())
        options = ("-shared", "-fPIC", "-O2", "-Wall", f"-I{folder}")
        argv = [compiler, *options, "-o", str(built), str(source)]
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotBuilt(f"{compiler} cannot be run: {error}") from None
        if done.returncode:
            said = (done.stderr.strip() or "nothing").splitlines()[0]
            raise NotBuilt(f"{compiler} failed: {said}")
        return built.read_bytes()


def _headers(include: Path | None) -> Path:
    folders = [include] if include else []
    if not include:
        sbatch = shutil.which("sbatch")
        if sbatch:
            folders.append(Path(os.path.realpath(sbatch)).parent.parent / "include")
        folders += [Path("/usr/include"), Path("/usr/local/include")]
    for folder in folders:
        if folder and (folder / "slurm" / "spank.h").is_file():
            return folder
    raise Missing(f"slurm/spank.h is in none of {', '.join(map(str, folders))} ({_CURE})")
