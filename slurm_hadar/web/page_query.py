"""What a page shows, as its address says it: which view, which rows, in which order."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlencode

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.reports.cluster import Stay
from slurm_hadar.reports.text import StatusRow
from slurm_hadar.slurm.commands import checked_id

Kind = Literal["queue", "nodes", "job", "timeline", "what-if", "report"]
KINDS: tuple[Kind, ...] = ("queue", "nodes", "job", "timeline", "what-if", "report")
ALL, COLOURS = "all", ("job", "type", "use")
HOURS = (1, 6, 24)
"""Of the timeline, up to now."""
_LONGEST = 64
_MOST_PAGES = 10_000


@lru_cache(maxsize=2**15)
def natural(id_: str) -> list[int]:
    """The numbers in a job's ID, by which IDs are sorted."""
    return [int(part) for part in re.findall(r"\d+", id_)]


_SORTS: dict[str, tuple[str, Callable[[StatusRow], Any], bool]] = {
    "job": ("Job ID", lambda row: natural(row.id), False),
    "user": ("User", lambda row: row.user, False),
    "name": ("Name", lambda row: row.name, False),
    "state": ("State", lambda row: row.state, False),
    "done": ("Done", lambda row: row.done or 0.0, True),
    "speed": ("Samples/s", lambda row: row.samples_per_s or 0.0, True),
    "moves": ("Moves", lambda row: row.moves, True),
}
SORTS: Mapping[str, str] = {key: words for key, (words, _, _) in _SORTS.items()}
"""Order -> its name; the figures' largest come first."""


@dataclass(frozen=True, slots=True)
class PageChoice:
    """One page. ``user`` and so on: only rows of that, empty: of all, ``page`` from 1 on."""

    kind: Kind = "queue"
    job: str = ""
    user: str = ""
    state: str = ""
    gpu_type: str = ""
    text: str = ""
    sort: str = "job"
    colour: str = "job"
    policy: str = ""
    hours: int = 24
    page: int = 1

    def address(self, **changes: object) -> str:
        """The query of this page's address, or of one that differs in these."""
        other = replace(self, **changes)  # type: ignore[arg-type]
        usual = PageChoice()
        named = {field.name: getattr(other, field.name) for field in fields(other)}
        shown = {
            name: value
            for name, value in named.items()
            if name not in ("kind", "job") and value != getattr(usual, name)
        }
        return "?" + urlencode(shown)

    def rows(self, rows: Sequence[StatusRow], own: str) -> list[StatusRow]:
        """The rows of this choice in its order. ``own``: the name of who asks, whose jobs are shown
        unless others are asked for; empty: all."""
        user, text = self._whose(own), self.text.casefold()
        found = [
            row
            for row in rows
            if (not user or row.user == user)
            and (not self.state or row.state == self.state)
            and (not self.gpu_type or self.gpu_type in row.here or self.gpu_type in row.planned)
            and (not text or text in row.name.casefold() or self.text in row.names)
        ]
        _, key, reverse = _SORTS[self.sort]
        return sorted(found, key=key, reverse=reverse)

    def segments(self, segments: Sequence[Stay], own: str) -> list[Stay]:
        """The same of the last day."""
        user, text = self._whose(own), self.text.casefold()
        return [
            one
            for one in segments
            if (not user or one.user == user)
            and (not self.gpu_type or self.gpu_type in one.gpus)
            and (not text or text in one.name.casefold() or self.text == one.job)
        ]

    def _whose(self, own: str) -> str:
        return "" if self.user == ALL else self.user or own


def choice_of(kind: str, given: Mapping[str, str]) -> PageChoice:
    """A page from its address. Raises UsageError for what is not one."""
    named = next((one for one in KINDS if one == kind), None)
    if named is None:
        raise UsageError(f"view takes one of {', '.join(KINDS)}")
    known = ("user", "state", "gpu_type", "text", "policy")
    words = {name: given.get(name, "")[:_LONGEST] for name in known}
    sort, colour = given.get("sort", "job"), given.get("colour", "job")
    if sort not in SORTS or colour not in COLOURS:
        raise UsageError(f"sort takes {', '.join(SORTS)}; colour takes {', '.join(COLOURS)}")
    hours = given.get("hours", "24")
    if hours not in map(str, HOURS):
        raise UsageError(f"hours takes one of {', '.join(map(str, HOURS))}")
    page = given.get("page", "1")
    if not (page.isascii() and page.isdigit() and 1 <= int(page[:9]) <= _MOST_PAGES):
        raise UsageError(f"page takes a number from 1 to {_MOST_PAGES}")
    job = given.get("job", "") if named == "job" else ""
    if named == "job":
        checked_id(job)
    return PageChoice(
        named, job, sort=sort, colour=colour, hours=int(hours), page=int(page), **words
    )
