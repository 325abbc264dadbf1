"""A researcher's commands on their own job: pin, optout, set."""

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    cluster_of,
    keep_ages,
    load_to_ask,
    print_json,
    reader_of,
)
from slurm_hadar.cli.controller_of import controller_of
from slurm_hadar.cli.count_doubts import of_job
from slurm_hadar.cli.declaration_warnings import in_all, of_saving, refuse_impossible
from slurm_hadar.cli.redeclared_types import (
    left_out,
    may_be_moved_there,
    refuse_unknown,
    with_other_types,
)
from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.move_steps import reported_saved
from slurm_hadar.controller.actuation.pending import owners_nices
from slurm_hadar.controller.actuation.running import mail_type
from slurm_hadar.controller.lock import controllers_uid
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.observation.observed import Observation, opted_in
from slurm_hadar.controller.retire import ordinary, requeue_text, without_nice
from slurm_hadar.controller.snapshot.resource_request import resource_request
from slurm_hadar.domain import declaration
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import HadarError, UnknownJobError, UsageError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering, decode
from slurm_hadar.exchange.heartbeat import read_heartbeat
from slurm_hadar.slurm.cluster import Cluster, Update

_MOST_TASKS = 10_000
"""Tasks of one array that a command changes at most where they differ."""

_OF_PLACES = frozenset(("types", "gpus", "gpu_mem", "fork", "nodes", "pin", "off"))
"""Keys by which its owner may not accept any more where a move takes the job."""

_TRUNCATED = (
    "a move writes its output file anew, and what it printed before is lost, unless it was "
    "submitted with --open-mode=append, which hbatch adds beside checkpoint="
)

