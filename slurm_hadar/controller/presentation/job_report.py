"""The report of one job, for ``hadar doctor``: from Slurm, the journal and the job's files.

``hadar explain`` says why a job is where it is now; this says how it came there, what comes next
and what is wrong.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from math import inf

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import action_outcomes, job_updates
from slurm_hadar.controller.actuation.move_steps import FAILED, MOVED, REFUSED
from slurm_hadar.controller.journal.entry import NOT_CARRIED_OUT, Entry
from slurm_hadar.controller.lock import controllers_uid
from slurm_hadar.controller.observation import interactive, observed, rollout, steering_store
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation import (
    excluded_types,
    job_explanation,
    job_history,
    move_text,
)
from slurm_hadar.controller.presentation.diagnostics import problems
from slurm_hadar.controller.presentation.job_context import JobContext
from slurm_hadar.controller.presentation.speeds import omitted_types
from slurm_hadar.controller.snapshot import chaining
from slurm_hadar.controller.snapshot.at_risk import UNASKED, may_stop_for_s
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import UnknownJobError, UsageError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange.heartbeat import read_heartbeat
from slurm_hadar.exchange.progress import read_all_progress
from slurm_hadar.reports import formats
from slurm_hadar.reports.job_report import NOT_SHOWN, JobReport
from slurm_hadar.slurm.cluster import Cluster


def of_controller(controller: job_explanation.Source, id_: str, fault: str = "") -> JobReport:
    """Made with the controller's own file. ``fault``: why its latest tick failed, empty where it
    did not. Raises UsageError for an unknown job."""
    store = controller.store
    config = controller.config
    observation = controller.observe()
    id_ = job_explanation.named(observation, id_)
    known = _known(config, observation, id_, config.controller_uid)
    job = known.job
    if job is not None and known.config.site.rights == "user" and job.uid != controller.own_uid:
        raise UsageError(f"job {id_} is another user's; this controller runs in per-user mode")
    return _report_of(
        replace(
            known,
            entries=tuple(reversed(store.history(id_))),
            decisions=tuple(store.decisions.of(id_)),
            last=store.decisions.last().get(id_),
            omitted=omitted_types(id_, observation, controller.snapshot(observation), config)
            if job is not None and job.state is JobState.PENDING
            else {},
            fault=fault,
        )
    )


def of_owner(config: Config, cluster: Cluster, id_: str, now: float) -> JobReport | None:
    """Made for the job's owner without the controller's file; None where the job is another
    user's."""
    uid = os.getuid()
    observation = observe_as_owner(config, cluster, now)
    id_ = job_explanation.named(observation, id_)
    job = observation.jobs.get(id_)
    job_explanation.no_array(observation, id_)
    if job is None or job.uid != uid:
        return None
    return _report_of(
        replace(_known(config, observation, id_, controllers_uid(config)), journal=False)
    )


def observe_as_owner(config: Config, cluster: Cluster, now: float) -> Observation:
    """What Slurm shows to the caller, and what the files of the caller's jobs say. Raises
    SlurmError."""
    uid = os.getuid()
    observation = observed.read(cluster, now, config, uid)
    mine = [job for job in observation.jobs.values() if job.uid == uid and job.managed]
    ours = steering_store.of_jobs(config, mine)
    changed = rollout.changed(ours)
    jobs = interactive.applied(observation.jobs, config.guards, changed)
    return replace(
        observation,
        jobs=rollout.applied(jobs, config.rollout, changed),
        progress=read_all_progress(config.site.exchange_dir, {job.id: uid for job in mine}),
        steering=ours,
        opted_out=steering_store.of_jobs(
            config, (job for job in observation.opted_out_jobs().values() if job.uid == uid)
        ),
    )


def _known(config: Config, observation: Observation, id_: str, uid: int) -> JobContext:
    beat = read_heartbeat(config.site.exchange_dir, uid)
    return JobContext(id_, observation, config, uid, beat)


