"""``hadar retire``: all managed jobs become Slurm's own."""

import time
from collections.abc import Mapping
from typing import Annotated

import typer

from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    controller_of,
    keep_ages,
    load,
    print_json,
    reader_of,
)
from slurm_hadar.config import Config
from slurm_hadar.controller import retire as retiring
from slurm_hadar.controller.observation.accounting_limits import refuse_root
from slurm_hadar.controller.presentation import event_log
from slurm_hadar.controller.presentation.log_file import open_log
from slurm_hadar.reports import formats

_LOCK_WAIT_S = 30.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(retire)


def retire(
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="List the jobs and what each would get; also beside a controller."
        ),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give all managed jobs back to Slurm as ordinary jobs. Stop the controller first."""
    site = load(config)
    if dry_run:
        _would_retire(site, as_json)
        return
    with controller_of(site, _LOCK_WAIT_S) as controller, controller.store.readable_errors():
        done = retiring.retire(controller, time.time())
        log = open_log(site)
        if log is not None:
            # No tick may ever follow that would write them.
            event_log.news(log, controller.store, done.looked_at)
        keep_ages(controller.cluster, [(done.looked_at[one.job_id], one) for one in done.sent])
    if as_json:
        shown = {"changed": True, "jobs": list(done.jobs), "refused": done.refused}
        print_json("retire", {**shown, "after_requeue": list(done.after_requeue.values())})
    else:
        were = "was" if len(done.jobs) == 1 else "were"
        typer.echo(f"{formats.counted(len(done.jobs), 'managed job')} {were} given back to Slurm")
        for job in done.jobs:
            typer.echo(f"  {job}")
        _show(done.after_requeue)
    for job, why in done.refused.items():
        typer.echo(f"hadar: job {job} could not be changed: {why}", err=True)
    if done.refused:
        raise typer.Exit(1)


def _would_retire(site: Config, as_json: bool) -> None:
    """Without the lock: a controller may go on beside it."""
    refuse_root(site)
    with reader_of(site) as controller, controller.store.readable_errors():
        found = retiring.retire(controller, time.time(), only_show=True)
    meant = found.meant
    if as_json:
        fields = {job: dict(one) for job, one in meant.items()}
        shown = {"changed": False, "jobs": list(meant), "refused": {}, "would_set": fields}
        print_json("retire", {**shown, "after_requeue": list(found.after_requeue.values())})
        return
    typer.echo(f"{formats.counted(len(meant), 'managed job')} would be given back to Slurm")
    for job, one in meant.items():
        sets = " ".join(f"{key}={value!r}" for key, value in one.items())
        typer.echo(formats.plain(f"  {job}  {sets}"))
    _show(found.after_requeue)


def _show(after_requeue: Mapping[str, str]) -> None:
    for text in after_requeue.values():
        typer.echo(formats.plain(text))
