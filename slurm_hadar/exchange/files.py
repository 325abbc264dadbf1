"""Reading and writing the small JSON files of the exchange folder.

The folder is open to all users, so a file is believed for its owner alone, and its contents are
taken for hostile.
"""

import contextlib
import json
import os
import stat
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

LIMIT = 64 * 1024
"""Largest file that is read or written, bytes."""
VERSION = 1


def read_owned(
    path: Path | str, uids: Collection[int], most: int = LIMIT
) -> dict[str, object] | None:
    """The JSON object in a regular file of ``most`` bytes that belongs to one of ``uids``.

    None for everything else: no file, a link, a pipe, another owner, too large, not JSON, another
    version, no object. Never blocks on a pipe and never follows a link.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in uids:
            return None
        if status.st_size > most:
            return None
        data = b""
        while len(data) <= most and (part := os.read(handle, most + 1 - len(data))):
            data += part
        return parse(data) if len(data) <= most else None
    except OSError:
        return None
    finally:
        os.close(handle)


def parse(data: bytes) -> dict[str, object] | None:
    """The JSON object in ``data`` when it is of our version, else None."""
    if len(data) > LIMIT:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    version = value.get("version")
    return value if type(version) is int and version == VERSION else None


Check = Callable[[], None]
"""Raises OSError where a file must not take its place."""


def write_json(path: Path, content: Mapping[str, object], check: Check | None = None) -> None:
    """Write aside, then rename. Mode 0644. Raises OSError, and ValueError when it is too large.

    ``check`` is called between the two, see :mod:`slurm_hadar.controller.lock`.

    The name aside is random and the file is made anew, so that nothing of another user
    is followed or reused.
    """
    data = json.dumps({"version": VERSION, **content}, allow_nan=False).encode()
    if len(data) > LIMIT:
        raise ValueError(f"{path.name} would have {len(data)} bytes; at most {LIMIT} are allowed")
    aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    handle = os.open(
        aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
    )
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), 0o644)
            stream.write(data)
        if check is not None:
            check()
        _put(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def _put(aside: Path, path: Path) -> None:
    try:
        aside.replace(path)
    except IsADirectoryError:
        # A user made a folder of that name; the owner of the folder around it may move it away.
        path.rename(path.with_name(f".{path.name}.{os.urandom(8).hex()}"))
        aside.replace(path)


class Malformed(Exception):
    """A field of a file is missing or of the wrong kind."""


def number(source: Mapping[str, object], key: str, most: float = 1e18) -> float:
    """A finite number between 0 and ``most``. Raises :class:`Malformed`."""
    value = source.get(key)
    if (type(value) is float or type(value) is int) and 0 <= value <= most:
        return float(value)
    raise Malformed(key)


def whole(source: Mapping[str, object], key: str, most: int = 10**18) -> int:
    """A whole number between 0 and ``most``. Raises :class:`Malformed`."""
    value = source.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise Malformed(key)
    return value


def flag(source: Mapping[str, object], key: str) -> bool:
    """True or False. Raises :class:`Malformed`."""
    value = source.get(key)
    if type(value) is not bool:
        raise Malformed(key)
    return value


def text(source: Mapping[str, object], key: str, most: int = 200) -> str:
    """Printable text of at most ``most`` characters. Raises :class:`Malformed`."""
    value = source.get(key)
    if not isinstance(value, str) or len(value) > most or not (value.isprintable() or not value):
        raise Malformed(key)
    return value


def section(source: Mapping[str, object], key: str) -> Mapping[str, object] | None:
    """An object inside the object, or None for null. Raises :class:`Malformed`."""
    value = source.get(key)
    if value is not None and not isinstance(value, dict):
        raise Malformed(key)
    return value
