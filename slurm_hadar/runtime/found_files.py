"""Which files lie at a path that a job's owner named; within bounds, and following no pipe."""

import contextlib
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

MOST = 5000
"""Names that one look takes in."""
_DEPTH = 3
"""Folders below what matches."""


class TooMuch(Exception):
    """More lies below this path than is looked at."""


class _Spent(Exception):
    pass


def found(pattern: Path) -> Iterator[tuple[str, int, int]]:
    """Name, mtime in ns and size of the regular files at a path: a file, all of a folder, or all of
    what a name with ``*`` and ``?`` stands for. Raises :class:`TooMuch`."""
    left = [MOST]
    try:
        yield from _found(pattern, left)
    except _Spent:
        raise TooMuch(pattern) from None


def _found(pattern: Path, left: list[int]) -> Iterator[tuple[str, int, int]]:
    if "*" in pattern.name or "?" in pattern.name:
        for name in _names(pattern.parent, left):
            if fnmatchcase(name, pattern.name) and not name.startswith("."):
                yield from _below(pattern.parent / name, _DEPTH, left)
    else:
        yield from _below(pattern, _DEPTH + 1, left)


def _below(path: Path, depth: int, left: list[int]) -> Iterator[tuple[str, int, int]]:
    try:
        status = path.stat()
    except OSError:
        return
    if stat.S_ISDIR(status.st_mode) and depth > 0:
        for name in _names(path, left):
            yield from _below(path / name, depth - 1, left)
    elif stat.S_ISREG(status.st_mode):
        yield str(path), status.st_mtime_ns, status.st_size


def _names(folder: Path, left: list[int]) -> Iterator[str]:
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                raise _Spent
            names.append(entry.name)
    yield from names
