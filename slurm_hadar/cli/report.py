"""``hadar report``: what each account asked for, waited for, received, wasted and gained."""

import os
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    is_controllers_user,
    load,
    print_json,
    reader_of,
)
from slurm_hadar.config import Config
from slurm_hadar.domain.errors import HadarError, SlurmError, UsageError

if TYPE_CHECKING:
    from slurm_hadar.controller.presentation.account_usage import RecordedUse

_SPAN = re.compile(r"([1-9]\d{0,5})([hdw])", re.ASCII)
_SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(report)


def report(
    since: Annotated[
        str, typer.Option(help="How long back, such as 24h, 7d, 2w; or a date, 2026-01-31.")
    ] = "7d",
    account: Annotated[str, typer.Option(help="Only this account.")] = "",
    html: Annotated[Path | None, typer.Option(help="Write an HTML page to this file.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Report GPU use by account: asked for, waited, received, held idle, gained by moves.

    Slurm's accounting gives what the caller may see; the operator also sees moves and samples.
    """
    from slurm_hadar.controller.presentation import account_usage
    from slurm_hadar.reports import usage as shown
    from slurm_hadar.reports.text import console
    from slurm_hadar.slurm import accounting
    from slurm_hadar.slurm.commands import Commands

    site, now = load(config), time.time()
    window = account_usage.UsageWindow(_from(since, now), now, account)
    if html and (html.is_dir() or not os.access(html.parent, os.W_OK)):
        raise UsageError(f"{html} cannot be written; is its folder there?")
    commands = Commands(site.slurm.bin_dir, site.slurm.conf, accounting.TIMEOUT_S)
    runs, bad = accounting.read_runs(commands, window.from_s, now)
    notes = [f"unreadable lines of sacct's answer, which are not counted: {bad}"] if bad else []
    known = _known(site, window.from_s)
    if known is None:
        notes.append(
            "moves, held idle GPUs and energy are shown to the operator; these are the jobs that "
            "Slurm's accounting shows to you"
        )
    found = account_usage.usage(runs, known, window, site, notes)
    if html:
        try:
            html.write_text(shown.page(found))
        except OSError as error:
            raise HadarError(f"{html} cannot be written: {error.strerror}") from None
    if as_json:
        print_json("report", asdict(found))
    else:
        console().print(shown.text(found))


def _known(site: Config, from_s: float) -> "RecordedUse | None":
    from slurm_hadar.controller.presentation import account_usage

    if not is_controllers_user(site):
        return None
    with reader_of(site) as controller, controller.store.readable_errors():
        return account_usage.recorded(controller.store, from_s)


def _from(since: str, now: float) -> float:
    from slurm_hadar.slurm import times

    if match := _SPAN.fullmatch(since):
        return max(0.0, now - int(match[1]) * _SECONDS[match[2]])
    try:
        found = times.parse_date(since)
    except SlurmError:
        found = 0.0
    if not 0 < found < now:
        raise UsageError(
            f"--since {since[:40]!r} is no time before now; write 24h, 7d, 2w or 2026-01-31"
        )
    return found
