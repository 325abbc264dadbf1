"""What ``hadar doctor`` prints: the whole story of one job."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurm_hadar.reports import formats

_LONGEST = 2000


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened or was decided. ``until_s``: how long it stood, 0 where that says
    nothing; times in s since the epoch."""

    time_s: float
    what: str
    detail: str = ""
    until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, and the commands that cure it, one each."""

    what: str
    cures: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Story:
    """One job from its submission to what comes next. ``told_s``: when this was told."""

    id: str
    state: str
    told_s: float
    facts: Sequence[tuple[str, str]] = ()
    events: Sequence[Event] = ()
    now: Sequence[str] = ()
    next: Sequence[str] = ()
    wrong: Sequence[Trouble] = ()
    undo: Sequence[str] = field(default_factory=tuple)


def told(story: Story) -> RenderableType:
    """The story for a terminal."""
    parts: list[RenderableType] = [
        Text(f"Job {formats.plain(story.id)}  {formats.plain(story.state)}", style="bold")
    ]
    if story.facts:
        table = _table()
        for key, value in story.facts:
            table.add_row(_text(key), _text(value))
        parts.append(table)
    if story.events:
        parts += [Text(""), Text("What happened", style="bold"), _events(story.events)]
    for title, lines in (("Now", story.now), ("Next", story.next)):
        if lines:
            parts += [Text(""), Text(title, style="bold"), *(_text(f"  {line}") for line in lines)]
    parts += [Text(""), Text("What is wrong", style="bold")]
    parts += [] if story.wrong else [Text("  Nothing that shows.")]
    for one in story.wrong:
        parts.append(Text.assemble(("  ! ", "red"), _text(one.what)))
        parts += [_text(f"      {cure}") for cure in one.cures]
    if story.undo:
        parts += [Text(""), Text("To undo it by hand", style="bold")]
        parts += [_text(f"  {line}") for line in story.undo]
    return Group(*parts)


def _events(events: Sequence[Event]) -> Table:
    table = _table()
    for one in events:
        stood = one.until_s - one.time_s
        length = f" (for {formats.duration(stood)})" if stood >= 1 else ""
        table.add_row(formats.moment(one.time_s), _text(one.what + length), _text(one.detail))
    return table


def _table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    return table


def _text(value: str) -> Text:
    line = formats.plain(value)
    return Text(line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…")
