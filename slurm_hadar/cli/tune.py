"""``hadar tune``: advice for slurm.conf from the site's own past."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from slurm_hadar import config as configuration
from slurm_hadar import policies
from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    check_writable,
    is_controllers_user,
    load,
    print_json,
)
from slurm_hadar.cli.options_record import takes
from slurm_hadar.config import Config
from slurm_hadar.domain.errors import HadarError, UsageError


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(tune)


@dataclass(frozen=True)
class TuneOptions:
    """What the caller typed."""

    history: Annotated[
        Path | None,
        typer.Argument(help="Output of sacct -P with its header. Default: run sacct."),
    ] = None
    slurm_conf: Annotated[
        Path | None, typer.Option(help="The site's slurm.conf. Default: ask Slurm.")
    ] = None
    nodes: Annotated[
        Path | None,
        typer.Option(help="What scontrol show node, or sinfo -N -o '%N|%G|%c|%m|%f|%R', printed."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(help="How far back, such as 30d, or a date. Default with sacct: 30d."),
    ] = None
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy to replay; repeatable. Default: a varied set."),
    ] = None
    jobs: Annotated[
        int, typer.Option(min=1, max=100_000, help="Number of jobs to replay, the last ones.")
    ] = 400
    limit: Annotated[float, typer.Option(min=0, help="Time limit of all replays together, s.")] = (
        300.0
    )
    restart_cost: Annotated[float, typer.Option(min=0, max=1e6, help="Cost of a move, s.")] = 60.0
    save: Annotated[
        float, typer.Option(min=0, max=1e5, help="Time of the slowest checkpoint, s; 0: unknown.")
    ] = 0.0
    jct: Annotated[
        Path | None, typer.Option(help="In place of HISTORY: a file of simulate --jct-out.")
    ] = None
    trace: Annotated[str, typer.Option(help="With --jct: the simulated trace.")] = ""
    cluster: Annotated[str, typer.Option(help="With --jct: GPUs by type, v100=20,k80=20.")] = ""
    gpus_per_node: Annotated[str, typer.Option(help="With --jct: as in simulate.")] = "4"
    report: Annotated[Path | None, typer.Option(help="Write an HTML page.")] = None
    config: ConfigOption = None
    as_json: JsonOption = False


@takes(TuneOptions)
def tune(options: TuneOptions) -> None:
    """Report idle GPUs and waits; propose lines for slurm.conf."""
    from slurm_hadar.reports import tuning as shown
    from slurm_hadar.reports.text import console
    from slurm_hadar.simulator import cluster as clusters
    from slurm_hadar.slurm import times
    from slurm_hadar.tuning import replay, simulated, sources, study

    names = tuple(dict.fromkeys(options.policy or replay.POLICIES))
    for name in names:
        policies.get(name)
    check_writable(options.report)
    own = _config(options.config)
    since_s = 0.0 if options.since is None else times.time_before(options.since, time.time())
    owners = _submitted(own) if own and options.history is None and options.jct is None else {}
    request = sources.TuneRequest(
        names, options.jobs, options.limit, options.restart_cost, options.save, since_s, owners
    )
    if options.jct is None:
        if options.trace or options.cluster:
            raise UsageError("--trace and --cluster go with --jct")
        found, notes = sources.of_history(
            options.history, options.slurm_conf, options.nodes, own, request
        )
    else:
        if (
            options.history
            or options.nodes
            or options.since is not None
            or not options.trace
            or not options.cluster
        ):
            raise UsageError(
                "--jct goes with --trace and --cluster, without HISTORY, --nodes and --since"
            )
        pretend = clusters.parse(options.cluster, options.gpus_per_node)
        found, notes = sources.of_simulation(
            simulated.SimulatedHistory(options.trace, options.jct, pretend),
            options.slurm_conf,
            own,
            request,
        )
    result = study.result(found, study.advise(found), notes)
    if options.report:
        try:
            options.report.write_text(shown.page(result))
        except OSError as error:
            raise HadarError(f"{options.report} cannot be written: {error.strerror}") from None
    if options.as_json:
        print_json("tune", result)
    else:
        console().print(shown.text(result))


def _config(path: Path | None) -> Config | None:
    """The site's configuration where it has one already; advice comes before it."""
    if path is not None or configuration.find().exists():
        return load(path)
    return None


def _submitted(site: Config) -> dict[str, str]:
    """Job -> its owner's partitions, for the controller's user; advice does without them."""
    from slurm_hadar.controller.observation.steering_store import submitted_partitions

    try:
        return submitted_partitions(site) if is_controllers_user(site) else {}
    except HadarError as error:
        typer.echo(f"hadar: {error}", err=True)
        return {}
