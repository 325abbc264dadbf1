"""Files and texts that people hand us: read up to a limit, so that none fills the memory."""

import errno
import json
import os
import stat
import zlib
from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import TypeVar

_Found = TypeVar("_Found")

SITE_BYTES, SITE_LINE = 256_000, 4_000
"""Most of a site's TOML, and the longest of its lines, in characters; the longest example has 5 kB.
The reader's time goes with the square of a line's length where that is one key with dots."""
TABLE_BYTES = 64_000_000
"""Most of a table of rates or a file of trainers; the shipped ones have a hundredth of it."""
HISTORY_BYTES = 256_000_000
"""Most of a trace, of a history of jobs or of idle nodes: about a million rows."""


def content(path: Path, most: int, opener: Callable[[str], int] | None = None) -> bytes:
    """A file's bytes, also of a pipe. Raises OSError; for more than ``most`` bytes its strerror
    says how many are read. ``opener``: opens it instead, by its name."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name holds a zero byte", shown(str(path)))
    with path.open("rb") if opener is None else os.fdopen(opener(str(path)), "rb") as stream:
        status = os.fstat(stream.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_size > most:
            raise _too_large(most, path)
        data = stream.read(most + 1)
    if len(data) > most:
        raise _too_large(most, path)
    return data


def unzipped(data: bytes, most: int, path: Path) -> bytes:
    """What was gzipped, of one member or several. Raises OSError as :func:`content`, zlib.error
    for what is damaged and EOFError for what is cut short."""
    parts: list[bytes] = []
    left = most + 1
    while data:
        one = zlib.decompressobj(wbits=31)
        parts.append(one.decompress(data, left))
        left -= len(parts[-1])
        if left <= 0:
            raise _too_large(most, path)
        if not one.eof:
            raise EOFError("it ends too early")
        data = one.unused_data.lstrip(b"\0")
    return b"".join(parts)


def parsed(text: str) -> object:
    """JSON. Raises ValueError, also for what is nested too deeply for us."""
    try:
        found: object = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


LONGEST_KEPT = 500
"""Characters of a text whose reading is remembered."""


def remembered(most: int) -> Callable[[Callable[[str], _Found]], Callable[[str], _Found]]:
    """Remember what a function made of the last ``most`` texts. Only of short ones: a hundred
    thousand long ones would fill the memory."""

    def around(read: Callable[[str], _Found]) -> Callable[[str], _Found]:
        kept = lru_cache(most)(read)

        @wraps(read)
        def short_or_anew(text: str) -> _Found:
            return kept(text) if len(text) <= LONGEST_KEPT else read(text)

        return short_or_anew

    return around


def shown(words: str, most: int = 80) -> str:
    """Foreign text as a terminal can show it, cut to ``most`` characters."""
    cut = words if len(words) <= most else words[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return "".join(c if c.isprintable() else "?" for c in cut)


def _too_large(most: int, path: Path) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {most / 1e6:g} MB, the limit", str(path))
