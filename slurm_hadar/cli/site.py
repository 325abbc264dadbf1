"""The admin's commands: check, sandbox, demo."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from slurm_hadar import config as configuration
from slurm_hadar.cli.common import ConfigOption, JsonOption, print_json
from slurm_hadar.cli.real_sbatch import find_sbatch
from slurm_hadar.config import Config
from slurm_hadar.controller.checks import check as checking
from slurm_hadar.controller.checks.check_access import file_findings
from slurm_hadar.controller.checks.finding import Finding
from slurm_hadar.controller.checks.wrapper_site import names_of, write_wrapper_site
from slurm_hadar.domain.errors import HadarError, UsageError

_MARKS = {"ok": "ok      ", "warning": "warning ", "problem": "PROBLEM "}
_FOLDER = Path("hadar-sandbox")
FolderArgument = Annotated[Path, typer.Argument(help="Folder that holds the whole sandbox.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(check)
    app.command()(demo)
    sandbox = typer.Typer(
        help="Run a real Slurm on this machine with pretend GPUs.", no_args_is_help=True
    )
    sandbox.command()(up)
    sandbox.command()(down)
    sandbox.command()(status)
    app.add_typer(sandbox, name="sandbox")


def check(
    config: ConfigOption = None,
    write: Annotated[
        bool, typer.Option("--write", help="Also write the JSON file that hbatch reads.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check configuration, rights and folders; exit 1 on a
    problem."""
    path = config or configuration.find()
    site = configuration.load_to_check(path)
    found = [*checking.findings(site), *file_findings(site, path)]
    names = replace(names_of(site), sbatch=submits_with(site, found))
    if write and not site.ignored:
        write_wrapper_site(site, path, names)
    found.append(checking.wrapper_finding(site, path, names))
    if as_json:
        print_json("check", [{"level": f.level, "what": f.what, "cure": f.cure} for f in found])
    else:
        for one in found:
            typer.echo(f"{_MARKS[one.level]}{one.what}")
            if one.cure:
                typer.echo(f"        cure: {one.cure}")
    if any(one.level == "problem" for one in found):
        raise typer.Exit(1)


def submits_with(site: Config, found: list[Finding]) -> str:
    """The sbatch on PATH that hbatch is to submit with, empty where the site names one or there is
    none; what is to be said of it goes into ``found``."""
    if site.slurm.bin_dir:
        return ""
    try:
        own = find_sbatch("sbatch", os.environ)
    except HadarError as error:
        found.append(Finding("problem", str(error), "set slurm.bin_dir, then hadar check --write"))
        return ""
    first = shutil.which("sbatch")
    if first and not Path(first).samefile(own):
        found.append(Finding("ok", f"{first} calls hbatch, which submits with {own}"))
    return own


def up(
    folder: FolderArgument = _FOLDER,
    act: Annotated[bool, typer.Option(help="Write a configuration in act mode.")] = True,
    slurm: Annotated[
        Path | None, typer.Option(help="Prefix of a Slurm other than the one on PATH.")
    ] = None,
    accounting: Annotated[
        bool, typer.Option("--accounting", help="With slurmdbd, for users, QOS and operators.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a sandbox and print how to use it."""
    from slurm_hadar.sandbox.cluster import Sandbox
    from slurm_hadar.sandbox.ending import stopped_on_signal
    from slurm_hadar.sandbox.options import SandboxOptions

    with stopped_on_signal():
        box = Sandbox.up(
            folder.resolve(),
            slurm_prefix=slurm,
            options=SandboxOptions(
                mode="act" if act else "observe", with_accounting=accounting, outlives=True
            ),
        )
    site = configuration.load(box.config_path)
    write_wrapper_site(site, box.config_path, names_of(site))
    environment = {name: box.env[name] for name in ("SLURM_CONF", "HADAR_CONFIG", "PATH")}
    if as_json:
        print_json("sandbox up", {"folder": str(box.folder), "environment": environment})
        return
    typer.echo(f"The sandbox in {folder} is up. To use it in this shell:")
    for name, value in environment.items():
        typer.echo(f'  export {name}="{value}"')
    typer.echo("Then start a controller, which ticks until Ctrl-C:")
    typer.echo("  hadar run")
    typer.echo("and in another such shell submit, hbatch SCRIPT, and look: hadar web --port 8080")


def down(folder: FolderArgument = _FOLDER, as_json: JsonOption = False) -> None:
    """Cancel the jobs of a sandbox and stop it."""
    from slurm_hadar.sandbox.cluster import Sandbox
    from slurm_hadar.sandbox.ending import end_without_record

    where = folder.resolve()
    try:
        box = Sandbox.attach(where)
    except UsageError:
        if not end_without_record(where):
            raise
    else:
        box.down()
    if as_json:
        print_json("sandbox down", {"folder": str(where), "running": False})
    else:
        typer.echo(f"The sandbox in {folder} is down.")


def status(folder: FolderArgument = _FOLDER, as_json: JsonOption = False) -> None:
    """Show which daemons of a sandbox run."""
    from slurm_hadar.sandbox.cluster import Sandbox

    found = Sandbox.attach(folder.resolve()).status()
    if as_json:
        print_json("sandbox status", found.plain())
    else:
        typer.echo(str(found))


def demo(
    folder: Annotated[Path, typer.Option(help="Folder for the page and the logs.")] = Path(
        "hadar-demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the true speeds of the pretend GPUs.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run the same trainings with and without slurm-hadar."""
    from slurm_hadar.demo.show import show
    from slurm_hadar.sandbox.ending import stopped_on_signal

    with stopped_on_signal():
        result = show(folder.resolve(), seed, quiet=as_json)
    if as_json:
        print_json("demo", result)
