"""What slurmd runs of ours: the shell programs, with the site's paths in them, and the SPANK
plugin, compiled against the site's own headers.
"""

import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Collection
from importlib import resources
from pathlib import Path

from slurm_hadar.domain.errors import UsageError

NAMES = ("prolog", "epilog", "task_prolog")
SECONDS = 3
"""Longest time that any of them takes; the task prolog stands before each task."""
MARKS = "/run/slurm-hadar"
"""Folder on each node in which the prolog leaves a file for each managed job."""
_FILE = f'{MARKS}/"${{SLURM_JOB_ID:-none}}"'
_AS_ROOT = 'if [ "$(id -u)" = 0 ]; then {} ; fi 2>/dev/null'
_MARK = _AS_ROOT.format(f"mkdir -p {MARKS} && : >{_FILE}")
_UNMARK = _AS_ROOT.format(f"rm -f {_FILE}")
_SAFE = re.compile(r"/[A-Za-z0-9_./:+@-]*")
_COMPILERS = ("cc", "gcc", "clang")
_CURE = "Debian: apt-get install libslurm-dev gcc libc6-dev"
_TIMEOUT_S = 60.0


def program(name: str, python: Path, exchange: Path, uid: int, opt_in: Collection[str] = ()) -> str:
    """The text of one program. ``python`` has slurm-hadar and is at this path on all nodes;
    ``opt_in``: partitions whose jobs are managed without a declaration.

    Raises :class:`UsageError` for a path that does not fit into a shell program.
    """
    for what, path in (("Python", python), ("site.exchange_dir", exchange)):
        if not _SAFE.fullmatch(str(path)):
            raise UsageError(
                f"{what} is at {str(path)!r}; the programs of a node need an absolute path of "
                "letters, digits and . _ : + @ -"
            )
    source = "task_prolog.sh" if name == "task_prolog" else "prolog.sh"
    text = resources.files(__package__).joinpath(f"shell/{source}").read_text()
    values = {
        "PYTHON": shlex.quote(str(python)),
        "EXCHANGE": shlex.quote(str(exchange)),
        "UID": str(uid),
        "SECONDS": str(SECONDS),
        "STEP": name,
        "MARKS": MARKS,
        "MARK": _UNMARK if name == "epilog" else _MARK,
        "OPTIN": shlex.quote(",".join(opt_in)),
    }
    text = re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], text)
    if name == "epilog":
        text = text.replace("begins to sample the GPUs", "ends the sampling of the GPUs")
        text = text.replace("a Prolog that fails", "an Epilog that fails")
    return text


def others_may_change(python: Path) -> Path | None:
    """What another user than root and who runs this may change of the path to ``python`` or of this
    package: that user could run code as any user who has a job. None: nothing."""
    ours = {0, os.getuid()}
    starts = (python, python.resolve(), Path(__file__).resolve())
    for path in dict.fromkeys(one for start in starts for one in (start, *start.parents)):
        found = path.stat()
        open_ = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in ours or open_:
            return path
    return None


class NotBuilt(Exception):
    """The plugin cannot be had here; the message says why and what would help."""


class Missing(NotBuilt):
    """There is no compiler, or Slurm's headers are not there: nothing was even tried."""


def build_spank(include: Path | None = None) -> bytes:
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
