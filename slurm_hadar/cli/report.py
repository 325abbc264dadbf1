"""``hadar report``: what each account asked for, waited for, received, wasted and gained."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    check_writable,
    is_controllers_user,
    load,
    print_json,
    reader_of,
)
from slurm_hadar.cli.filters import ALL, me, names_of, require_accounts, require_users
from slurm_hadar.cli.options_record import takes
from slurm_hadar.config import Config
from slurm_hadar.domain.errors import HadarError, SlurmError

if TYPE_CHECKING:
    from slurm_hadar.controller.presentation.account_usage import RecordedUse
    from slurm_hadar.slurm.accounting import JobRun
    from slurm_hadar.slurm.commands import Commands

_RIGHTS_S = 10.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(report)


@dataclass(frozen=True)
class ReportOptions:
    """What is reported, and how."""

    since: Annotated[
        str, typer.Option(help="How long back, such as 24h, 7d, 2w; or a date, 2026-01-31.")
    ] = "7d"
    account: Annotated[str, typer.Option(help="Only this account.")] = ""
    user: Annotated[
        str,
        typer.Option(
            help="Jobs of these users, or all; default: one's own and those of accounts that one "
            "coordinates, an operator's all."
        ),
    ] = ""
    html: Annotated[Path | None, typer.Option(help="Write an HTML page to this file.")] = None
    config: ConfigOption = None
    as_json: JsonOption = False


@takes(ReportOptions)
def report(options: ReportOptions) -> None:
    """Report GPU use by account: asked for, waited, received, held idle, gained by moves.

    Slurm's accounting gives what the caller may see, the controller the moves and samples of it.
    """
    from slurm_hadar.controller.presentation import account_usage
    from slurm_hadar.reports import usage as shown
    from slurm_hadar.reports.text import console
    from slurm_hadar.slurm import accounting, times
    from slurm_hadar.slurm.commands import Commands

    html, account = options.html, options.account
    site, now = load(options.config), time.time()
    window = account_usage.UsageWindow(times.time_before(options.since, now), now, account)
    check_writable(html)
    commands = Commands(site.slurm.bin_dir, site.slurm.conf, accounting.TIMEOUT_S)
    runs, bad = accounting.read_runs(commands, window.from_s, now)
    notes = [f"unreadable lines of sacct's answer, which are not counted: {bad}"] if bad else []
    known, why_not = _known(site, window.from_s)
    readers = _reader(commands, known)
    users = names_of(options.user)
    shown_runs = readers.of(runs, users)
    if not users and not readers.everything and len(shown_runs) < len(runs):
        notes.append(f"{readers.words}; --user all: all that Slurm's accounting shows to you")
    if known is None:
        notes.append(f"moves, held idle GPUs and energy are not known here: {why_not}")
    elif not known.everything and len(readers.of(runs, ())) < len(shown_runs):
        notes.append(f"moves, held idle GPUs and energy: {readers.words}")
    notes += _without_jobs(site, shown_runs, account, users)
    found = account_usage.usage(shown_runs, known, window, site, notes)
    if html:
        try:
            html.write_text(shown.page(found))
        except OSError as error:
            raise HadarError(f"{html} cannot be written: {error.strerror}") from None
    if options.as_json:
        print_json("report", asdict(found))
    else:
        console().print(shown.text(found))


@dataclass(frozen=True)
class _Reader:
    """Who asks; ``name`` empty: the controller's user, or root."""

    name: str
    everything: bool
    accounts: frozenset[str]

    @property
    def words(self) -> str:
        """Whose jobs those are that are shown without a choice."""
        names = ", ".join(sorted(self.accounts))
        return f"your own jobs{f' and those of {names}' if names else ''} alone"

    def of(self, runs: "Sequence[JobRun]", users: Sequence[str]) -> "list[JobRun]":
        """Those of ``users``; of all, or of the reader's own, where that is empty."""
        if ALL in users or (self.everything and not users):
            return list(runs)
        if users:
            return [run for run in runs if run.user in users]
        return [run for run in runs if run.user == self.name or run.account in self.accounts]


def _reader(commands: "Commands", known: "RecordedUse | None") -> _Reader:
    from slurm_hadar.slurm import accounting

    name = me()
    if known is not None:
        return _Reader(name, known.everything, known.accounts)
    if os.getuid() == 0:
        return _Reader(name, True, frozenset())
    try:
        rights = accounting.read_rights(replace(commands, timeout_s=_RIGHTS_S), name)
    except SlurmError:
        # As without a database of accounts: there are no coordinators then.
        rights = accounting.AccountingRights()
    return _Reader(name, rights.everything, rights.accounts)


def _known(site: Config, from_s: float) -> "tuple[RecordedUse | None, str]":
    """What the state file adds, or why that is not known."""
    from slurm_hadar.cli.status import asked
    from slurm_hadar.controller.presentation import account_usage

    if is_controllers_user(site):
        with reader_of(site) as controller, controller.store.readable_errors():
            return account_usage.recorded(controller.store, from_s), ""
    try:
        found = asked(site, "report", account_usage.RecordedUse, since_s=from_s)
    except HadarError as error:
        return None, str(error)
    return found, "" if found else "no controller answers on this host"


def _without_jobs(
    site: Config, runs: "Sequence[JobRun]", account: str, users: Sequence[str]
) -> list[str]:
    """What is wrong with a filter that finds nothing, as far as that is known. Raises HadarError
    for a user or an account that is unknown."""
    if users and ALL not in users and not runs:
        require_users(users)
        return ["these users had no GPU job in this time that you may see"]
    if account and not any(run.account == account for run in runs):
        require_accounts(site, [account])
        return ["this account had no GPU job in this time that you may see"]
    return []