def _report_of(known: JobContext) -> JobReport:
    observation, job = known.observation, known.job
    if job is None:
        job_explanation.no_array(observation, known.id)
        if not known.entries and not known.decisions:
            raise UnknownJobError(
                f"Slurm shows no job {known.id}, and the journal knows none; "
                "squeue --me shows the jobs that wait and run"
            )
    return JobReport(
        id=known.id,
        state=job.slurm_state if job else NOT_SHOWN,
        reported_s=observation.now,
        facts=tuple(_facts(known)),
        events=tuple(job_history.events(known)),
        missing_history=tuple(job_history.missing_history(known)),
        now=tuple(_now(known)),
        next=tuple(_next(known)),
        problems=tuple(problems(known)),
        undo=tuple(job_explanation.undo(job, observation, known.config))
        if job and (job.managed or job.opted_out) and not _over(job)
        else (),
    )


def _over(job: Job) -> bool:
    return job.state is JobState.FINISHED


def _facts(known: JobContext) -> Iterator[tuple[str, str]]:
    job, observation = known.job, known.observation
    if job is None:
        return
    in_vain = job_explanation.moves_in_vain(known.entries)
    row = job_explanation.row_of(job, observation, None, in_vain=in_vain)
    yield "Name", f"{formats.short_name(row.name)} ({row.user})"
    yield "Partition", ",".join(job.partitions)
    if job.declaration is not None:
        words = " ".join(f"{key}={value}" for key, value in job.declaration.assignments().items())
        yield "Declared", words or "opted in by its partition"
    for line in job_explanation.changed(job, observation, known.config):
        yield "Changed", line
    if row.here:
        yield "Runs on", action_outcomes.where(job, observation)
    if row.done is not None:
        yield "Done", formats.percent(row.done)
    if row.samples_per_s:
        yield "Speed", f"{formats.rate(row.samples_per_s)} samples/s"
    yield "Moves", formats.number(row.moves)
    if job.restarts:
        yield "Restarts", f"{job.restarts}, as Slurm counts them"
    if known.on_idle_nodes:
        yield "Idle nodes", "trains on them and gives way to all other jobs (hadar backfill)"
    if not known.journal:
        yield "Source", "Slurm and the job's own files; the controller's user also sees the journal"


def _now(known: JobContext) -> Iterator[str]:
    job, last, move = known.job, known.decision, known.latest_move
    if job is None:
        yield "Slurm no longer shows it; sacct may show how it ended."
        return
    reason = f", {job.reason}" if job.reason not in ("", "None") else ""
    if job.state is JobState.RUNNING:
        stood = formats.duration(max(0.0, known.observation.now - job.start_s))
        yield f"{job.slurm_state} on {action_outcomes.where(job, known.observation)} for {stood}"
    else:
        yield f"{job.slurm_state}{reason}"
    if _over(job):
        return
    moved = move_text.moved_since(move, known.observation) if move is not None else ""
    if moved:
        yield moved
    if move is not None and (returned := move_text.given_back(move)):
        yield returned
    if move is not None and move_text.is_under_way(move, job):
        yield move_text.under_way(move, known.observation, known.config)
    elif job.opted_out:
        yield f"its owner opted it out, so it is not changed; to opt in: {_opt_in(job)}"
    elif not job.managed:
        return
    elif last is not None:
        yield f"{last.placement}: {job_explanation.reason_now(job, last)}"
    elif not known.journal:
        plan = known.plan
        excluded = excluded_types.in_an_excluded_partition(job, known.observation, known.config)
        if plan is not None and plan.reason:
            yield excluded or f"the controller said: {plan.reason}"
    if job.declaration is not None and job.declaration.pin:
        yield f"its owner pinned it to its place; to let it move: hadar set {job.id} pin=no"


def _opt_in(job: Job) -> str:
    declared, command = job.declaration or Declaration(), f"hadar set {job.id} off=no"
    if declared != declared.left_alone():
        return command
    return f"{command} KEY=VALUE ... with all that it is to declare: nothing else of it is kept"


