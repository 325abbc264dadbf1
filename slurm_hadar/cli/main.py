"""``hadar``: the operator's, the admin's and the researcher's command."""

import errno
import gc
import os
import sys
from collections import UserDict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_group

from slurm_hadar import __version__
from slurm_hadar.domain.errors import HadarError

_MODULES = {
    "tick": "controller_commands",
    "run": "controller_commands",
    "plan": "controller_commands",
    "backfill": "controller_commands",
    "status": "status",
    "explain": "status",
    "top": "top",
    "doctor": "doctor",
    "pin": "jobs",
    "optout": "jobs",
    "set": "jobs",
    "check": "site",
    "demo": "site",
    "profile": "profile",
    "report": "report",
    "retire": "retire",
    "widen": "widen",
    "alerts": "alerts",
    "policies": "policies",
    "tune": "tune",
    "web": "web",
    "completion": "completion",
    "manual": "manual",
    "sandbox": "site",
    "simulate": "simulate",
    "plugins": "plugins",
    "template": "template",
}
"""Commands in the order of ``--help``, and the module below ``slurm_hadar.cli`` that has each."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class _Commands(UserDict[str, Any]):
    """Name -> command; imports the module of a command when that command is looked up."""

    def __getitem__(self, name: str) -> Any:
        """The command. Raises KeyError."""
        found = super().__getitem__(name)
        if isinstance(found, str):
            part = typer.Typer(rich_markup_mode=None)
            # What is imported stays. The collector, which would look through it again and again
            # and even at the end, leaves it.
            gc.disable()
            import_module(f"slurm_hadar.cli.{found}").add_to(part)
            self.update(get_group(part).commands)
            gc.freeze()
            gc.enable()
        return super().__getitem__(name)


class _Group(TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands({**_MODULES, **self.commands})


app = typer.Typer(
    name="hadar",
    cls=_Group,
    help="Makes a mixed GPU cluster under Slurm act as one machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    if "_HADAR_COMPLETE" in os.environ:
        from typer._completion_classes import completion_init

        completion_init()  # what answers the shells
    # A caller may have closed them; all that prints takes them for streams.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    try:
        try:
            app()
        except SystemExit:
            # A full disk shows here at the latest, and not at the end of the interpreter.
            sys.stdout.flush()
            raise
    except SystemExit as end:
        # click ends with 1 where the reader is gone, and marks the streams.
        if end.code == 1 and type(sys.stdout).__name__ == "PacifyFlushWrapper":
            _reader_is_gone()
        raise
    except HadarError as error:
        from slurm_hadar.reports import formats

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
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        print(f"hadar: the output cannot be written: {error.strerror}", file=sys.stderr)
        _end(1)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def _reader_is_gone() -> NoReturn:
    """``| head`` is no failure."""
    _end(0)


def _end(code: int) -> NoReturn:
    """Without what is still to be written, of which Python would complain once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


if __name__ == "__main__":
    main()
