"""``hadar template``: batch scripts to start from."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from slurm_hadar.cli.common import JsonOption, print_json
from slurm_hadar.domain.errors import HadarError

Name = Annotated[str, typer.Argument(help="A template, as hadar template list names it.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = typer.Typer(help="Make batch scripts from templates.", no_args_is_help=True)
    group.command("list")(list_)
    group.command()(show)
    group.command()(render)
    app.add_typer(group, name="template")


def list_(as_json: JsonOption = False) -> None:
    """List the templates and their values. Values in brackets are optional."""
    from slurm_hadar import templates

    every = [templates.describe(name) for name in templates.names()]
    if as_json:
        print_json("template list", [asdict(one) for one in every])
        return
    for one in every:
        words = (value.name + ("..." if value.many else "") for value in one.values)
        needed = (value.needed for value in one.values)
        shown = " ".join(
            word if must else f"[{word}]" for word, must in zip(words, needed, strict=True)
        )
        typer.echo(f"{one.name}: {one.about}: {shown}")


def show(name: Name, as_json: JsonOption = False) -> None:
    """Print a template as it is."""
    from slurm_hadar import templates

    text = templates.text(name)
    if as_json:
        print_json("template show", {"name": name, "text": text})
    else:
        typer.echo(text, nl=False)


def render(
    name: Name,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            help="key=value, a list as one quoted text: command='python train.py --epochs 3'; "
            "the points of an array are parted by semicolons."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="New file to write. Default: stdout.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the batch script that a template makes from these values."""
    from slurm_hadar import templates

    script = templates.render(
        name, templates.from_arguments(templates.describe(name), values or [])
    )
    if output is not None:
        _write(output, script)
    if as_json:
        where = None if output is None else str(output)
        print_json("template render", {"name": name, "script": script, "output": where})
    elif output is None:
        typer.echo(script, nl=False)


def _write(path: Path, script: str) -> None:
    try:
        with path.open("x") as stream:
            stream.write(script)
    except FileExistsError:
        raise HadarError(f"{path} is there already; remove it, or name another file") from None
    except OSError as error:
        raise HadarError(f"{path} cannot be written: {error.strerror}") from None
