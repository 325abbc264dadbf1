"""Host lists such as ``v[1-2],k1``."""

import re
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm import lists

MOST_NODES = 100_000
"""Longest host list that is expanded: the largest clusters have a tenth of it."""

_NOTHING = ("", "(null)", "None", "N/A")
_SAFE = re.compile(r"[A-Za-z0-9_.,\[\]-]*")
_RANGE = re.compile(r"(\d+)-(\d+)")
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_PART = re.compile(
    r"[A-Za-z0-9_.-]*(?:\[\d{1,18}(?:-\d{1,18})?(?:,\d{1,18}(?:-\d{1,18})?)*\][A-Za-z0-9_.-]*)*"
)
"""NodeSet would take more, such as ``[-900000000-5]``."""


_names: dict[str, str] = {}


def _shared(name: str) -> str:
    """The same object for each node: many jobs may name many of them."""
    if len(_names) > 2 * MOST_NODES:
        _names.clear()
    return _names.setdefault(name, name)


# A user may give thousands of jobs the same long list.
@lru_cache(16)
def expand(text: str, limit: int = MOST_NODES) -> tuple[str, ...]:
    """The names of a host list, in its own order of ranges; () for none.

    Raises :class:`SlurmError` on a list that cannot be read or has more than ``limit`` names.
    """
    if text.strip() in _NOTHING:
        return ()
    if not _SAFE.fullmatch(text):
        raise _unreadable(text)
    names: dict[str, None] = {}
    for part in _pieces(text):
        if "[" not in part and "]" not in part:
            # One name, where a NodeSet takes many times as long.
            if part:
                names[_shared(part)] = None
            continue
        _guard(part, limit)
        try:
            found = NodeSet(part, resolver=RESOLVER_NOGROUP)
            names.update(dict.fromkeys(_shared(str(name)) for name in found))
        except (NodeSetException, ValueError, AssertionError):
            # It takes digits behind a bracket into the range, and asserts that it stays small.
            raise _unreadable(text) from None
        if len(names) > limit:
            raise _too_long(text, limit)
    if len(names) > limit:
        raise _too_long(text, limit)
    return tuple(names)


def fold(names: tuple[str, ...]) -> str:
    """Names as a host list, sorted; the empty string for none."""
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def _pieces(text: str) -> list[str]:
    """Parts between top-level commas, and of a single bracket each range by itself.

    NodeSet sorts, and what Slurm lists per node stands in the order of its host list.
    """
    found = []
    for part in lists.outside(text, "[]"):
        single = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)", part)
        if single:
            for span in single[2].split(","):
                plain = _NUMBER.fullmatch(span) and not single[3]
                found.append(f"{single[1]}{span}" if plain else f"{single[1]}[{span}]{single[3]}")
        else:
            found.append(part)
    return found


def _guard(part: str, limit: int) -> None:
    """Refuse before NodeSet builds the names: a few bytes can stand for millions."""
    if not _PART.fullmatch(part):
        raise _unreadable(part)
    size = 1
    for bracket in re.findall(r"\[([^\[\]]*)\]", part):
        width = 0
        for span in bracket.split(","):
            match = _RANGE.fullmatch(span)
            width += abs(int(match[2]) - int(match[1])) + 1 if match else 1
        size *= width
        if size > limit:
            raise _too_long(part, limit)


def _unreadable(text: str) -> SlurmError:
    return SlurmError(f"Slurm shows a host list as {text[:80]!r}, which is not understood")


def _too_long(text: str, limit: int) -> SlurmError:
    return SlurmError(f"the host list {text[:80]!r} has more than {limit} names; that is refused")
