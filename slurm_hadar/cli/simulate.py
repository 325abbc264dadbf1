"""``hadar simulate``: a trace of jobs under one or more policies."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from slurm_hadar import policies
from slurm_hadar.cli import simulate_idle, simulate_output, simulate_tasks
from slurm_hadar.cli.common import ConfigOption, JsonOption, load_if_any, print_json
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.profiles import cpu_table
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.reports.simulation import page
from slurm_hadar.reports.text import console
from slurm_hadar.scheduling.exchange import ExchangeLevel
from slurm_hadar.simulator import cluster as clusters
from slurm_hadar.simulator.contention import Contention, Fabric, networked
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.cpu_profiles import with_cpu_profiles
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.estimates import estimate
from slurm_hadar.simulator.queue import engine as queue_engine
from slurm_hadar.simulator.queue.requests import Drawn
from slurm_hadar.simulator.queue.setting import SimulationSetting, SteeringSetting
from slurm_hadar.simulator.traces import open_trace
from slurm_hadar.simulator.traces.sacct import ModelNames

PLAIN = "plain"
"""In place of a policy's name: plain Slurm."""


class QueueDiscipline(StrEnum):
    """Who says which job is next."""

    POLICY = "policy"
    SLURM = "slurm"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = typer.Typer(help="Replay job traces under policies.", no_args_is_help=True)
    group.callback()(_group)
    group.command()(jobs)
    simulate_idle.add_to(group)
    simulate_tasks.add_to(group)
    app.add_typer(group, name="simulate")


def _group() -> None:
    """Replay job traces under policies."""


