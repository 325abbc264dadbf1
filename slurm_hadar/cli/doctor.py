"""``hadar doctor``: the whole story of one job."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    cluster_of,
    is_controllers_user,
    load,
    owned,
    print_json,
    reader_of,
)
from slurm_hadar.cli.status import asked
from slurm_hadar.config import Config
from slurm_hadar.controller.words import story
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.reports import text
from slurm_hadar.reports.story import Story, told
from slurm_hadar.slurm.commands import checked_id


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(doctor)


def doctor(
    job: Annotated[str, typer.Argument(help="A job's id, such as 123 or 84_2.")],
    config: ConfigOption = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Every event; by default long runs of small ones are one line."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """The whole story of one job: what happened, what comes next, what is wrong and its cure.

    For the operator and the job's owner, who without a running controller on this host is told what
    Slurm and the job's own files say.
    """
    checked_id(job)
    found = _story(load(config), job)
    if as_json:
        print_json("doctor", asdict(found))
    else:
        text.console().print(told(found, everything))


def _story(site: Config, job: str) -> Story:
    if is_controllers_user(site):
        with reader_of(site) as controller:
            return story.of_controller(controller, job)
    answer = asked(site, "doctor", Story, job)
    mine = answer or story.of_owner(site, cluster_of(site), job, time.time())
    if mine is None:
        owned(site)
        raise UsageError(f"Slurm shows no job {job} of yours; see squeue --me")
    return mine
