"""``hadar`` as a program of its own, with no configuration of a site."""

import subprocess
import sys
from pathlib import Path


def run_hadar(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What became of ``hadar words``, run in ``folder``, which is its home as well."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "HADAR_CONFIG": str(folder / "none.toml"),
    }
    return subprocess.run(
        [sys.executable, "-m", "slurm_hadar.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env=environment,
        check=False,
    )