def jobs(
    trace: Annotated[
        str, typer.Argument(help="A trace: Gavel's CSV, the native CSV, or a shipped one's name.")
    ],
    cluster: Annotated[str, typer.Option(help="GPUs by type.")] = "v100=20,p100=20,k80=20",
    gpus_per_node: Annotated[str, typer.Option(help="A number, or TYPE=NUMBER,...")] = "4",
    nodes_per_rack: Annotated[int, typer.Option(min=0, help="0: all nodes in one rack.")] = 0,
    cpus_per_gpu: Annotated[
        int, typer.Option(min=0, help="CPUs beside each GPU; 0: not looked at.")
    ] = 0,
    mem_per_gpu: Annotated[
        int, typer.Option(min=0, help="GB beside each GPU; 0: not looked at.")
    ] = 0,
    cpu_profiles: Annotated[
        bool,
        typer.Option(
            "--cpu-profiles", help="Models of the CPU tables are as fast as their CPUs make them."
        ),
    ] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy name, PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION; repeatable. "
            "Default: hadar."
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for the policies; repeatable.")
    ] = None,
    round_s: Annotated[
        float, typer.Option("--round", help="Round, s; 0: decide at arrivals and finishes.")
    ] = 360.0,
    whole_steps: Annotated[
        bool, typer.Option("--whole-steps", help="Rounds of whole steps, as Gavel's simulator.")
    ] = False,
    restart_cost: Annotated[float, typer.Option(help="Time of a restart, s.")] = 10.0,
    checkpoint_cost: Annotated[float, typer.Option(help="Time of a save, s.")] = 0.0,
    node_loss: Annotated[
        float, typer.Option(help="Part of the speed lost on several nodes, 0-1.")
    ] = 0.0,
    rack_loss: Annotated[
        float, typer.Option(help="Part lost besides over several racks, 0-1.")
    ] = 0.0,
    nic_gbps: Annotated[
        float, typer.Option(min=0, help="A node's network card, Gbit/s; 0: no links.")
    ] = 0.0,
    oversubscription: Annotated[
        float, typer.Option(help="The cards of a rack together, over its uplink.")
    ] = 1.0,
    overlap: Annotated[
        float, typer.Option(help="Part of the compute time that hides communication, 0-1.")
    ] = 0.5,
    cpu_exponent: Annotated[
        float, typer.Option(help="Speed goes with CPUs given / asked to this power.")
    ] = 0.0,
    mem_exponent: Annotated[
        float, typer.Option(help="Speed goes with memory given / asked to this power.")
    ] = 0.0,
    noise: Annotated[
        float, typer.Option(help="Policies see throughputs off by a factor within this, 0-1.")
    ] = 0.0,
    steps_error: Annotated[
        float, typer.Option(help="Half the jobs declare their work off by this factor.")
    ] = 1.0,
    learn: Annotated[
        bool,
        typer.Option(
            "--learn", help="Policies know rates on the least counts, and learn the others."
        ),
    ] = False,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="1, 2, 4, 8 GPUs, at most 4 times the request.")
    ] = False,
    copies: Annotated[int, typer.Option(min=1, help="Most copies of each job (hadare).")] = 1,
    copies_loss: Annotated[
        float, typer.Option(help="Part of the speed that copies lose to averaging, 0-1.")
    ] = 0.0,
    order: Annotated[
        QueueDiscipline,
        typer.Option(help="What orders the jobs: the policy, or Slurm's queue."),
    ] = QueueDiscipline.POLICY,
    unmanaged_share: Annotated[
        float, typer.Option(help="Slurm's order: share of the jobs that did not opt in, 0-1.")
    ] = 0.0,
    typed: Annotated[
        bool, typer.Option("--typed", help="Slurm's order: these jobs ask for one GPU type each.")
    ] = False,
    no_moves: Annotated[
        bool, typer.Option("--no-moves", help="Slurm's order: running jobs stay where they are.")
    ] = False,
    exchange: Annotated[
        ExchangeLevel,
        typer.Option(help="Slurm's order: jobs that may exchange places, as queue.exchange."),
    ] = ExchangeLevel.NONE,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="Slurm's order: stop jobs for others, as the guard.")
    ] = False,
    max_wait: Annotated[
        float,
        typer.Option(help="Slurm's order: longest wait for a type, s, as queue.max_wait_s."),
    ] = 0.0,
    from_sacct: Annotated[
        bool, typer.Option("--from-sacct", help="TRACE is sacct's output (-P, with header).")
    ] = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    jct_out: Annotated[
        Path | None, typer.Option(help="CSV of finish times; several policies: one file each.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a trace under each policy, with the live code."""
    in_queue = order is QueueDiscipline.SLURM
    named = _policies(policy or ["hadar"], in_queue)
    decides = {name: one.decide if one else None for name, one in named.items()}
    if in_queue and (cpu_profiles or nic_gbps or whole_steps or copies > 1 or cpus_per_gpu):
        raise UsageError(
            "--order slurm knows no --cpu-profiles, --cpus-per-gpu, --nic-gbps, --whole-steps and "
            "--copies; leave them out"
        )
    if learn and (in_queue or copies > 1):
        raise UsageError("--learn knows no --order slurm and no --copies; leave one of them out")
    exchanges = exchange is not ExchangeLevel.NONE
    steers = no_moves or exchanges or preempt or max_wait
    if not in_queue and (unmanaged_share or typed or steers):
        raise UsageError(
            "--unmanaged-share, --typed, --no-moves, --exchange, --preempt and --max-wait need "
            "--order slurm"
        )
    settings = _options(option or [])
    _refuse_unknown(settings, [one for one in named.values() if one])
    site = load_if_any(config)
    pretend = replace(
        clusters.parse(cluster, gpus_per_node, nodes_per_rack),
        cpus_per_gpu=cpus_per_gpu,
        mem_per_gpu_mb=1024 * mem_per_gpu,
    )
    rates = open_rates(site)
    work = open_trace(
        trace,
        pretend.types,
        rates,
        elastic=elastic,
        from_sacct=from_sacct,
        models=ModelNames(site.simulation.job_names, site.simulation.accounts),
    ).forked(copies)
    if cpu_profiles:
        work = with_cpu_profiles(work, pretend, rates.cpus.over(cpu_table.shipped()))
    costs = Costs(
        restart_cost,
        checkpoint_cost,
        node_loss,
        rack_loss,
        cpu_exponent,
        mem_exponent,
        copies_loss,
    )
    links = None
    if nic_gbps:
        fabric = Fabric(nic_gbps, oversubscription, overlap)
        work = networked(work, pretend, fabric)
        links = Contention(work, pretend, fabric)
    seen = replace(estimate(work, noise, steps_error, seed), learned=learn)
    for file in (jct_out, report):
        _writable(file)
    queue = SimulationSetting(
        work,
        pretend,
        Drawn(unmanaged_share, typed, seed=seed),
        costs=costs,
        steering=(
            SteeringSetting(not no_moves, exchange, round_s, preempt, max_wait_s=max_wait)
            if in_queue
            else SteeringSetting()
        ),
        seen=seen,
        seed=seed,
        options=settings,
    )
    if in_queue:
        done = [queue_engine.simulate(queue, decide, name) for name, decide in decides.items()]
    else:
        rounds = RoundSetting(
            costs=costs,
            clock=Clock(round_s, whole_steps),
            seed=seed,
            options=settings,
            seen=seen,
            links=links,
        )
        done = [
            simulate(work, pretend, decide, rounds, name)
            for name, decide in decides.items()
            if decide is not None
        ]
    notes = simulate_output.notes_of(done)
    for one in done:
        if jct_out:
            _write(_file_of(jct_out, one.policy, len(done)), simulate_output.jct_csv(one))
    if report:
        turn = "Slurm's order" if in_queue else "the policy's order"
        what = f"{len(work.ids)} jobs of {work.name} on {pretend.text}, in {turn}"
        _write(report, page([simulate_output.for_page(one) for one in done], what, notes))
    if as_json:
        print_json("simulate jobs", [one.summary() for one in done])
    else:
        console().print(simulate_output.table(done))
    for note in notes:
        typer.echo(f"hadar: {note}", err=True)


def _policies(words: Sequence[str], in_queue: bool) -> dict[str, policies.Policy | None]:
    """By name, in this order; in Slurm's queue None for Slurm alone. Raises UsageError for a policy
    that there is not, and for two of one name."""
    found: dict[str, policies.Policy | None] = {}
    for word in dict.fromkeys(words):
        if in_queue and word == PLAIN:
            found[PLAIN] = None
            continue
        policy = policies.find(word, files=True)
        if policy.name in found:
            raise UsageError(f"--policy {word}: another policy is named {policy.name}; rename one")
        found[policy.name] = policy
    return found


def _refuse_unknown(settings: Mapping[str, object], named: Sequence[policies.Policy]) -> None:
    """Raises UsageError for an option that none of the policies has, as far as they declare what
    they read."""
    known: set[str] = set()
    for policy in named:
        own = policies.options_read(policy, settings)
        if own is None:
            return
        known |= own
    for option in settings:
        if option not in known:
            near = get_close_matches(option, sorted(known), n=1)
            have = f"they have {', '.join(sorted(known))}" if known else "they have none"
            hint = f"did you mean {near[0]}?" if near else have
            raise UsageError(f"--option {option}: no policy named here has it; {hint}")


def _options(pairs: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"--option {pair!r} is not KEY=VALUE")
        found[key.strip()] = _value(text.strip())
    return found


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return text


def _writable(path: Path | None) -> None:
    """Better to fail before the simulation than behind it."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise UsageError(f"{path} cannot be written; is its folder there?")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise HadarError(f"{path} cannot be written: {error}") from None


def _file_of(path: Path, policy: str, policies_: int) -> Path:
    return path if policies_ == 1 else path.with_name(f"{path.stem}.{policy}{path.suffix}")
