"""Finding and reading the batch script without taking it away from sbatch; its ``#HADAR`` lines."""
# pathlib alone would cost a submit several milliseconds.
# ruff: noqa: PTH110, PTH112, PTH116, PTH118, PTH123

from __future__ import annotations

import errno
import os
import stat

_LARGEST = 4 << 20
"""Bytes; sbatch refuses more (MAX_BATCH_SCRIPT_SIZE in its sources)."""


class ReadableOnce(Exception):
    """A script that can be read only once: that would take it away from sbatch. The message says
    why."""


def find_script(name: str, path: str) -> str:
    """Where sbatch finds it: here, then along ``path``, unless the name starts with . or /."""
    if name.startswith((".", "/")):
        return name
    for folder in ("", *path.split(":")):
        found = os.path.join(folder, name)
        if os.path.exists(found) and not os.path.isdir(found):
            return found
    return name


def read_script(path: str) -> bytes:
    """The script's bytes. One that comes down a pipe is put back for sbatch under its own name.

    Raises OSError, and :class:`ReadableOnce` where it could be read only once.
    """
    mode = os.stat(path).st_mode
    # A folder cannot be read so, and sbatch refuses it.
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return read_regular(path, _LARGEST + 1)
    folder, _, number = path.rpartition("/")
    if path == "/dev/stdin":
        folder, number = "/dev/fd", "0"
    if folder not in ("/dev/fd", "/proc/self/fd") or not number.isdecimal():
        raise ReadableOnce(f"{path} is not a regular file")
    return read_handle(int(number))


def read_regular(path: str, most: int) -> bytes:
    """A file's first bytes. Raises OSError, also for what is not a regular file: a pipe under its
    name would block the reader."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        with open(handle, "rb", closefd=False) as stream:
            return stream.read(most)
    finally:
        os.close(handle)


def read_handle(handle: int) -> bytes:
    """All that comes from an open file, which afterwards yields the same bytes again."""
    parts: list[bytes] = []
    size = 0
    while size <= _LARGEST and (part := os.read(handle, 1 << 16)):
        parts.append(part)
        size += len(part)
    body = b"".join(parts)
    memory = os.memfd_create("script")
    with open(memory, "wb") as stream:
        stream.write(body)
        stream.flush()
        os.lseek(memory, 0, os.SEEK_SET)
        os.dup2(memory, handle)
    return body


def script_arguments(script: str, name: str) -> list[tuple[str, str]]:
    """The arguments of all ``#HADAR`` lines as (word, where), in order.

    Like sbatch with its own lines, reading stops at the first line that is neither empty nor a
    comment.
    """
    found: list[tuple[str, str]] = []
    for number, line in enumerate(script.split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if line[: len("#HADAR") + 1].rstrip() == "#HADAR":
            for word in line.split()[1:]:
                if word.startswith("#"):
                    break
                found.append((word, f"line {number} of {name}"))
    return found
