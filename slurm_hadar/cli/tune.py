"""``hadar tune``: advice for slurm.conf from the site's own past."""

import os
from pathlib import Path
from typing import Annotated

import typer

from slurm_hadar import config as configuration
from slurm_hadar import policies
from slurm_hadar.cli.common import ConfigOption, JsonOption, load, print_json
from slurm_hadar.config import Config
from slurm_hadar.domain.errors import HadarError, UsageError


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(tune)


def tune(
    history: Annotated[
        Path | None,
        typer.Argument(help="What sacct -P printed, with its header; default: ask sacct."),
    ] = None,
    slurm_conf: Annotated[
        Path | None, typer.Option(help="The site's slurm.conf; default: ask Slurm.")
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(help="What scontrol show node, or sinfo -N -o '%N|%G|%c|%m|%f|%R', printed."),
    ] = None,
    since: Annotated[
        str, typer.Option(help="Only from this day on, such as 2026-01-31; of sacct: 30 days.")
    ] = "",
    policy: Annotated[
        list[str] | None,
        typer.Option(help="To be replayed; several times; default: some that differ."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, max=100_000, help="The last so many jobs are replayed.")
    ] = 400,
    limit: Annotated[
        float, typer.Option(min=0, help="Seconds that all replays may take together.")
    ] = 300.0,
    restart_cost: Annotated[
        float, typer.Option(min=0, max=1e6, help="Seconds that a job loses when it is moved.")
    ] = 60.0,
    save: Annotated[
        float, typer.Option(min=0, max=1e5, help="Seconds of the slowest checkpoint; 0: unknown.")
    ] = 0.0,
    jct: Annotated[
        Path | None, typer.Option(help="In place of HISTORY: what simulate's --jct-out wrote.")
    ] = None,
    trace: Annotated[str, typer.Option(help="With --jct: the trace that was simulated.")] = "",
    cluster: Annotated[str, typer.Option(help="With --jct: its GPUs, v100=20,k80=20.")] = "",
    gpus_per_node: Annotated[str, typer.Option(help="With --jct: as of simulate.")] = "4",
    report: Annotated[Path | None, typer.Option(help="One HTML page.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What GPUs idled, who waited, what each policy would have given; lines for slurm.conf."""
    from slurm_hadar.profiles.rates import open_rates
    from slurm_hadar.reports import tuning as shown
    from slurm_hadar.reports.text import console
    from slurm_hadar.simulator import cluster as clusters
    from slurm_hadar.tuning import replay, sources, study

    names = tuple(dict.fromkeys(policy or replay.POLICIES))
    for name in names:
        policies.get(name)
    if report and (report.is_dir() or not os.access(report.parent, os.W_OK)):
        raise UsageError(f"{report} cannot be written; is its folder there?")
    own = _config(config)
    wish = sources.TuneRequest(names, jobs, limit, restart_cost, save, since)
    rates = open_rates(own or Config())
    if jct is None:
        if trace or cluster:
            raise UsageError("--trace and --cluster go with --jct")
        found, notes = sources.of_history(history, slurm_conf, nodes, own, rates, wish)
    else:
        if history or nodes or since or not trace or not cluster:
            raise UsageError(
                "--jct goes with --trace and --cluster, without HISTORY, --nodes and --since"
            )
        pretend = clusters.parse(cluster, gpus_per_node)
        found, notes = sources.of_simulation(trace, jct, pretend, slurm_conf, own, rates, wish)
    result = study.result(found, study.advise(found), notes)
    if report:
        try:
            report.write_text(shown.page(result))
        except OSError as error:
            raise HadarError(f"{report} cannot be written: {error}") from None
    if as_json:
        print_json("tune", result)
    else:
        console().print(shown.text(result))


def _config(path: Path | None) -> Config | None:
    """The site's configuration where it has one already; advice comes before it."""
    if path is not None or configuration.find().exists():
        return load(path)
    return None
