"""``hadar simulate tasks``: rounds of tasks, relaxed or as gangs (Hare)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table

from slurm_hadar.cli.common import ConfigOption, JsonOption, load_if_any, print_json
from slurm_hadar.cli.options_record import takes
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.reports import formats
from slurm_hadar.reports.text import console, figures_table
from slurm_hadar.simulator import cluster as clusters
from slurm_hadar.simulator.tasks.jobs import TaskCosts, TaskOutcome, from_workload
from slurm_hadar.simulator.tasks.policies import NAMES, simulate_tasks
from slurm_hadar.simulator.traces import open_trace

_MOST_TASKS = 3_000_000


def add_to(group: typer.Typer) -> None:
    """Register the command beside ``simulate jobs``."""
    group.command("tasks")(tasks)


@dataclass(frozen=True)
class TasksOptions:
    """What the caller of ``hadar simulate tasks`` typed."""

    trace: Annotated[str, typer.Argument(help="A trace, as for simulate jobs.")]
    cluster: Annotated[str, typer.Option(help="GPUs by type.")] = "v100=8,p100=8,k80=8"
    policy: Annotated[
        list[str] | None, typer.Option(help=f"Several times; {', '.join(NAMES)}.")
    ] = None
    per_round: Annotated[
        int | None,
        typer.Option("--tasks", min=1, max=10_000, help="Tasks of a round; default: the request."),
    ] = None
    task: Annotated[float, typer.Option(help="Seconds of a task on its fastest type.")] = 60.0
    exchange: Annotated[float, typer.Option(help="Seconds between two rounds.")] = 0.2
    switch: Annotated[float, typer.Option(help="Seconds a GPU needs for another job.")] = 0.1
    config: ConfigOption = None
    as_json: JsonOption = False


@takes(TasksOptions)
def tasks(options: TasksOptions) -> None:
    """Replay a trace as rounds of tasks, dealt or in gangs."""
    names = tuple(dict.fromkeys(options.policy or ["hare", "gang_fifo"]))
    for name in names:
        if name not in NAMES:
            raise UsageError(f"there is no policy {name!r} for tasks; known: {', '.join(NAMES)}")
    costs = TaskCosts(options.switch)
    pretend = clusters.parse(options.cluster, "1", 0)
    site = load_if_any(options.config)
    work = open_trace(options.trace, pretend.types, open_rates(site))
    jobs = from_workload(work, options.task, options.exchange, options.per_round)
    number = int((jobs.rounds * jobs.tasks).sum())
    if number > _MOST_TASKS:
        raise UsageError(
            f"{number:,} tasks of {options.task:g} s are more than {_MOST_TASKS:,}; "
            "use a longer --task"
        )
    done = [simulate_tasks(jobs, pretend.capacity, name, costs) for name in names]
    if options.as_json:
        print_json("simulate tasks", [one.summary() for one in done])
    else:
        console().print(_table(done))


def _table(done: Sequence[TaskOutcome]) -> Table:
    heads = ("POLICY", "WEIGHTED JCT h", "MEAN JCT h", "P99 h", "MAKESPAN h", "USED", "SWITCHES",
             "WALL s")  # fmt: skip
    table = figures_table(heads)
    for one in done:
        figures = one.summary()
        table.add_row(
            one.policy,
            *(
                f"{float(str(figures[key])):.2f}"
                for key in ("weighted_avg_jct_h", "avg_jct_h", "p99_jct_h", "makespan_h")
            ),
            formats.percent(one.utilization),
            formats.number(one.switches),
            f"{one.wall_s:.1f}",
        )
    return table
