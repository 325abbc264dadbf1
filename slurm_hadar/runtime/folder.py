"""The exchange folder, listed once for all who look for their files in it."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from re import Pattern

MOST = 200_000
"""Names that are looked at in one listing; whoever may write there could make more."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The names in a folder at one moment; ``cut``: there were more than :data:`MOST`."""

    folder: Path
    names: Sequence[str] = ()
    cut: bool = False

    def owned(
        self, name: Pattern[str], uids: Mapping[str, int]
    ) -> Iterator[tuple[str, os.stat_result, Path]]:
        """(job, status, path) of files whose name tells one of ``uids`` (job id -> UID of its
        owner) as its first group, and that belong to that user."""
        for one in self.names:
            match = name.fullmatch(one)
            if match is None or match[1] not in uids:
                continue
            with contextlib.suppress(OSError):
                path = self.folder / one
                status = path.lstat()
                if status.st_uid == uids[match[1]]:
                    yield match[1], status, path


def listing(folder: Path, most: int = MOST) -> Listing:
    """List a folder; one that cannot be listed has no names."""
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if len(names) == most:
                return Listing(folder, names, True)
            names.append(entry.name)
    return Listing(folder, names)
