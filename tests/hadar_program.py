"""``hadar`` as a program, with no configuration of a site.

Each is a fork of a process that has imported it, see ``forks.py``: to import it takes longer than
most of what it is asked here.
"""

import atexit
import subprocess
import sys
from functools import cache
from pathlib import Path

from forks import Forks

HADAR = Path(sys.executable).parent / "hadar"


@cache
def _forks():
    """For all tests of this process of pytest."""
    commands = (f"slurm_hadar.cli.{name}" for name in ("main", "simulate", "tune"))
    forks = Forks(*commands, isolated=True)
    atexit.register(forks.close)
    return forks


def run_hadar(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What became of ``hadar words``, run in ``folder``, which is its home as well."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "HADAR_CONFIG": str(folder / "none.toml"),
    }
    started = _forks().start(HADAR, words, environment, folder)
    out, err = started.communicate(120)
    return subprocess.CompletedProcess([str(HADAR), *words], started.returncode, out, err)
