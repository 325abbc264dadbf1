"""The admin's commands for what Slurm itself loads."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_hadar.cli.common import ConfigOption, JsonOption, load, print_json
from slurm_hadar.cli.options_record import takes
from slurm_hadar.domain.errors import UsageError

if TYPE_CHECKING:
    from slurm_hadar.plugins.site_files import FileChanges

ConfFile = Annotated[Path, typer.Option("--slurm-conf", help="The site's slurm.conf.")]
Apply = Annotated[
    bool, typer.Option("--apply/--dry-run", help="Write the changes, or only show them (default).")
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    plugins = typer.Typer(
        help="Install plugins for slurmctld, sbatch and slurmd.",
        no_args_is_help=True,
    )
    plugins.command()(install)
    plugins.command()(remove)
    app.add_typer(plugins, name="plugins")


@dataclass(frozen=True)
class InstallOptions:
    """What the caller of ``hadar plugins install`` typed."""

    slurm_conf: ConfFile
    apply: Apply = False
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            help="One of job-submit, cli-filter, spank, gpu-sampling, "
            "task-prolog; repeatable. Default: all."
        ),
    ] = None
    untype: Annotated[
        bool,
        typer.Option("--untype", help="Request a GPU type by its feature, so that a job can move."),
    ] = False
    include: Annotated[Path | None, typer.Option(help="Folder that holds slurm/spank.h.")] = None
    plugin_dir: Annotated[Path | None, typer.Option(help="Folder of Slurm's own plugins.")] = None
    config: ConfigOption = None
    as_json: JsonOption = False


@takes(InstallOptions)
def install(options: InstallOptions) -> None:
    """Show the lines to add to Slurm's files, or add them. Keeps a copy of each file."""
    from slurm_hadar.plugins.install import PLUGINS, InstallRequest, note_installation, planned

    wanted = tuple(options.plugin or PLUGINS)
    if unknown := set(wanted) - set(PLUGINS):
        raise UsageError(f"there is no plugin {min(unknown)!r}; there are {', '.join(PLUGINS)}")
    request = InstallRequest(wanted, options.untype, options.include, options.plugin_dir)
    plan = planned(options.slurm_conf, load(options.config), request)
    if options.apply and (unknown_to := note_installation(options.slurm_conf)):
        plan.by_hand.append(unknown_to)
    _carry_out("plugins install", plan, options.apply, options.as_json)


def remove(slurm_conf: ConfFile, apply: Apply = False, as_json: JsonOption = False) -> None:
    """Remove the lines that install added; changes by others stay."""
    from slurm_hadar.plugins.install import removal

    _carry_out("plugins remove", removal(slurm_conf), apply, as_json)


def _carry_out(command: str, plan: "FileChanges", apply: bool, as_json: bool) -> None:
    from slurm_hadar.plugins import changes

    needed = [change for change in plan.changes if change.needed]
    kept = changes.apply(plan.changes) if apply else []
    if as_json:
        shown = [{"file": str(one.path), "change": one.shown()} for one in needed]
        copies = [str(path) for path in kept]
        result = {"applied": apply, "changes": shown, "by_hand": plan.by_hand, "copies": copies}
        print_json(command, result)
        return
    for change in needed:
        typer.echo(change.shown())
    for path in kept:
        typer.echo(f"kept   {path}")
    for line in plan.by_hand:
        typer.echo(f"by hand: {line}")
    if not needed:
        typer.echo("Nothing to change.")
    elif apply:
        typer.echo("Done. Copy the folder to all nodes and login nodes, then: scontrol reconfigure")
    else:
        typer.echo("Nothing was written. To write these changes: --apply")
