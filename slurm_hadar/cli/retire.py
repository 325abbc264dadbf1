"""``hadar retire``: all managed jobs become Slurm's own."""

import time
from typing import Annotated

import typer

from slurm_hadar.cli.common import ConfigOption, JsonOption, controller_of, load, print_json
from slurm_hadar.controller import retire as retiring
from slurm_hadar.controller.presentation import event_log
from slurm_hadar.controller.presentation.log_file import open_log
from slurm_hadar.reports import formats

_LOCK_WAIT_S = 30.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(retire)


def retire(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the jobs; change nothing.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give all managed jobs back to Slurm as ordinary jobs. Stop the controller first."""
    site = load(config)
    with controller_of(site, _LOCK_WAIT_S) as controller, controller.store.readable_errors():
        done = retiring.retire(controller, time.time(), only_show=dry_run)
        log = None if dry_run else open_log(site)
        if log is not None:
            # No tick may ever follow that would write them.
            event_log.news(log, controller.store, done.seen)
    if as_json:
        print_json(
            "retire", {"changed": not dry_run, "jobs": list(done.jobs), "refused": done.refused}
        )
    else:
        what = "would be" if dry_run else "was" if len(done.jobs) == 1 else "were"
        typer.echo(f"{formats.counted(len(done.jobs), 'managed job')} {what} given back to Slurm")
        for job in done.jobs:
            typer.echo(f"  {job}")
    for job, why in done.refused.items():
        typer.echo(f"hadar: job {job} could not be changed: {why}", err=True)
    if done.refused:
        raise typer.Exit(1)