def _next(known: JobContext) -> Iterator[str]:
    job, config, now = known.job, known.config, known.observation.now
    if job is None or _over(job) or not job.managed:
        return
    under_way = known.under_way
    if under_way is not None:
        yield _of_move(under_way, known)
    interval = known.beat.interval_s if known.beat else config.controller.interval_s
    if known.controller_lives:
        yield f"The controller looks at it again within {interval:.0f} s."
    if job.state is JobState.PENDING and not job.held:
        yield from _of_waiting(job, known)
    elif job.state is JobState.RUNNING:
        yield from _of_running(job, known, now)


def _of_move(entry: Entry, known: JobContext) -> str:
    match move_text.stage(entry, known.observation):
        case "asked":
            wait = move_text.allowed_s(entry, known.config)
            return f"It was asked to save; if it does not within {wait:.0f} s it stays where it is."
        case "saved":
            return "It has saved; the next tick requeues it, or leaves it where it is."
    return "It is requeued; the next tick releases it, and without a tick Slurm starts it."


def _of_waiting(job: Job, known: JobContext) -> Iterator[str]:
    steered, now = known.observation.steered(job.id), known.observation.now
    if job.not_before_s > now and known.under_way is not None:
        at = formats.moment(job.not_before_s)
        yield (
            "Its last attempt was not ended by the controller and may still be leaving its "
            f"node; it is released after {at} (moving.after_return_s)."
        )
    if job.eligible_s > now:
        yield f"Slurm delays it until {formats.moment(job.eligible_s)}."
    elif steered.gpus:
        length = known.config.moving.commit_s
        yield (
            f"Slurm starts it on {job_updates.steering_text(steered)} when that is free; "
            f"if it has not within {length:.0f} s it may start anywhere that its owner asked for."
        )
    elif job.start_s > now:
        yield f"Slurm expects to start it at {formats.moment(job.start_s)}."


def _of_running(job: Job, known: JobContext, now: float) -> Iterator[str]:
    progress, declared = known.observation.progress.get(job.id), job.declaration
    if progress and declared and progress.rate and declared.total_samples > progress.samples:
        left = (declared.total_samples - progress.samples) / progress.rate
        yield (
            f"At the {formats.rate(progress.rate)} samples/s that it reported last it ends in "
            f"{formats.duration(left)}. A decision counts with the speeds of hadar explain."
        )
    if job.end_s > now and job.time_limit_s != float("inf"):
        chain = chaining.records(known.entries).get(job.id, chaining.NONE)
        why_not = chaining.why_not(job, known.config, chain)
        before = "Its time limit ends it" if why_not != "" else "It is requeued before its limit,"
        yield f"{before} at {formats.moment(job.end_s)}" + (f": {why_not}." if why_not else ".")
    moves = [entry for entry in known.entries if entry.kind == "move"]
    failed = refused = 0
    for entry in moves:
        in_vain = action_outcomes.outcome_text(entry) == NOT_CARRIED_OUT
        failed += (entry.outcome or "").startswith(FAILED) or in_vain
        refused += (entry.outcome or "").startswith(REFUSED)
        if entry.outcome == MOVED:
            failed, refused = failed * in_vain, 0
    young = declared is not None and declared.habit == "restart"
    since = max([0.0 if young else job.start_s, *(entry.changed_s for entry in moves)])
    if declared and declared.habit in UNASKED and declared.may_move:
        left_s = may_stop_for_s(job, progress, now)
        yield (
            f"It may be stopped for {left_s:.0f} s more, by what its owner lets it lose."
            if 0 <= left_s < inf
            else f"A stop would cost more than the {declared.most_lost_s:.0f} s of work that its "
            "owner lets it lose, or an unknown amount, so it stays for now."
        )
    free = since + known.config.guards.between_moves_s(failed, refused)
    if free > now and declared and declared.checkpoint and not declared.pin:
        asked = f", and {formats.counted(failed, 'failed move')}" if failed else ""
        yield f"It is not moved before {formats.moment(free)} (guards.min_between_moves_s{asked})."
