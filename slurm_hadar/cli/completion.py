"""``hadar completion SHELL``: completion of hadar's and hbatch's options and arguments in bash, zsh
and fish."""

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

from slurm_hadar.cli import completion_hbatch


class Shell(StrEnum):
    """The shells that there is completion for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class Program(StrEnum):
    """The programs that are completed."""

    HADAR = "hadar"
    HBATCH = "hbatch"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(completion)


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.")],
    program: Annotated[
        Program | None, typer.Argument(help="Only for this program. Default: both.")
    ] = None,
) -> None:
    """Print the shell code that completes hadar and hbatch.

    For bash and zsh: source <(hadar completion bash); for fish: hadar completion fish | source.
    """
    for one in Program if program is None else (program,):
        typer.echo(script(one, shell))


def script(program: Program, shell: Shell) -> str:
    """The shell's code for one program."""
    if program is Program.HBATCH:
        return completion_hbatch.SCRIPTS[shell]()
    return get_completion_script(
        prog_name="hadar", complete_var="_HADAR_COMPLETE", shell=shell.value
    )
