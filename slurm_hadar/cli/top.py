"""``hadar top``: ``hadar status`` as a live view on a terminal."""

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from slurm_hadar.cli import status
from slurm_hadar.cli.common import load_to_ask
from slurm_hadar.cli.job_filter import FilterOptions
from slurm_hadar.cli.options_record import takes
from slurm_hadar.domain.errors import HadarError, UsageError

_USUAL_S, _SHORTEST_S, _LONGEST_S = 5.0, 2.0, 86400.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(top)


@dataclass(frozen=True)
class TopOptions(FilterOptions):
    """What the caller of ``hadar top`` typed."""

    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = _USUAL_S


@takes(TopOptions)
def top(options: TopOptions) -> None:
    """What hadar status shows, live: sort, filter, and explain a job by a key.

    Keys: s sorts by the next column, r reverses, / filters, Enter explains the job, q quits.
    """
    site, chosen, every = load_to_ask(options.config), options.choice(), options.every
    if not _SHORTEST_S <= every <= _LONGEST_S:
        raise UsageError(f"--every takes seconds between {_SHORTEST_S:g} and {_LONGEST_S:g}")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise HadarError("hadar top needs a terminal; hadar status prints the same once")
    try:
        from slurm_hadar.cli.top_view import Feed, TopView
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise HadarError(
            "hadar top needs the extra top of slurm-hadar (textual), which is not installed here: "
            "ask the site's admin for it, or run: hadar status --watch 5"
        ) from None
    first = status.chosen_overview(site, chosen, live=True, strict=True)
    feed = Feed(
        overview=lambda: status.overview_of(site, live=True),
        explanation=lambda job: status.explanation(site, job),
        own=status.own_name(site),
        every_s=every,
    )
    TopView(feed, chosen, first).run()
