"""Becoming the real sbatch: the same process, so that all it says and returns is its own."""
# pathlib alone would cost a submit several milliseconds.
# ruff: noqa: PTH112, PTH117, PTH118, PTH121, PTH123

from __future__ import annotations

import os
import signal
import sys

from slurm_hadar.domain.errors import HadarError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")


def become_sbatch(named: str, words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by sbatch with these words. ``named``: its path, or just ``sbatch``.

    Raises :class:`HadarError` where there is none or it cannot be run.
    """
    program = find_sbatch(named, environment.get("PATH", os.defpath))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, ["sbatch", *words], without_pythons_traces(environment))
    except OSError as error:
        raise HadarError(f"{program} cannot be run: {error.strerror}") from None


def find_sbatch(named: str, path: str) -> str:
    """The real sbatch; never hbatch itself under that name. Raises :class:`HadarError`."""
    if os.path.isabs(named) and _is_sbatch(named):
        return named
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", "sbatch")
        if _is_sbatch(candidate):
            return candidate
    raise HadarError("there is no sbatch on PATH; add the folder of Slurm's commands to it")


def knows(program: str, option: str, environment: Mapping[str, str]) -> bool:
    """Whether sbatch's own help has an option; True where it cannot be asked."""
    import subprocess

    try:
        done = subprocess.run(
            [program, "--help"],
            env=without_pythons_traces(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode != 0 or option.encode() in done.stdout


def _is_sbatch(path: str) -> bool:
    if not os.access(path, os.X_OK) or os.path.isdir(path) or is_same(path, sys.argv[0]):
        return False
    try:
        with open(path, "rb") as stream:
            start = stream.read(512)
    except OSError:
        return True
    return not (start.startswith(b"#!") and b"slurm_hadar.cli.hbatch" in start)


def is_same(one: str, other: str) -> bool:
    """Whether two paths are one file, or equal where there is none."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one == other


def without_pythons_traces(environment: Mapping[str, str]) -> dict[str, str]:
    """Neither sbatch nor the job may notice that a Python came first and coerced the locale."""
    kept = dict(environment)
    if kept.get("LC_CTYPE") in _COERCED:
        with open("/proc/self/environ", "rb") as stream:
            if b"\0LC_CTYPE=" not in b"\0" + stream.read():
                del kept["LC_CTYPE"]
    return kept
