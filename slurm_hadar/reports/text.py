"""What ``hadar explain`` prints, and one job of ``hadar status``."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurm_hadar.reports import formats


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One managed job. ``here`` and ``planned``: GPUs by type; ``done`` 0-1, None: unknown; so
    ``moves``.

    ``raw_id`` and ``array``: Slurm's own number of it, and of its array; 0: none."""

    id: str
    user: str
    name: str
    state: str
    here: Mapping[str, int] = field(default_factory=dict)
    nodes: str = ""
    planned: Mapping[str, int] = field(default_factory=dict)
    done: float | None = None
    samples_per_s: float | None = None
    moves: int | None = 0
    reason: str = ""
    account: str = ""
    raw_id: int = 0
    array: int = 0

    @property
    def names(self) -> set[str]:
        """All that a person may call it; an array's number names each of its tasks."""
        return {self.id, str(self.raw_id), str(self.array)}


@dataclass(frozen=True, slots=True)
class RateRow:
    """What a job does on one GPU type and number of GPUs, samples/s, and how that is known.

    ``samples_per_s`` is None where the model's speed is not known, 0 where it cannot run.
    ``relative``: its speed over that of the fastest of the job's rows, 0-1; None: not said.

    ``origin``: ``this_job``, ``owner`` or ``other_users``, whose runs measured it; else
    ``inferred``, ``table`` or ``estimate``; of a report of an earlier release empty.
    ``corrected_by``: ``owner`` or ``other_users``, whose runs elsewhere changed what was not
    measured; else empty."""

    gpu_type: str
    gpus: int
    samples_per_s: float | None
    source: str
    here: bool = False
    relative: float | None = None
    origin: str = ""
    corrected_by: str = ""


@dataclass(frozen=True, slots=True)
class MoveRow:
    """One action on a job. ``time_s`` since the epoch; ``outcome`` empty while under way."""

    time_s: float
    action: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known of one job."""

    row: StatusRow
    declaration: Sequence[tuple[str, str]] = ()
    rates: Sequence[RateRow] = ()
    decided_s: float = 0.0
    decision: str = ""
    reason: str = ""
    moves: Sequence[MoveRow] = ()
    notes: Sequence[str] = ()
    gpus: Sequence[tuple[str, str]] = ()
    """What its GPUs do and did: (what, figures)."""
    as_of_s: float = 0.0
    """When Slurm showed all this, s since the epoch; 0: not known."""


_OLD_S = 5.0
"""From then on an answer says how old it is."""


class _Console(Console):
    def print(self, *objects: Any, **more: Any) -> None:
        """As rich's, but what is longer than a line of the terminal is never cut."""
        super().print(*objects, **{"crop": False, **more})

    def on_broken_pipe(self) -> None:
        """The reader needs no more, as of ``| head``: that is no failure, as rich takes it for."""
        self.quiet = True
        raise BrokenPipeError


