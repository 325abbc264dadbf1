"""``hadar web``: the live page."""

from pathlib import Path
from typing import Annotated

import typer

from slurm_hadar.cli.common import ConfigOption, load
from slurm_hadar.domain.errors import HadarError, UsageError

_HIGHEST_PORT = 65535


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(web)


def web(
    config: ConfigOption = None,
    socket: Annotated[
        Path | None,
        typer.Option(help="Path of the unix socket. Default: web.socket of the configuration."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Sandbox only: serve on this loopback port, 0: any free one."),
    ] = None,
) -> None:
    """Serve a live page of the cluster, the queue and each job, until Ctrl-C; read-only.

    Each user sees what hadar status shows to them. It asks the running controller of this host.
    """
    if port is not None and not 0 <= port <= _HIGHEST_PORT:
        raise UsageError(f"--port takes a number from 0 to {_HIGHEST_PORT}, not {port}")
    site = load(config)
    try:
        # Only here: no other command needs them.
        from slurm_hadar.web import serving
    except ModuleNotFoundError as error:
        raise HadarError(
            f"hadar web needs {error.name}, which is not installed; run: "
            "pip install 'slurm-hadar[web]'"
        ) from None
    serving.serve(site, socket, port, lambda where: typer.echo(f"hadar web: {where}"))
