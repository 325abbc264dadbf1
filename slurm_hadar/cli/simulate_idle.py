"""``hadar simulate idle`` and ``idle-trace``: trainers on recorded or generated idle nodes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from slurm_hadar.cli.common import JsonOption, check_writable, print_json
from slurm_hadar.cli.options_record import takes
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.reports import formats
from slurm_hadar.reports.simulation import idle_page
from slurm_hadar.reports.text import console, figures_table
from slurm_hadar.simulator.idle.fragments import (
    generate,
    read_fragments,
    statistics,
    write_fragments,
)
from slurm_hadar.simulator.idle.replay import IdleOutcome, IdleTerms, charges, policy_of, replay
from slurm_hadar.simulator.idle.trainers import read_trainers


def add_to(group: typer.Typer) -> None:
    """Register the commands beside ``simulate jobs``."""
    group.command("idle")(idle)
    group.command("idle-trace")(idle_trace)


@dataclass(frozen=True)
class IdleOptions:
    """What the caller of ``hadar simulate idle`` typed."""

    fragments: Annotated[
        Path, typer.Argument(help="CSV[.gz]: node, idle_start_s, idle_end_s, censored.")
    ]
    trainers: Annotated[Path, typer.Option(help="JSON of the trainers.")]
    tfwd: Annotated[float, typer.Option(min=1.0, max=1e6, help="Look-ahead of a decision, s.")] = (
        120.0
    )
    policy: Annotated[
        list[str] | None,
        typer.Option(help="bftrainer, bftrainer_plain or equal_share; repeatable."),
    ] = None
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes, the first by name.")
    ] = None
    model: Annotated[str, typer.Option(help="Only this one of the file's trainers.")] = ""
    copies: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Number of each trainer.")
    ] = None
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Most trainers with nodes at a time.")
    ] = None
    charge: Annotated[
        str, typer.Option(help="What a growth costs: paper (rate before it), strict (after it).")
    ] = "paper"
    cap: Annotated[int | None, typer.Option(min=1, help="Most nodes of all trainers together.")] = (
        None
    )
    report: Annotated[Path | None, typer.Option(help="Write an HTML page.")] = None
    as_json: JsonOption = False


@takes(IdleOptions)
def idle(options: IdleOptions) -> None:
    """Replay idle nodes: the work done of the work possible."""
    names = tuple(dict.fromkeys(options.policy or ["bftrainer"]))
    for name in names:
        policy_of(name)
    charges(options.charge)
    check_writable(options.report)
    work = read_trainers(options.trainers, options.model, options.copies, options.at_once)
    seen = read_fragments(options.fragments)
    if options.nodes is not None:
        if options.nodes > len(seen.names):
            raise UsageError(
                f"{options.fragments.name} has {len(seen.names)} nodes, not {options.nodes}"
            )
        seen = seen.first(options.nodes)
    terms = IdleTerms(options.tfwd, options.charge, options.cap)
    done = [replay(seen, work, name, terms) for name in names]
    title = (
        f"{len(work.work):,} trainers, {work.at_once} at once, on the idle time of "
        f"{len(seen.names):,} nodes ({options.charge} charge)"
    )
    if options.report:
        try:
            options.report.write_text(idle_page(done, title))
        except OSError as error:
            raise UsageError(f"{options.report} cannot be written: {error.strerror}") from None
    if options.as_json:
        print_json("simulate idle", [one.summary() | {"charge": options.charge} for one in done])
    else:
        console().print(_table(done))


def idle_trace(
    out: Annotated[Path, typer.Argument(help="CSV to write; gzipped if it ends in .gz.")],
    nodes: Annotated[int, typer.Option(min=1, max=100_000)] = 4651,
    days: Annotated[float, typer.Option(min=0.01, max=366.0)] = 7.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Generate idle fragments like those of a large machine."""
    made = generate(nodes, days, seed)
    write_fragments(made, out)
    figures = statistics(made)
    if as_json:
        print_json("simulate idle-trace", figures)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in figures.items():
        table.add_row(name, f"{value:,.1f}")
    console().print(table)


def _table(done: list[IdleOutcome]) -> Table:
    heads = ("POLICY", "EFFICIENCY", "RESCALES", "PREEMPTIONS", "LOST", "RESCALING", "UNUSED",
             "FINISHED", "DECIDE ms", "MAX ms")  # fmt: skip
    table = figures_table(heads)
    for one in done:
        figures = one.summary()
        table.add_row(
            one.policy,
            f"{one.efficiency:.3f}",
            formats.number(one.rescales),
            formats.number(one.preemptions),
            *(
                f"{figures[key]:.1%}"
                for key in ("lost_work_share", "rescale_share", "unused_share")
            ),
            f"{one.finished}/{one.trainers}",
            f"{figures['decide_ms_mean']:.2f}",
            f"{figures['decide_ms_max']:.1f}",
        )
    return table
