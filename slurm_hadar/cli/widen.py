"""``hadar widen``: waiting jobs get the partitions back that a controller left out too long."""

import os
import time
from collections.abc import Mapping

import typer

from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    cluster_of,
    keep_ages,
    load_to_ask,
    print_json,
)
from slurm_hadar.config import Config
from slurm_hadar.controller import expired_lists
from slurm_hadar.controller.actuation.restored_request import within_types
from slurm_hadar.controller.expired_lists import Widened
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.steering import Steering


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(widen)


def widen(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Restore partition lists of jobs past their deadline.

    Does nothing while a controller is active. The controller's user widens all jobs, others
    their own.
    """
    site = load_to_ask(config)
    acts = expired_lists.controller_is_active(site) is True
    done = Widened() if acts else _widened(site, os.getuid() == site.controller_uid)
    if as_json:
        found = {"jobs": done.lists, "refused": dict(done.refused)}
        print_json("widen", {"controller_active": acts, **found})
    elif acts:
        typer.echo(f"nothing changed: {expired_lists.active_controller_message(site)}")
    else:
        typer.echo(f"jobs widened past their deadline: {len(done.lists)}")
        for job, names in done.lists.items():
            typer.echo(f"  {job}: Partition={names}")
    for job, why in done.refused.items():
        typer.echo(f"hadar: job {job} was not widened: {why}", err=True)
    if done.refused:
        raise typer.Exit(1)


def widen_own(site: Config) -> None:
    """Widen the caller's own jobs where the controller has died; report on stderr."""
    if expired_lists.controller_is_active(site) is False:
        done = _widened(site, everybodys=False)
        for job, names in done.lists.items():
            said = f"job {job} is past its deadline and no controller is active: Partition={names}"
            typer.echo(f"hadar: {said}", err=True)
        for job, why in done.refused.items():
            typer.echo(f"hadar: job {job} was not widened: {why}", err=True)


def _widened(site: Config, everybodys: bool) -> Widened:
    cluster, uid = cluster_of(site), os.getuid()
    jobs = [
        job
        for job in cluster.read_jobs(None, site.guards.max_jobs_per_array)
        if job.managed and (everybodys or job.uid == uid)
    ]

    def restored(job: Job, steered: Steering, fields: Mapping[str, str]) -> Mapping[str, str]:
        return within_types(job, steered, fields, site)

    done = expired_lists.widen(
        cluster, jobs, steering_store.of_jobs(site, jobs), time.time(), restored
    )
    # Tasks of an array get it at Slurm's next computation.
    keep_ages(cluster, [(job, update) for job, update in done.sent if not job.array_tasks])
    return done
