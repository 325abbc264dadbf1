"""The live view of ``hadar top``, by textual."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from slurm_hadar.cli.job_filter import SORTS, Choice
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports import formats, text
from slurm_hadar.reports import status as report
from slurm_hadar.reports.status import Overview
from slurm_hadar.reports.text import Explanation, StatusRow

_EDGE = 4
"""Cells beside a line of the list: its padding and the scroll bar."""


@dataclass(frozen=True)
class Feed:
    """Where the view reads. Both functions may take long and raise HadarError; they are called in
    a thread. ``own``: whose jobs are shown without another choice, empty: all."""

    overview: Callable[[], Overview]
    explanation: Callable[[str], Explanation]
    own: str = ""
    every_s: float = 5.0


class Explained(ModalScreen[None]):
    """All that is known of one job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "back"),
    ]
    CSS = "Explained { align: center middle; } #job { width: 100%; height: 100%; padding: 0 1; }"

    def __init__(self, job: str, explanation: Callable[[str], Explanation]) -> None:
        super().__init__()
        self._job, self._explanation = job, explanation

    def compose(self) -> ComposeResult:
        """The widgets."""
        with VerticalScroll(id="job"):
            yield Static(Text(f"job {self._job}: asking ..."), id="explanation")
        yield Footer()

    def on_mount(self) -> None:
        """Ask."""
        self._ask()

    @work(thread=True)
    def _ask(self) -> None:
        found: RenderableType
        try:
            found = text.explain(self._explanation(self._job), paste=False)
        except (HadarError, OSError) as error:
            found = Text(formats.plain(str(error)))
        self.app.call_from_thread(self.query_one("#explanation", Static).update, found)


class TopView(App[None]):
    """The summary, a line for each job, and keys to sort, filter and explain."""

    TITLE = "hadar top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: auto; max-height: 50%; }
    #filter { display: none; height: 3; }
    #head { height: 1; padding: 0 1; text-style: bold; }
    #jobs { height: 1fr; border: none; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "sort by next"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "no_filter", "no filter", show=False),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    ]

    def __init__(self, feed: Feed, chosen: Choice, first: Overview) -> None:
        """``first``: what is shown until the feed was read."""
        super().__init__()
        self._feed, self._chosen, self._found = feed, chosen, first
        self._words = self._fault = ""
        self._reading = False

    @property
    def _base(self) -> Screen[object]:
        """The screen of the jobs, also below an explanation."""
        return self.screen_stack[0]

    def compose(self) -> ComposeResult:
        """The widgets."""
        yield Static(id="summary")
        yield Input(placeholder="text in a job's line, such as a user", id="filter")
        yield Static(id="head")
        yield OptionList(id="jobs")
        yield Footer()

    def on_mount(self) -> None:
        """Show the first look, and look again in time."""
        self._base.query_one(OptionList).focus()
        self._show()
        self._read()
        self.set_interval(self._feed.every_s, self._read)

    def on_resize(self) -> None:
        """Other columns may fit."""
        self._show()

    def action_sort(self) -> None:
        """Sort by the next column."""
        names = list(SORTS)
        following = names[(names.index(self._chosen.sort) + 1) % len(names)]
        self._chosen = replace(self._chosen, sort=following)
        self._show()

    def action_reverse(self) -> None:
        """The other way round."""
        self._chosen = replace(self._chosen, reverse=not self._chosen.reverse)
        self._show()

    def action_filter(self) -> None:
        """Ask what the lines to show contain."""
        asked = self._base.query_one(Input)
        asked.display = True
        asked.focus()

    def action_no_filter(self) -> None:
        """All jobs again."""
        self._filter("")
        self._base.query_one(Input).value = ""

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._words = event.value
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Filter, and back to the jobs."""
        self._filter(event.value)

    def _filter(self, words: str) -> None:
        self._words = words
        self._base.query_one(Input).display = False
        self._base.query_one(OptionList).focus()
        self._show()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Explain the job."""
        if event.option_id is not None:
            self.push_screen(Explained(event.option_id, self._feed.explanation))

    def _read(self) -> None:
        # A slow Slurm is not asked twice at a time.
        if not self._reading:
            self._reading = True
            self._look()

    @work(thread=True, group="read")
    def _look(self) -> None:
        found, fault = None, ""
        try:
            found = self._feed.overview()
        except (HadarError, OSError) as error:
            fault = str(error)
        self.call_from_thread(self._looked, found, fault)

    def _looked(self, found: Overview | None, fault: str) -> None:
        self._reading, self._fault = False, fault
        self._found = found or self._found
        self._show()

    def _show(self) -> None:
        if not self.screen_stack or not self.screen_stack[0].query("#jobs"):
            return
        lines = report.summary(self._found, time.time())
        if self._fault:
            lines.append(Text(f"Fault       {formats.plain(self._fault)}", style="yellow"))
        rows = [row for row in self._chosen.of(self._found.rows, self._feed.own) if self._has(row)]
        order = f"by {self._chosen.sort}" + (", the largest first" if self._chosen.reverse else "")
        words = f", with: {formats.plain(self._words)}" if self._words else ""
        lines.append(Text(f"{'Shown':<12}{len(rows)} of {len(self._found.rows)} {order}{words}"))
        self._static("#summary", Text("\n").join(_short(lines, self.size.width)))
        head, *jobs = report.table(rows, max(20, self.size.width - _EDGE))
        self._static("#head", head)
        listed = self._base.query_one(OptionList)
        at = listed.highlighted
        before = listed.get_option_at_index(at).id if at is not None else None
        top = listed.scroll_y
        listed.clear_options()
        listed.add_options([Option(line, row.id) for line, row in zip(jobs, rows, strict=False)])
        here = next((n for n, row in enumerate(rows) if row.id == before), 0)
        if rows:
            listed.highlighted = here
            listed.scroll_to(y=top, animate=False)

    def _static(self, name: str, what: Text) -> None:
        self._base.query_one(name, Static).update(what)

    def _has(self, row: StatusRow) -> bool:
        parts = (
            *row.names, row.user, row.account, row.name, row.state, row.nodes, row.reason,
            *row.here, *row.planned,
        )  # fmt: skip
        line = " ".join(parts).lower()
        return all(word in line for word in self._words.lower().split())


def _short(lines: Sequence[Text], width: int) -> list[Text]:
    """One line of the screen for each."""
    for line in lines:
        line.truncate(max(1, width), overflow="ellipsis")
    return list(lines)
