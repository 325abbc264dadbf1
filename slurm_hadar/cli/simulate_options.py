"""The options of ``hadar simulate jobs``."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from slurm_hadar.cli.common import ConfigOption, JsonOption
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.scheduling.exchange_rule import ExchangeLevel


class QueueDiscipline(StrEnum):
    """Who says which job is next."""

    POLICY = "policy"
    SLURM = "slurm"


@dataclass(frozen=True)
class JobsOptions:
    """What the caller typed."""

    trace: Annotated[
        str, typer.Argument(help="A trace: Gavel's CSV, the native CSV, or a shipped one's name.")
    ]
    cluster: Annotated[str, typer.Option(help="GPUs by type.")] = "v100=20,p100=20,k80=20"
    gpus_per_node: Annotated[str, typer.Option(help="A number, or TYPE=NUMBER,...")] = "4"
    nodes_per_rack: Annotated[int, typer.Option(min=0, help="0: all nodes in one rack.")] = 0
    cpus_per_gpu: Annotated[
        int, typer.Option(min=0, help="CPUs beside each GPU; 0: not looked at.")
    ] = 0
    mem_per_gpu: Annotated[
        int, typer.Option(min=0, help="GB beside each GPU; 0: not looked at.")
    ] = 0
    cpu_profiles: Annotated[
        bool,
        typer.Option(
            "--cpu-profiles", help="Models of the CPU tables are as fast as their CPUs make them."
        ),
    ] = False
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy name, PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION; repeatable. "
            "Default: timetable."
        ),
    ] = None
    option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for the policies; repeatable.")
    ] = None
    round_s: Annotated[
        float, typer.Option("--round", help="Round, s; 0: decide at arrivals and finishes.")
    ] = 360.0
    whole_steps: Annotated[
        bool, typer.Option("--whole-steps", help="Rounds of whole steps, as Gavel's simulator.")
    ] = False
    restart_cost: Annotated[float, typer.Option(help="Time of a restart, s.")] = 10.0
    checkpoint_cost: Annotated[float, typer.Option(help="Time of a save, s.")] = 0.0
    node_loss: Annotated[
        float, typer.Option(help="Part of the speed lost on several nodes, 0-1.")
    ] = 0.0
    rack_loss: Annotated[float, typer.Option(help="Part lost besides over several racks, 0-1.")] = (
        0.0
    )
    nic_gbps: Annotated[
        float, typer.Option(min=0, help="A node's network card, Gbit/s; 0: no links.")
    ] = 0.0
    oversubscription: Annotated[
        float, typer.Option(help="The cards of a rack together, over its uplink.")
    ] = 1.0
    overlap: Annotated[
        float, typer.Option(help="Part of the compute time that hides communication, 0-1.")
    ] = 0.5
    cpu_exponent: Annotated[
        float, typer.Option(help="Speed goes with CPUs given / asked to this power.")
    ] = 0.0
    mem_exponent: Annotated[
        float, typer.Option(help="Speed goes with memory given / asked to this power.")
    ] = 0.0
    noise: Annotated[
        float, typer.Option(help="Policies see throughputs off by a factor within this, 0-1.")
    ] = 0.0
    steps_error: Annotated[
        float, typer.Option(help="Half the jobs declare their work off by this factor.")
    ] = 1.0
    learn: Annotated[
        bool,
        typer.Option(
            "--learn", help="Policies know rates on the least counts, and learn the others."
        ),
    ] = False
    elastic: Annotated[
        bool, typer.Option("--elastic", help="1, 2, 4, 8 GPUs, at most 4 times the request.")
    ] = False
    copies: Annotated[
        int, typer.Option(min=1, help="Most copies of each job (timetable, hadare).")
    ] = 1
    copies_loss: Annotated[
        float, typer.Option(help="Part of the speed that copies lose to averaging, 0-1.")
    ] = 0.0
    order: Annotated[
        QueueDiscipline,
        typer.Option(help="What orders the jobs: the policy, or Slurm's queue."),
    ] = QueueDiscipline.POLICY
    unmanaged_share: Annotated[
        float, typer.Option(help="Slurm's order: share of the jobs that did not opt in, 0-1.")
    ] = 0.0
    typed: Annotated[
        bool, typer.Option("--typed", help="Slurm's order: these jobs ask for one GPU type each.")
    ] = False
    no_moves: Annotated[
        bool, typer.Option("--no-moves", help="Slurm's order: running jobs stay where they are.")
    ] = False
    exchange: Annotated[
        ExchangeLevel,
        typer.Option(help="Slurm's order: jobs that may exchange places, as queue.exchange."),
    ] = ExchangeLevel.NONE
    preempt: Annotated[
        bool, typer.Option("--preempt", help="Slurm's order: stop jobs for others, as the guard.")
    ] = False
    max_wait: Annotated[
        float,
        typer.Option(help="Slurm's order: longest wait for a type, s, as queue.max_wait_s."),
    ] = 0.0
    from_sacct: Annotated[
        bool, typer.Option("--from-sacct", help="TRACE is sacct's output (-P, with header).")
    ] = False
    seed: Annotated[int, typer.Option(min=0)] = 0
    jct_out: Annotated[
        Path | None, typer.Option(help="CSV of finish times; several policies: one file each.")
    ] = None
    report: Annotated[Path | None, typer.Option(help="Write an HTML page.")] = None
    config: ConfigOption = None
    as_json: JsonOption = False

    @property
    def in_queue(self) -> bool:
        """Whether the jobs go through Slurm's queue."""
        return self.order is QueueDiscipline.SLURM

    def check(self) -> None:
        """Raises UsageError for options that do not go together."""
        shown = self.cpu_profiles or self.nic_gbps or self.whole_steps
        if self.in_queue and (shown or self.copies > 1 or self.cpus_per_gpu):
            raise UsageError(
                "--order slurm knows no --cpu-profiles, --cpus-per-gpu, --nic-gbps, --whole-steps "
                "and --copies; leave them out"
            )
        if self.learn and (self.in_queue or self.copies > 1):
            raise UsageError(
                "--learn knows no --order slurm and no --copies; leave one of them out"
            )
        exchanges = self.exchange is not ExchangeLevel.NONE
        steers = self.no_moves or exchanges or self.preempt or self.max_wait
        if not self.in_queue and (self.unmanaged_share or self.typed or steers):
            raise UsageError(
                "--unmanaged-share, --typed, --no-moves, --exchange, --preempt and --max-wait need "
                "--order slurm"
            )