def console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console without colour where the output is no terminal or NO_COLOR is set.

    ``width``: of the output; by default the terminal's, and 200 where there is none, so that
    nothing is cut in a pipe.
    """
    stream = file or sys.stdout
    terminal = stream.isatty()
    plain = not terminal or bool(os.environ.get("NO_COLOR"))
    return _Console(
        file=stream,
        no_color=plain,
        color_system=None if plain else "auto",
        width=width or (None if terminal else 200),
        highlight=False,
        markup=False,
        emoji=False,
    )


def age_line(as_of_s: float, now: float) -> list[Text]:
    """That an answer of the controller is not of now, where it is some seconds old."""
    age_s = now - as_of_s
    if not as_of_s or age_s <= _OLD_S:
        return []
    what = "what the last tick saw; the one since then has no result yet"
    return [Text(f"As of {formats.duration(age_s)} ago: {what}")]


def explain(found: Explanation, paste: bool = True) -> RenderableType:
    """One job: what was declared, what is known of its speed, what was decided and done.

    ``paste``: lines with commands in them stay whole; False where the screen would cut them.
    """
    said = command_line if paste else bounded_text
    row = found.row
    parts: list[RenderableType] = [
        Text.assemble(
            ("Job ", "bold"),
            (row.id, "bold"),
            f"  {formats.short_name(row.name)}  ({formats.plain(row.user)})  ",
            (row.state, STATE_STYLES.get(row.state.lower(), "")),
        )
    ]
    facts = [("Runs on", where(row))] if row.here else []
    if row.done is not None:
        speed = f", {formats.rate(row.samples_per_s)} samples/s" if row.samples_per_s else ""
        facts.append(("Done", f"{formats.percent(row.done)}{speed}"))
    facts.append(("Moves so far", formats.number(row.moves)))
    parts.append(_pairs(facts))
    parts += _section("Declared", _pairs(found.declaration) if found.declaration else None)
    parts += _section("Speed", _rates(found.rates) if found.rates else None)
    parts += _section("GPUs", _pairs(found.gpus) if found.gpus else None)
    if found.decision or found.reason:
        when = f" ({formats.moment(found.decided_s)})" if found.decided_s else ""
        lines = [said(line) for line in (found.decision, found.reason) if line]
        parts += _section(f"Last decision{when}", Group(*lines))
    parts += _section("History", _moves(found.moves) if found.moves else None)
    parts += [Text(""), *(said(note) for note in found.notes)] if found.notes else []
    return Group(*parts)


STATE_STYLES = {"running": "green", "pending": "yellow", "waiting": "yellow", "unknown": "red"}


def bounded_text(value: str, most: int = 2000) -> Text:
    """Foreign text on one line, cut to ``most`` characters."""
    line = formats.plain(value)
    return Text(line if len(line) <= most else line[: most - 1] + "…")


def command_line(value: str) -> Text:
    """As :func:`bounded_text`, of text with a command in it, which no line break may divide."""
    return whole_line(bounded_text(value).plain)


def whole_line(line: str, style: str = "") -> Text:
    """A line that may be pasted: longer than the terminal is wide, or in a file, it stays one. Of
    such a line, and of foreign text in it, the caller has made one line."""
    return Text(line, style=style, no_wrap=True, overflow="ignore")


def where(row: StatusRow) -> str:
    """The GPUs that a job has, and their nodes."""
    if not row.here:
        return formats.ABSENT
    nodes = f" ({formats.plain(row.nodes)})" if row.nodes else ""
    return formats.gpus(row.here) + nodes


def _section(title: str, body: RenderableType | None) -> list[RenderableType]:
    return [] if body is None else [Text(""), Text(title, style="bold"), body]


def figures_table(heads: Sequence[str], names: int = 1) -> Table:
    """An empty table of figures, whose first ``names`` columns are text."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, head in enumerate(heads):
        table.add_column(head, justify="left" if at < names else "right", no_wrap=True)
    return table


def _pairs(pairs: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for key, value in pairs:
        table.add_row(bounded_text(key), bounded_text(value))
    return table


def _rates(rows: Sequence[RateRow]) -> Table:
    parts = all(row.samples_per_s is None and row.relative is not None for row in rows)
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 2))
    table.add_column("GPUS", no_wrap=True)
    table.add_column("OF THE FASTEST" if parts else "SAMPLES/S", justify="right", no_wrap=True)
    table.add_column("KNOWN FROM", overflow="fold")
    for row in rows:
        speed = formats.rate(row.samples_per_s) if row.samples_per_s else "cannot run"
        if row.samples_per_s is None:
            speed = formats.percent(row.relative) if parts else formats.UNKNOWN
        table.add_row(
            Text(formats.gpus({row.gpu_type: row.gpus}) + (" (now)" if row.here else "")),
            Text(speed, style="bold" if row.here else ""),
            bounded_text(row.source),
        )
    return table


def _moves(rows: Sequence[MoveRow]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for row in rows:
        table.add_row(
            formats.moment(row.time_s),
            bounded_text(row.action),
            bounded_text(row.outcome or "under way"),
        )
    return table
