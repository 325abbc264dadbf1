"""``hadar top``: ``hadar status`` as a live view on a terminal."""

import sys
from typing import Annotated

import typer

from slurm_hadar.cli import status
from slurm_hadar.cli.common import ConfigOption, load_to_ask
from slurm_hadar.domain.errors import HadarError, UsageError

_USUAL_S, _SHORTEST_S, _LONGEST_S = 5.0, 2.0, 86400.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(top)


def top(
    config: ConfigOption = None,
    user: status.UserFilter = "",
    account: status.AccountFilter = "",
    state: status.StateFilter = "",
    gpu_type: status.TypeFilter = "",
    sort: status.SortOption = "job",
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = _USUAL_S,
) -> None:
    """What hadar status shows, live: sort, filter, and explain a job by a key.

    Keys: s sorts by the next column, r reverses, / filters, Enter explains the job, q quits.
    """
    site = load_to_ask(config)
    chosen = status.choice(user, account, state, gpu_type, sort)
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
