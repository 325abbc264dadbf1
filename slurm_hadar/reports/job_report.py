"""What ``hadar doctor`` prints: the report of one job."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurm_hadar.reports import formats
from slurm_hadar.reports.text import bounded_text, command_line

_RUN, _WHOLE = (2, 3), (60, 60)
"""Lines of the beginning and of the end: of many minor events in a row, and of all."""


NOT_SHOWN = "not shown by Slurm any more"
"""The state of a job of which only the journal tells."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened or was decided. ``until_s``: how long it stood, 0 where that says
    nothing; times in s since the epoch. ``minor``: many in a row tell little; ``number``: how many
    it stands for."""

    time_s: float
    what: str
    detail: str = ""
    until_s: float = 0.0
    minor: bool = False
    number: int = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """Problems, and the commands that cure it, one each."""

    what: str
    cures: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job from its submission to what comes next. ``reported_s``: when it was made;
    ``missing_history``: what of its history is not kept."""

    id: str
    state: str
    reported_s: float
    facts: Sequence[tuple[str, str]] = ()
    events: Sequence[Event] = ()
    missing_history: Sequence[str] = ()
    now: Sequence[str] = ()
    next: Sequence[str] = ()
    problems: Sequence[Problem] = ()
    undo: Sequence[str] = field(default_factory=tuple)


def format_report(report: JobReport, everything: bool = False) -> RenderableType:
    """The report for a terminal. ``everything``: each event has its line, however many they are."""
    parts: list[RenderableType] = [
        Text(f"Job {formats.plain(report.id)}  {formats.plain(report.state)}", style="bold")
    ]
    if report.facts:
        table = _table()
        for key, value in report.facts:
            table.add_row(bounded_text(key), bounded_text(value))
        parts.append(table)
    if report.events:
        shown = list(report.events) if everything else _short(report.events)
        parts += [Text(""), Text("What happened", style="bold"), _events(shown)]
        if len(shown) < len(report.events):
            parts.append(command_line(f"  Each of them: hadar doctor {report.id} --all"))
        parts += [bounded_text(f"  {line}") for line in report.missing_history]
    for title, lines in (("Now", report.now), ("Next", report.next)):
        if lines:
            parts += [
                Text(""),
                Text(title, style="bold"),
                *(command_line(f"  {line}") for line in lines),
            ]
    parts += [Text(""), Text("Problems", style="bold")]
    parts += [] if report.problems else [Text("  No problems detected.")]
    for one in report.problems:
        parts.append(Text.assemble(("  ! ", "red"), bounded_text(one.what)))
        parts += [command_line(f"      {cure}") for cure in one.cures]
    if report.undo:
        parts += [Text(""), Text("Undo by hand", style="bold")]
        parts += [command_line(f"  {line}") for line in report.undo]
    return Group(*parts)


_Row = tuple[Event, Counter[str]]
"""A line, and how many events of each kind it stands for."""


def _short(events: Sequence[Event]) -> list[Event]:
    """The events with the middle of each long run of minor ones in one line, and where there are
    too many of the others the middle of all."""
    rows = [(one, Counter({one.what.partition(":")[0]: one.number})) for one in events]
    found: list[_Row] = []
    for minor, group in groupby(rows, key=lambda row: row[0].minor):
        run = list(group)
        found += _ends(run, *_RUN) if minor else run
    return [one for one, _ in _ends(found, *_WHOLE)]


def _ends(rows: list[_Row], first: int, last: int) -> list[_Row]:
    if len(rows) <= first + last + 1:
        return rows
    left_out = rows[first:-last]
    kinds: Counter[str] = Counter()
    for _, what in left_out:
        kinds += what
    begin, end = left_out[0][0], left_out[-1][0]
    words = ", ".join(f"{count} x {what}" for what, count in kinds.most_common())
    until_s = max(end.time_s, end.until_s)
    line = Event(begin.time_s, f"... {kinds.total()} more", words, until_s, number=kinds.total())
    return [*rows[:first], (line, kinds), *rows[-last:]]


def _events(events: Sequence[Event]) -> Table:
    table = _table()
    for one in events:
        stood = one.until_s - one.time_s
        length = f" (for {formats.duration(stood)})" if stood >= 1 else ""
        table.add_row(
            formats.moment(one.time_s), bounded_text(one.what + length), bounded_text(one.detail)
        )
    return table


def _table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    return table
