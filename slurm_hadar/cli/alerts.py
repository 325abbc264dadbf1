"""``hadar alerts``: tell operators and owners of what is wrong, from a timer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    cluster_of,
    load,
    owned,
    print_json,
    reader_of,
)
from slurm_hadar.config import TO_ASK, Config
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.reports import formats

if TYPE_CHECKING:
    from slurm_hadar.controller.alerts.dispatch import AlertSource
    from slurm_hadar.controller.observation.observed import Observation
    from slurm_hadar.controller.tick import Controller


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(alerts)


def alerts(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show them; send nothing.")] = False,
    test: Annotated[bool, typer.Option("--test", help="Send a message to each operator.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look for what operators and owners should know, and send it. For use by a timer.

    Sends nothing unless alerts.enabled is set.
    """
    from slurm_hadar.controller.alerts import dispatch

    site = load(config, {*TO_ASK, "alerts"})
    owned(site)
    if test and not (site.alerts.enabled and site.alerts.operators):
        raise UsageError("--test needs alerts.enabled = true and alerts.operators in hadar.toml")
    with _source(site) as source:
        if test:
            for one in dispatch.send_test(site, source):
                typer.echo(f"sent to {one}")
            return
        found = dispatch.look(site, source, dry_run or not site.alerts.enabled)
    if as_json:
        print_json("alerts", {**asdict(found), "enabled": site.alerts.enabled})
    else:
        for alert in found.alerts:
            typer.echo(f"{alert.kind}: {formats.plain(alert.text)}")
        # Not from a timer: cron mails whatever is printed.
        if not found.alerts and (dry_run or not site.alerts.enabled):
            typer.echo("No alerts.")
        for recipient, sent in found.sent.items():
            typer.echo(f"sent to {recipient}: {formats.counted(len(sent), 'alert')}")
        if not site.alerts.enabled:
            typer.echo("alerts.enabled is false: nothing is sent")
    for problem in found.problems:
        typer.echo(f"hadar: {problem}", err=True)
    if found.problems:
        raise typer.Exit(1)


@contextmanager
def _source(site: Config) -> "Iterator[AlertSource]":
    from slurm_hadar.controller.alerts.dispatch import AlertSource

    opened: list[Controller] = []
    with ExitStack() as stack:

        def controller() -> "Controller":
            # Opened when it is asked for: a damaged state file must not hide a silent controller.
            if not opened:
                opened.append(stack.enter_context(reader_of(site)))
            return opened[0]

        def observe() -> "Observation":
            if site.ignored:
                # Which jobs are managed may stand in a table that is ignored.
                raise HadarError(f"the configuration has a mistake: {site.ignored[0]}")
            return controller().observe()

        yield AlertSource(
            store=lambda: controller().store,
            observe=observe,
            mail_prog=lambda: cluster_of(site).read_config().get("MailProg", ""),
        )