JobArgument = Annotated[str, typer.Argument(help="Job ID, such as 123 or 84_2.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(pin)
    app.command()(optout)
    app.command("set")(set_)


def pin(job: JobArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Keep a managed job where it is: it is not moved any more."""
    jobs = _change(job, config, ["pin=yes"])
    undo = f"hadar set {job} pin=no"
    running = all(one.state is JobState.RUNNING for one in jobs)
    words = f"job {job} stays where it is{'' if running else ' once it runs'}; undo with: {undo}"
    if _leaves_on_signal(jobs):
        words += "\nif a move has sent it its signal already, that move is carried out first"
    _tell("pin", _result(job, _declared(jobs), undo), words, as_json)


def optout(job: JobArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Opt a job out: from now on it is an ordinary Slurm job."""
    site = load_to_ask(config)
    cluster = cluster_of(site)
    changes, undo = [], ["off=no"]
    version = cluster.slurm_version
    jobs, steering = _find(cluster, job, site), {}
    changed: dict[str, Declaration] = {}
    leaves = _leaves_on_signal(jobs)
    declared = [found.declaration for found in jobs if found.declaration is not None]
    if declared:
        # The declaration of a task that is opted out already is empty.
        values = min(declared, key=lambda one: one.off).assignments()
        keys = [key for key in declaration.KEYS if key in values and key != "off"]
        undo = ["off=no", *(f"{key}={values[key]}" for key in keys)]
    for found in jobs:
        steering[found.id] = _steering(found, site) or Steering()
        update = ordinary(found, steering[found.id], time.time(), site)
        if "Nice" in update.fields and not owners_nices.keeps_hold(
            found, _has_ages(cluster, found)
        ):
            update = without_nice(update)
        changed[found.id] = declaration.decode(update.fields["Comment"]) or Declaration()
        changes.append(update)
    already = all(found.opted_out for found in jobs) and changed == _declared(jobs)
    if not already or any(map(_restores, jobs, changes)):
        _send(cluster, jobs, mail_type.without_others(cluster, jobs, changes, steering))
    command = "" if already else shlex.join(["hadar", "set", job, *undo])
    said = f"job {job} is an ordinary job now; undo with: {command}"
    said = f"job {job} is opted out already" if already else said
    for found in jobs:
        text = requeue_text(found, steering[found.id], site, version)
        said += f"\n{text}" if text else ""
    if leaves:
        said += "\nif a move has sent it its signal already, it still saves, leaves and is requeued"
    _tell("optout", _result(job, changed, command), said, as_json)


def _has_ages(cluster: Cluster, job: Job) -> bool:
    """Whether priorities are those of priority/multifactor; asked where it counts, of a held job.
    Where Slurm does not say, they may not be."""
    try:
        return job.held and cluster.read_config().get("PriorityType") == "priority/multifactor"
    except HadarError:
        return False


def _restores(job: Job, change: Update) -> bool:
    """Whether an opt-out changes more than the Comment, as after one that failed halfway."""
    fields = {key: value for key, value in change.fields.items() if key != "Comment"}
    return "StartTime" in fields or job_updates.differing(job, fields)


def set_(
    job: JobArgument,
    words: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="As in #HADAR lines.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the declaration of a job; one that declared nothing becomes a managed job."""
    jobs = _change(job, config, words)
    declared = _declared(jobs)
    pairs = (assignment.partition("=") for assignment in words)
    typed = {key.replace("-", "_"): value for key, _, value in pairs}
    # Of an array the tasks may declare alike.
    doubts = [one for each in declared.values() for one in of_saving(each, typed)]
    if "off" not in typed and any(each.off for each in declared.values()):
        doubts.append(f"it is opted out, so this has no effect; opt it in: hadar set {job} off=no")
    if "gpus" in typed:
        doubts += _of_counts(job, config)
    if _leaves_on_signal(jobs) and "checkpoint" not in typed and not _OF_PLACES.isdisjoint(typed):
        doubts.append("if a move has sent it its signal already, it leaves all the same, and "
                      "starts on GPUs that it accepts now")  # fmt: skip
    for doubt in dict.fromkeys(doubts):
        print(f"hadar: job {job}: {doubt}", file=sys.stderr)
    _tell("set", _result(job, declared), f"job {job}: {' '.join(words)}", as_json)


def _of_counts(job: str, config: ConfigOption) -> list[str]:
    """What ``gpus`` cannot do for the job as Slurm shows it now; a sentence per job."""
    site = load_to_ask(config)
    cluster = cluster_of(site)
    try:
        jobs = {one.id: one for one in _find(cluster, job, site)}
        nodes = {node.name: node for node in cluster.read_nodes()}
        partitions = {partition.name: partition for partition in cluster.read_partitions()}
    except HadarError:
        # The declaration is changed all the same.
        return []
    observation = Observation(now=time.time(), jobs=jobs, nodes=nodes, partitions=partitions)
    wanted = {id_: resource_request(one, _steering(one, site) or Steering(), site)
              for id_, one in jobs.items()}  # fmt: skip
    said = (of_job(one, wanted[id_], observation) for id_, one in jobs.items())
    return [one for one in said if one]


def _tell(command: str, result: Mapping[str, object], text: str, as_json: bool) -> None:
    if as_json:
        print_json(command, result)
    else:
        typer.echo(text)


def _result(job: str, declared: Mapping[str, Declaration], undo: str = "") -> dict[str, object]:
    """``declared``: what each job that was changed declares now; ``undo``: a command for a shell,
    empty where there is none."""
    shown = {id_: one.assignments() for id_, one in declared.items()}
    return {"job": job, "declared": shown, **({"undo": undo} if undo else {})}


def _declared(jobs: Sequence[Job]) -> dict[str, Declaration]:
    return {job.id: job.declaration or Declaration() for job in jobs}


def _leaves_on_signal(jobs: Sequence[Job]) -> bool:
    """Whether a move may have asked one of the jobs already in a way that is not taken back."""
    declared = [one.declaration for one in jobs if one.state is JobState.RUNNING]
    return any(one is not None and one.habit == "signal" for one in declared)


def _change(job: str, config: ConfigOption, words: list[str]) -> list[Job]:
    """Change the declaration of a job; returns the jobs with the new one."""
    site = load_to_ask(config)
    cluster = cluster_of(site)
    changes, changed, doubts, truncated = [], list[Job](), list[str](), list[str]()
    keys = {word.partition("=")[0] for word in words}
    changes_types = not keys.isdisjoint(("types", "gpu_mem", "gpu-mem"))
    jobs = _find(cluster, job, site)
    for found in jobs:
        shown = opted_in(found, site, found.partitions).declaration
        if words == ["pin=yes"] and (shown is None or shown.off):
            raise UsageError(f"job {found.id} is not managed, so nothing moves it")
        declared = declaration.parse(words, f"job {job}", found.declaration)
        if "gpus" in keys:
            refuse_impossible(declared, lambda: _gpus_of(cluster))
        if shown is None and not declared.off:
            doubts.append(f"job {found.id}: it declared nothing before and is a managed job from "
                          f"now on; undo with: hadar optout {found.id}")  # fmt: skip
        if _becomes_movable(found, declared):
            truncated.append(found.id)
        fields: dict[str, str] = {}
        before = found.declaration
        if before is None:
            if changes_types:
                refuse_unknown(found, declared, site)
            declared = _as_submitted(found, declared, _steering(found, site) or Steering())
        elif before and changes_types:
            steered = _steering(found, site)
            declared, fields = with_other_types(found, declared, site, steered)
            doubt = left_out(found, declared, site, steered, fields)
            now = time.time()
            if doubt and may_be_moved_there(found, declared, site, steered, now) and _acts(site):
                doubt = ""
            doubts += [f"job {found.id}: {doubt}"] if doubt else []
        comment = declaration.merge(found.comment, declared)
        if len(comment.encode()) > declaration.COMMENT_LIMIT:
            raise UsageError(f"job {job}: the declaration does not fit in the Comment (1024 bytes)")
        changes.append(Update(found.id, {**fields, "Comment": comment}))
        changed.append(replace(found, declaration=declared))
    _send(cluster, jobs, changes)
    if truncated and not _appends(cluster):
        doubts += [f"job {id_}: {_TRUNCATED}" for id_ in truncated]
    for doubt in doubts:
        print(f"hadar: {doubt}", file=sys.stderr)
    return changed


def _gpus_of(cluster: Cluster) -> dict[str, int]:
    try:
        return in_all(node.gpus for node in cluster.read_nodes())
    except HadarError:
        # Nothing is refused for what is not known.
        return {}


def _as_submitted(job: Job, declared: Declaration, steered: Steering) -> Declaration:
    """With what the owner asked of sbatch, as hbatch records it: without this the declared types
    would stand for its constraint."""
    waits = job.state is JobState.PENDING
    names = tuple(filter(None, steered.was.get("Partition", "").split(",")))
    return replace(
        declared,
        constraint=steered.was.get("Features", job.features),
        # Of a job that runs Slurm shows one of them.
        partitions=names or (job.partitions if waits else ()),
    )


def _becomes_movable(job: Job, declared: Declaration) -> bool:
    """Whether the job may be moved from now on, and hbatch had no reason to open its output file in
    append mode. How the file is opened Slurm does not show."""
    before = job.declaration.checkpoint if job.declaration is not None else ""
    return declared.may_move and not (declared.off or before) and job.batch


def _appends(cluster: Cluster) -> bool:
    """Whether the site's Slurm appends to output files where the submit does not say."""
    try:
        return cluster.read_config().get("JobFileAppend", "0") == "1"
    except HadarError:
        # What is said holds for most sites.
        return False


def _acts(site: Config) -> bool:
    found = controller_of(site)
    return found.state == "acts" and not (found.stop_file or found.doubt)


def _steering(job: Job, site: Config) -> Steering | None:
    if site.site.rights != "user":
        return steering_store.of_jobs(site, [job]).get(job.id)
    with reader_of(site) as controller:
        return decode(controller.store.steerings([job.id]).get(job.id, ""))


def _find(cluster: Cluster, id_: str, site: Config) -> list[Job]:
    """The job; of an array its tasks that have not ended, or one for all that Slurm keeps as one.

    Tasks that Slurm keeps apart may differ in all that a command changes.
    """
    shown = cluster.read_jobs([id_], tasks_per_array=_MOST_TASKS)
    jobs = [job for job in shown if job.state is not JobState.FINISHED]
    if not jobs:
        if leaving := next((job for job in shown if reported_saved(job)), None):
            raise HadarError(_comes_back(leaving, site))
        raise UnknownJobError(f"Slurm shows no waiting or running job {id_}; see squeue")
    if len(shown) > 1 and all(str(job.raw_id) == id_ for job in shown):
        jobs = [replace(jobs[0], id=id_)]
    elif cluster.notes:
        raise HadarError(f"{cluster.notes[0]}; name its tasks one by one, such as {jobs[0].id}")
    for job in jobs:
        if job.declaration_error:
            raise UsageError(f"job {job.id} is not managed: {job.declaration_error}")
    return jobs


def _comes_back(job: Job, site: Config) -> str:
    """Of a job that has ended with its ``checkpoint_exit_code``: that it may wait again soon."""
    beat = read_heartbeat(site.site.exchange_dir, controllers_uid(site))
    interval_s = beat.interval_s if beat is not None else site.controller.interval_s
    ago_s = max(0.0, time.time() - job.end_s)
    return (
        f"job {job.id} ended with its checkpoint_exit_code {job.exit_code} {ago_s:.0f} s ago, and "
        "a controller requeues it if it asked it to save; repeat the command in "
        f"{max(1.0, interval_s):.0f} s"
    )


def _send(cluster: Cluster, jobs: Sequence[Job], changes: Sequence[Update]) -> None:
    """``jobs``: of these changes, in their order."""
    for error in cluster.apply(changes):
        if error is not None:
            raise error
    keep_ages(cluster, list(zip(jobs, changes, strict=True)))
