"""``hadar``: the operator's, the admin's and the researcher's command."""

import gc
import os
import sys
from typing import Annotated, NoReturn

import typer

from slurm_hadar import __version__
from slurm_hadar.cli import (
    alerts,
    completion,
    controller_commands,
    doctor,
    jobs,
    manual,
    plugins,
    policies,
    profile,
    report,
    retire,
    simulate,
    site,
    status,
    template,
    top,
    tune,
    web,
    widen,
)
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports import formats

app = typer.Typer(
    name="hadar",
    help="Makes a mixed GPU cluster under Slurm act as one machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
controller_commands.add_to(app)
status.add_to(app)
top.add_to(app)
doctor.add_to(app)
jobs.add_to(app)
site.add_to(app)
simulate.add_to(app)
profile.add_to(app)
report.add_to(app)
retire.add_to(app)
widen.add_to(app)
alerts.add_to(app)
plugins.add_to(app)
policies.add_to(app)
template.add_to(app)
tune.add_to(app)
web.add_to(app)
completion.add_to(app)
manual.add_to(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slurm-hadar {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Makes a mixed GPU cluster under Slurm act as one machine."""


def main() -> None:
    """Run the command; an error is one sentence on stderr and an exit code."""
    # What is imported stays. The collector, which would look through it even at the end, leaves it.
    gc.freeze()
    try:
        app()
    except SystemExit as end:
        # click ends with 1 where the reader is gone, and marks the streams.
        if end.code == 1 and type(sys.stdout).__name__ == "PacifyFlushWrapper":
            _reader_is_gone()
        raise
    except HadarError as error:
        # It may quote a file, a name or an argument with characters that would act.
        said = "\n".join(formats.plain(line) for line in str(error).split("\n"))
        print(f"hadar: {said}", file=sys.stderr)
        sys.exit(error.exit_code)
    except PermissionError as error:
        # A folder of the configuration below one that this user may not enter.
        said = f"this user has no access to {error.filename}: {error.strerror}"
        print(f"hadar: {said}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _reader_is_gone()


def _reader_is_gone() -> NoReturn:
    """``| head`` is no failure; without this Python complains once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(0)


if __name__ == "__main__":
    main()
