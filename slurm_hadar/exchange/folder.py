"""The exchange folder, listed for all who look for their files in it.

All users may make any number of files there. So no listing is longer than :data:`MOST`
names, and no job depends on being listed: the names that it writes first are known.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from re import Pattern
from typing import TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import _ScandirIterator as ScandirIterator

MOST = 200_000
"""Names that are looked at in one listing; a user who may write there could make more."""

LEAST = 4096
"""What a small file counts for, in bytes: opening it costs as much, or more where it is shared."""

_PROTOCOL = re.compile(r"\.?(?:plan|steer|progress|gpu|heartbeat|prices)\.")
"""How the names of the files of controllers and jobs begin."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Listing:
    """Names in a folder at one moment; ``cut``: there are others."""

    folder: Path
    names: Sequence[str] = ()
    cut: bool = False
    known: Collection[str] = ()
    """Those that were found to be their job's own at the look before."""
    own: set[str] = field(default_factory=set, compare=False)
    """Those that are now; :meth:`owned` adds to it."""

    def with_first(self, names: Iterable[str]) -> "Listing":
        """With names ahead that may be there as well, where not all of them are listed."""
        if not self.cut:
            return self
        return replace(self, names=list(dict.fromkeys((*names, *self.names))))

    def owned(
        self, name: Pattern[str], uids: Mapping[str, int], most: int
    ) -> Iterator[tuple[str, os.stat_result, str]]:
        """(job, status, path) of files whose name tells one of ``uids`` (job id -> UID of its
        owner) as its first group, and that belong to that user.

        ``most`` names of a job are looked at, known ones and short ones first: strangers may have
        made any number of them, but no more short ones than there are.
        """
        folder = str(self.folder)
        by_job: dict[str, list[str]] = {}
        for one in self.names:
            match = name.fullmatch(one)
            if match is not None and match[1] in uids:
                by_job.setdefault(match[1], []).append(one)
        for job, names in by_job.items():
            if len(names) > most:
                names.sort(key=lambda one: (one not in self.known, len(one)))
            for one in names[:most]:
                with contextlib.suppress(OSError):
                    # A Path for each of thousands costs more than to look at them.
                    path = f"{folder}/{one}"
                    status = os.lstat(path)
                    if status.st_uid == uids[job]:
                        self.own.add(one)
                        yield job, status, path


def why_not_given(folder: Path) -> str:
    """Why no command should give a folder to the controller or open it to all users: it may be
    another folder of the system; empty where nothing is known against it, and where it is gone."""
    if os.path.islink(folder):  # noqa: PTH114
        return f"{folder} is a symbolic link"
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MOST)]
    except FileNotFoundError:
        return ""
    except OSError:
        return f"what {folder} holds is not known"
    other = min((name for name in names if not _PROTOCOL.match(name)), default="")
    return f"{folder} holds other files ({other[:40]!a})" if other else ""


def listing(folder: Path, most: int = MOST) -> Listing:
    """List a folder; one that cannot be listed has no names."""
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if len(names) == most:
                return Listing(folder, names, True)
            names.append(entry.name)
    return Listing(folder, names)


class FolderWindow:
    """A folder that is listed again and again, of very many names a part at a time."""

    def __init__(self, folder: Path, most: int = MOST) -> None:
        self._folder, self._most = folder, most
        self._rest: ScandirIterator[str] | None = None
        self._last = Listing(folder)

    def next(self) -> Listing:
        """All names; or the ``most`` next ones, behind those that were a job's own last time."""
        names: list[str] = []
        begun, ended = self._rest is not None, True
        with contextlib.suppress(OSError):
            # It stays open, since Python can begin at the first name only.
            self._rest = self._rest or os.scandir(self._folder)
            names += (entry.name for entry in islice(self._rest, self._most))
            ended = len(names) < self._most
        if ended:
            self.close()
        cut = begun or self._rest is not None
        known = self._last.own
        self._last = Listing(self._folder, names, cut, known).with_first(known)
        return self._last

    @property
    def ended(self) -> bool:
        """Whether the last part was the last one."""
        return self._rest is None

    def close(self) -> None:
        """Begin anew next time."""
        if self._rest is not None:
            self._rest.close()
            self._rest = None

    def __del__(self) -> None:
        self.close()


def round_robin(
    files: Iterable[tuple[int, int, _Item]], most_bytes: int, turn: int
) -> tuple[list[_Item], int]:
    """Those of (UID, bytes, file) that are read now, and how many are left out.

    ``most_bytes`` in all, where each counts for :data:`LEAST` at least. What users with few files
    do not need is dealt evenly among those with many, who so take nothing from the others; of
    theirs each ``turn`` takes the next ones.
    """
    by_user: dict[int, list[tuple[int, _Item]]] = {}
    for uid, size, file in files:
        by_user.setdefault(uid, []).append((max(LEAST, size), file))
    wants = sorted((sum(size for size, _ in mine), uid) for uid, mine in by_user.items())
    chosen: list[_Item] = []
    left, out = most_bytes, 0
    for place, (wanted, uid) in enumerate(wants):
        mine, share = by_user[uid], left // (len(wants) - place)
        if wanted > share:
            fit = max(1, share * len(mine) // wanted)
            start = turn * fit % len(mine)
            mine = mine[start:] + mine[:start]
        taken = 0
        for number, (size, file) in enumerate(mine):
            if taken + size > share:
                out += len(mine) - number
                break
            taken += size
            chosen.append(file)
        left -= taken
    return chosen, out
