"""Where a study's parts come from: files that were handed over, or the Slurm that answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from slurm_hadar import config as configuration
from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.profiles.cpu_table import shipped
from slurm_hadar.profiles.rates import Rates, open_rates
from slurm_hadar.simulator.traces.csv_rows import text_of
from slurm_hadar.simulator.traces.sacct import ModelNames
from slurm_hadar.slurm.backend_choice import find_conf
from slurm_hadar.slurm.cluster import open_cluster
from slurm_hadar.slurm.commands import Commands
from slurm_hadar.tuning import conf, replay, sacct_history, simulated, site
from slurm_hadar.tuning.advice import Study
from slurm_hadar.tuning.simulated import SimulatedHistory
from slurm_hadar.tuning.study import recorded
from slurm_hadar.tuning.usage import usage

_SACCT_S = 300.0
_USUAL_SINCE = "now-30days"


@dataclass(frozen=True)
class TuneRequest:
    """What was asked for. ``since_s``: s since the epoch, 0 for 30 days ago or all of a file;
    ``jobs``: so many are replayed; ``limit_s``: clock seconds for all replays; ``owners``: job ->
    the partitions that it was submitted to, of those that a controller gave others."""

    policies: Sequence[str]
    jobs: int
    limit_s: float
    restart_s: float
    save_s: float
    since_s: float = 0.0
    owners: Mapping[str, str] = field(default_factory=dict)


def of_history(
    file: Path | None,
    slurm_conf: Path | None,
    nodes: Path | None,
    config: configuration.Config | None,
    request: TuneRequest,
) -> tuple[Study, list[str]]:
    """A study of a site's past, and what has to be said of it. ``file``: sacct's output; None: ask
    sacct. Raises UsageError for files that are not understood, SlurmError where Slurm is asked and
    does not answer."""
    settings = config or configuration.Config()
    rates = open_rates(settings)
    place = _site(slurm_conf, nodes, settings)
    notes = [*place.notes]
    if not place.gpu_nodes:
        show = "show" if len(place.sources) > 1 else "shows"
        raise UsageError(
            f"{' and '.join(place.sources)} {show} no node with GPUs; there is nothing to tune"
        )
    study = _study(place, config, rates, request)
    try:
        text, name = _history(file, settings, request.since_s)
    except SlurmError as error:
        # Without a database there is still a slurm.conf to look at.
        notes.append(f"no history: {error}; with a file of sacct's output there would be more")
        return study, notes
    past = sacct_history.read(text, name, place, request.since_s, request.owners)
    if not len(past.ids):
        left = "; ".join(f"{n} x {why}" for why, n in past.left_out.items())
        notes.append(f"{name} holds no GPU job of this site" + (f" ({left})" if left else ""))
        return study, notes
    study.history, study.usage = past, usage(past, place, request.since_s)
    names = ModelNames(settings.simulation.job_names, settings.simulation.accounts)
    study.work = replay.work_of(past, place, rates, names, request.jobs)
    if study.work is not None:
        study.recorded = recorded(past, study.work)
        study.runs = replay.run_all(
            study.work, request.policies, request.restart_s, request.limit_s
        )
    return study, [*notes, *_remarks(study)]


def of_simulation(
    past: SimulatedHistory,
    slurm_conf: Path | None,
    config: configuration.Config | None,
    request: TuneRequest,
) -> tuple[Study, list[str]]:
    """The same of what the simulator made of a trace."""
    rates = open_rates(config or configuration.Config())
    place = site.of_conf(conf.read(slurm_conf)) if slurm_conf else site.NOTHING
    study = _study(place, config, rates, request)
    study.work, study.recorded = simulated.read(past, rates, request.jobs)
    study.runs = replay.run_all(study.work, request.policies, request.restart_s, request.limit_s)
    notes = [*place.notes, f"{past.jct.name} does not record which GPUs a job had: idle time "
             "and waits by GPU type are unknown"]  # fmt: skip
    if len(study.work.rows) == request.jobs:
        notes.append(f"only the last {request.jobs} jobs of the trace are replayed (--jobs)")
    return study, notes


def _study(
    place: site.SlurmSite, config: configuration.Config | None, rates: Rates, request: TuneRequest
) -> Study:
    # For advice Synergy's measurements will do where the site has none of its own.
    return Study(
        place,
        config=config,
        cpus=rates.cpus.over(shipped()),
        save_s=request.save_s,
        restart_s=request.restart_s,
    )


def _site(
    slurm_conf: Path | None, nodes: Path | None, settings: configuration.Config
) -> site.SlurmSite:
    if slurm_conf is not None:
        place = site.of_conf(conf.read(slurm_conf))
    elif nodes is not None:
        place = site.NOTHING
    else:
        there = find_conf(settings.slurm.conf)
        try:
            file = conf.read(there) if there else None
        except UsageError:
            file = None
        place = site.of_slurm(open_cluster(settings.slurm), file)
    return site.with_nodes(place, nodes) if nodes is not None else place


def _history(file: Path | None, settings: configuration.Config, since_s: float) -> tuple[str, str]:
    if file is not None:
        return text_of(file, "replace"), file.name
    commands = Commands(settings.slurm.bin_dir, settings.slurm.conf, _SACCT_S)
    since = datetime.fromtimestamp(since_s).isoformat(timespec="seconds") if since_s else ""
    argv = sacct_history.command(since or _USUAL_SINCE).split()
    return commands.read(argv[0], argv[1:]), "sacct's answer"


def _remarks(study: Study) -> list[str]:
    """What a reader has to know of the figures."""
    past, work, seen = study.history, study.work, study.usage
    notes = ["the nodes are those of today for the whole time of the history"]
    if past is None or seen is None:
        return notes
    if past.left_out:
        rows = "; ".join(f"{n} {why}" for why, n in past.left_out.items())
        notes.append(f"of {past.rows} jobs in the accounting {sum(past.left_out.values())} are not "
                     f"counted: {rows}")  # fmt: skip
    if past.untyped:
        notes.append(f"the GPU type of {past.untyped} jobs was taken from their nodes or partition")
    notes += _of_groups(past, study.config)
    notes += [
        f"{one.kind}: more GPUs were in use at once than there are today ({one.beyond} more)"
        for one in seen.types
        if one.beyond
    ]
    if work is None:
        return [*notes, "no job that ran and ended fits the nodes of today: nothing is replayed"]
    ended = len(past.ended)
    if len(work.rows) < ended:
        notes.append(
            f"the replay takes the last {len(work.rows)} of {ended} jobs that ended (--jobs)"
            + (f"; {work.left_out} fit nowhere today" if work.left_out else "")
        )
    notes.append(
        "the replay begins with an empty cluster, takes every job as one that opted in and may be "
        f"stopped at {study.restart_s:g} s a restart, and does not know how much GPU memory a job "
        "needs"
    )
    if work.sheets:
        notes.append(
            f"the speed of {work.sheets} jobs on other GPU types is estimated from data sheets, "
            "since the configuration names no model of theirs ([simulation] job_names, accounts)"
            + (f"; {work.stuck} of them stay on their type, no other's being known"
               if work.stuck else "")
        )  # fmt: skip
    return notes


def _of_groups(past: sacct_history.History, config: configuration.Config | None) -> list[str]:
    """Jobs in partitions that a controller chooses among, of which no record tells whether it
    did."""
    groups = config.partitions.groups if config else {}
    members = {member: name for name, of in groups.items() for member in of}
    rows = zip(past.partitions, past.submitted, strict=True)
    found = [members[one] for one, submitted in rows if one in members and not submitted]
    if past.commented or not found:
        return []
    return [
        f"nothing records the partition that {len(found)} jobs were submitted to: they count as "
        "jobs that asked for the partition they ran in, though a controller may have steered them "
        f"there from {', '.join(dict.fromkeys(found))}; AccountingStoreFlags=job_comment in "
        "slurm.conf keeps it from now on"
    ]
