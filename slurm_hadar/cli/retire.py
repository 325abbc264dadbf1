"""``hadar retire``: all managed jobs become Slurm's own."""

import time
from typing import Annotated

import typer

from slurm_hadar.cli.common import ConfigOption, JsonOption, controller_of, load, print_json
from slurm_hadar.controller import retire as retiring

_LOCK_WAIT_S = 30.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(retire)


def retire(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Name the jobs and change nothing.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give all managed jobs back to Slurm as ordinary ones. Stop the controller before."""
    with controller_of(load(config), _LOCK_WAIT_S) as controller, controller.store.in_words():
        done = retiring.retire(controller, time.time(), only_show=dry_run)
    if as_json:
        print_json(
            "retire", {"changed": not dry_run, "jobs": list(done.jobs), "refused": done.refused}
        )
    else:
        word = "would become" if dry_run else "are"
        typer.echo(f"{len(done.jobs)} managed jobs {word} ordinary jobs of Slurm's")
        for job in done.jobs:
            typer.echo(f"  {job}")
    for job, why in done.refused.items():
        typer.echo(f"hadar: job {job} could not be changed: {why}", err=True)
    if done.refused:
        raise typer.Exit(1)
