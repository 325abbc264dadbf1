"""``hadar simulate``: a trace of jobs under one or more policies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import typer

from slurm_hadar import policies
from slurm_hadar.cli import simulate_idle, simulate_output, simulate_tasks
from slurm_hadar.cli.common import check_writable, load_if_any, print_json
from slurm_hadar.cli.options_record import takes
from slurm_hadar.cli.simulate_options import JobsOptions
from slurm_hadar.config import Config
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.profiles import cpu_table
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.reports.simulation import page
from slurm_hadar.reports.text import console
from slurm_hadar.simulator import cluster as clusters
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.contention import Contention, Fabric, networked
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.estimates import Estimates, estimate
from slurm_hadar.simulator.outcome import Outcome
from slurm_hadar.simulator.queue import engine as queue_engine
from slurm_hadar.simulator.queue.requests import Drawn
from slurm_hadar.simulator.queue.setting import SimulationSetting, SteeringSetting
from slurm_hadar.simulator.traces import open_sacct, open_trace
from slurm_hadar.simulator.traces.sacct import ModelNames
from slurm_hadar.simulator.workload import Workload, with_cpu_profiles

PLAIN = "plain"
"""In place of a policy's name: plain Slurm."""
Named = dict[str, policies.Policy | None]
"""Policies by name; None: Slurm alone."""


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


@takes(JobsOptions)
def jobs(options: JobsOptions) -> None:
    """Replay a trace under each policy, with the live code."""
    named = _policies(options.policy or [Config().controller.policy], options.in_queue)
    options.check()
    settings = _options(options.option or [])
    _refuse_unknown(settings, [one for one in named.values() if one])
    for file in (options.jct_out, options.report):
        check_writable(file)
    trace = _opened(options)
    simulated = _in_slurms_order if options.in_queue else _in_the_policies_order
    done = simulated(options, trace, named, settings)
    notes = simulate_output.notes_of(done)
    for one in done:
        if options.jct_out:
            path = _file_of(options.jct_out, one.policy, len(done))
            _write(path, simulate_output.jct_csv(one))
    if options.report:
        turn = "Slurm's order" if options.in_queue else "the policy's order"
        work, cluster = trace.work, trace.cluster
        what = f"{len(work.ids)} jobs of {work.name} on {cluster.text}, in {turn}"
        shown = [simulate_output.for_page(one) for one in done]
        _write(options.report, page(shown, what, notes))
    if options.as_json:
        print_json("simulate jobs", [one.summary() for one in done])
    else:
        console().print(simulate_output.table(done))
    for note in notes:
        typer.echo(f"hadar: {note}", err=True)


@dataclass(frozen=True)
class _Trace:
    """What is simulated. ``links``: None without a network."""

    work: Workload
    cluster: VirtualCluster
    costs: Costs
    seen: Estimates
    links: Contention | None


def _opened(options: JobsOptions) -> _Trace:
    """Read the trace, and take what the options say of it into account."""
    site = load_if_any(options.config)
    cluster = replace(
        clusters.parse(options.cluster, options.gpus_per_node, options.nodes_per_rack),
        cpus_per_gpu=options.cpus_per_gpu,
        mem_per_gpu_mb=1024 * options.mem_per_gpu,
    )
    rates = open_rates(site)
    if options.from_sacct and options.elastic:
        raise UsageError("--elastic needs a trace with models; sacct's output names none")
    if options.from_sacct:
        models = ModelNames(site.simulation.job_names, site.simulation.accounts)
        work = open_sacct(options.trace, cluster.types, rates, models)
    else:
        work = open_trace(options.trace, cluster.types, rates, elastic=options.elastic)
    work = work.forked(options.copies)
    if options.cpu_profiles:
        work = with_cpu_profiles(work, cluster, rates.cpus.over(cpu_table.shipped()))
    costs = Costs(
        options.restart_cost,
        options.checkpoint_cost,
        options.node_loss,
        options.rack_loss,
        options.cpu_exponent,
        options.mem_exponent,
        options.copies_loss,
    )
    links = None
    if options.nic_gbps:
        fabric = Fabric(options.nic_gbps, options.oversubscription, options.overlap)
        work = networked(work, cluster, fabric)
        links = Contention(work, cluster, fabric)
    seen = estimate(work, options.noise, options.steps_error, options.seed)
    return _Trace(work, cluster, costs, replace(seen, learned=options.learn), links)


def _in_slurms_order(
    options: JobsOptions, trace: _Trace, named: Named, settings: Mapping[str, object]
) -> list[Outcome]:
    queue = SimulationSetting(
        trace.work,
        trace.cluster,
        Drawn(options.unmanaged_share, options.typed, seed=options.seed),
        costs=trace.costs,
        steering=SteeringSetting(
            not options.no_moves,
            options.exchange,
            options.round_s,
            options.preempt,
            max_wait_s=options.max_wait,
        ),
        seen=trace.seen,
        seed=options.seed,
        options=settings,
    )
    return [
        queue_engine.simulate(queue, one.decide if one else None, name)
        for name, one in named.items()
    ]


def _in_the_policies_order(
    options: JobsOptions, trace: _Trace, named: Named, settings: Mapping[str, object]
) -> list[Outcome]:
    rounds = RoundSetting(
        costs=trace.costs,
        clock=Clock(options.round_s, options.whole_steps),
        seed=options.seed,
        options=settings,
        seen=trace.seen,
        links=trace.links,
    )
    return [
        simulate(trace.work, trace.cluster, one.decide, rounds, name)
        for name, one in named.items()
        if one is not None
    ]


def _policies(words: Sequence[str], in_queue: bool) -> Named:
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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise HadarError(f"{path} cannot be written: {error.strerror}") from None


def _file_of(path: Path, policy: str, policies_: int) -> Path:
    return path if policies_ == 1 else path.with_name(f"{path.stem}.{policy}{path.suffix}")
