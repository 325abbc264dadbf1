"""``hadar doctor``: the report of one job."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    cluster_of,
    load_to_ask,
    owned,
    print_json,
)
from slurm_hadar.cli.status import answered, asks_a_controller, latest_fault
from slurm_hadar.config import Config
from slurm_hadar.controller.presentation import job_report
from slurm_hadar.domain.errors import HadarError, UnknownJobError, UsageError
from slurm_hadar.reports import text
from slurm_hadar.reports.job_report import NOT_SHOWN, JobReport, format_report
from slurm_hadar.slurm.commands import checked_id

if TYPE_CHECKING:  # where a controller answers, nothing of it is loaded here
    from slurm_hadar.controller.tick import Controller


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

    For the operator and the job's owner. Without a running controller on this host it shows the
    owner what Slurm and the job's own files say.
    """
    checked_id(job)
    found = _report(load_to_ask(config), job)
    if as_json:
        print_json("doctor", asdict(found))
    else:
        for line in text.age_line(found.reported_s, time.time()):
            text.console().print(line)
        text.console().print(format_report(found, everything))


def _report(site: Config, job: str) -> JobReport:
    def read(controller: "Controller", id_: str) -> JobReport:
        return job_report.of_controller(controller, id_, latest_fault(site, controller.store))

    refused: UsageError | None = None
    try:
        found = answered(site, "doctor", JobReport, job, read)
    except UsageError as error:
        if not asks_a_controller(site):
            raise
        found, refused = None, error
    if found is not None and (found.state != NOT_SHOWN or not asks_a_controller(site)):
        return found
    # What it does not know may have been submitted since its last tick.
    try:
        now = job_report.of_owner(site, cluster_of(site), job, time.time())
    except HadarError:
        if found is None and refused is None:
            raise
        now = None
    found = now or found
    if found is None:
        if refused is not None:
            raise refused
        owned(site)
        raise UnknownJobError(f"Slurm shows no job {job} of yours; see squeue --me")
    return found
