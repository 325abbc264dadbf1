"""``hadar doctor``: the report of one job."""

import time
from dataclasses import asdict
from typing import Annotated

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
from slurm_hadar.config import Config
from slurm_hadar.controller.words import story
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports import text
from slurm_hadar.reports.story import Story, told
from slurm_hadar.slurm.commands import checked_id


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(doctor)


def doctor(
    job: Annotated[str, typer.Argument(help="Job ID, such as 123 or 84_2.")],
    config: ConfigOption = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Show each event. By default many minor events are one line."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one job's history, next steps, problems and cures.

    The controller's user sees all of it; the owner sees what Slurm and the job's files show.
    """
    checked_id(job)
    found = _story(load(config), job)
    if as_json:
        print_json("doctor", asdict(found))
    else:
        text.console().print(told(found, everything))


def _story(site: Config, job: str) -> Story:
    try:
        owned(site)
    except HadarError:
        mine = story.of_owner(site, cluster_of(site), job, time.time())
        if mine is None:
            raise
        return mine
    with reader_of(site) as controller:
        return story.of_controller(controller, job)
