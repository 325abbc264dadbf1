"""Problems with one job, and the commands that cure it."""

import os
import shlex
from collections.abc import Callable, Iterator

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import action_outcomes, job_updates
from slurm_hadar.controller.actuation.action_outcomes import number
from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.actuation.move_steps import MOVED, NOT_SAVED, SAVED
from slurm_hadar.controller.journal.entry import NOT_CARRIED_OUT
from slurm_hadar.controller.lock import is_fresh, stop_file_exists
from slurm_hadar.controller.presentation import (
    closed_partitions,
    excluded_types,
    found_files,
    move_text,
    saving_and_ending,
)
from slurm_hadar.controller.presentation.job_context import JobContext
from slurm_hadar.controller.presentation.job_explanation import started_since
from slurm_hadar.controller.presentation.saving_and_ending import ended_badly
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import (
    KEPT_WAITING,
    NEVER_MET,
    OWN_BEGIN_TIME,
    placed,
)
from slurm_hadar.domain.declaration import ANY, Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import by_type
from slurm_hadar.exchange.heartbeat import Heartbeat
from slurm_hadar.exchange.plan_file import plan_path
from slurm_hadar.exchange.progress import own_files
from slurm_hadar.reports import formats
from slurm_hadar.reports.job_report import Problem

_SILENT_S = 300.0
"""A training that reports tells of itself every few seconds."""
_STARTS_WITHIN_S = 10.0
"""Slurm starts a job sooner that was released where its GPUs are free."""
_LONG_WITHOUT_SAVING_S = 3600.0
_NOISE = 0.05
"""Part by which a speed may fall in a move without being called slower: that of one training varies
as much from window to window."""
_OPT_IN = (
    "in the script, after the #SBATCH lines: #HADAR types=any   "
    "(checkpoint=yes too where the training saves and resumes)",
    "submit it with: hbatch SCRIPT",
)


def problems(known: JobContext) -> Iterator[Problem]:
    """Everything wrong that shows, the gravest first."""
    job = known.job
    late = list(saving_and_ending.after_signal(known, job))
    yield from late
    if job is None:
        return
    if job.state is JobState.FINISHED:
        if job.managed and not late:
            yield from ended_badly(known, job)
            yield from saving_and_ending.never_watched(known, job, job.declaration or Declaration())
        return
    yield from _not_ours(job)
    if not job.managed:
        return
    yield from _controller(known)
    for look in _LOOKS:
        yield from look(known, job, job.declaration or Declaration())


def _not_ours(job: Job) -> Iterator[Problem]:
    if job.declaration_error:
        cures = (f"scontrol update JobId={job.id} Comment=", f"hadar set {job.id} types=any")
        yield Problem(f"its declaration cannot be read: {job.declaration_error}", cures)
    elif job.declaration is None:
        one = f"or for this one, while it waits: hadar set {job.id} types=any"
        yield Problem("it did not opt in, so it is never changed", (*_OPT_IN, one))
    elif job.opted_out:
        # Its owner's wish is no problem.
        return
    elif job.outside:
        yield Problem(f"the site leaves it to Slurm: {job.outside}")
    elif job.het:
        yield Problem("it is a heterogeneous job, which only Slurm can place")
    elif not job.batch:
        yield Problem("it is no batch job: Slurm cannot start it again elsewhere", _OPT_IN[1:])


def _controller(known: JobContext) -> Iterator[Problem]:
    config, beat, now = known.config, known.beat, known.observation.now
    if beat is None or not is_fresh(beat, now):
        age = "there is no heartbeat" if beat is None else _ago("its last heartbeat is", now, beat)
        yield Problem(
            f"no controller is alive ({age}); waiting jobs start by themselves",
            ("systemctl start slurm-hadar", "or one pass: hadar tick"),
        )
    elif beat.mode == "observe":
        cure = 'set mode = "act" in [site] of the configuration'
        if config.site.mode == "act":
            cure = _why_it_observes(config)
        yield Problem("the controller is in observe mode: it changes nothing in Slurm", (cure,))
    if known.fault:
        yield Problem(
            f"moves wait until the controller's ticks succeed again: {known.fault}",
            ("as the controller's user: hadar check",),
        )


def _why_it_observes(config: Config) -> str:
    """What to type where a controller that may act does not."""
    stop = shlex.quote(str(config.guards.stop_file))
    try:
        there = stop_file_exists(config)
    except OSError:
        return f"as root, since you may not look for it: ls -l {stop}"
    return f"rm {stop}" if there else "its log says why: journalctl -u slurm-hadar"


def _held(known: JobContext, job: Job, _: Declaration) -> Iterator[Problem]:
    if job.state is not JobState.PENDING:
        return
    if job.held:
        yield Problem(f"it is held ({job.reason})", (f"scontrol release {job.id}",))
    elif job.never_met:
        change = f"scontrol update JobId={job.id} Dependency=afterany:OTHER"
        yield Problem(NEVER_MET, (f"scancel {job.id}", change))
    elif job.dependency:
        cures = (f"scontrol update JobId={job.id} Dependency=",)
        yield Problem("it waits for another job", (f"scontrol show job {job.id}", *cures))
    elif (
        first := pending_demand.at_limit(known.observation).get(pending_demand.payer(job))
    ) is not None:
        show = f"sacctmgr show assoc where user={shlex.quote(job.user)}"
        of = "" if first.id == job.id else f" (Slurm says so of job {first.id})"
        yield Problem(f"its owner is at a limit: {first.reason}{of}", (show, "sacctmgr show qos"))
    elif why := closed_partitions.why_closed(job, known.observation, known.config):
        closed = closed_partitions.partitions_not_up(job, known.observation, known.config)
        open_ = (f"scontrol update PartitionName={one.name} State=UP" for one in closed)
        yield Problem(why, tuple(f"as an operator: {command}" for command in open_))
    elif not pending_demand.competes_for_gpus(job, known.observation):
        yield Problem(f"{KEPT_WAITING}: {job.reason}", (f"scontrol show job {job.id}",))


def _types(known: JobContext, job: Job, declared: Declaration) -> Iterator[Problem]:
    if not declared.types or not any(job.request.gpus.values()):
        return
    nodes = known.observation.nodes.values()
    there = {kind for node in nodes for kind in node.gpus}
    usable = {kind for node in nodes if node.usable for kind in node.gpus}
    wanted = there if ANY in declared.types else set(declared.types)
    more = f"hadar set {job.id} types=any"
    if ANY not in declared.types and not wanted & there:
        have = ", ".join(sorted(kind for kind in there if kind)) or "none"
        yield Problem(
            f"no node has what it accepts ({', '.join(sorted(wanted))}); there are {have}", (more,)
        )
    elif there and not wanted & usable and job.state is JobState.PENDING:
        yield Problem(
            f"all nodes with what it accepts ({', '.join(sorted(wanted & there))}) are out of use",
            ("sinfo -R", more) if usable else ("sinfo -R",),
        )


def _omitted(known: JobContext, job: Job, _: Declaration) -> Iterator[Problem]:
    idle = {
        kind
        for gpus in known.observation.free_gpus.values()
        for kind, number in gpus.items()
        if number and job.state is JobState.PENDING
    }
    for kind, why in known.omitted.items():
        if kind in idle:
            yield Problem(f"{kind} is idle, and {why}", (f"hadar explain {job.id}",))


def _left_out(known: JobContext, job: Job, _: Declaration) -> Iterator[Problem]:
    last = known.decision
    # Its owner's wish is no problem.
    if last is None or started_since(job, last) or last.reason == OWN_BEGIN_TIME:
        return
    is_said = job.held or job.never_met or last.reason == f"{KEPT_WAITING}: {job.reason}"
    if last.placement == "not steered" and not is_said:
        yield Problem(f"it is not steered: {last.reason}", (f"scontrol show job {job.id}",))


def _excluded(known: JobContext, job: Job, _: Declaration) -> Iterator[Problem]:
    found = (
        excluded_types.contradicting_features(job, known.config)
        or excluded_types.cannot_start(job, known.observation)
        or excluded_types.on_an_excluded_type(job, known.observation, known.config)
    )
    if found:
        what, _run, cure = found.partition("; run: ")
        yield Problem(what[0].lower() + what[1:], (cure,) if cure else ())


def _files(known: JobContext, job: Job, _: Declaration) -> Iterator[Problem]:
    folder = known.config.site.exchange_dir
    path = plan_path(folder, job.id) if "+" not in job.id else None
    if path is not None and os.path.lexists(path) and known.plan is None:
        yield Problem(
            "its plan file is damaged or belongs to another user, so it is ignored: "
            f"{found_files.described(path)}",
            (found_files.removal(path), "the next move writes it anew"),
        )
    mine = own_files(folder, job.id, job.uid)
    if mine and job.id not in known.observation.progress:
        them = "; ".join(found_files.described(one) for one in mine[:5])
        yield Problem(f"its progress file cannot be read: {them}", found_files.looks(mine[:5]))


def _progress(known: JobContext, job: Job, declared: Declaration) -> Iterator[Problem]:
    if job.state is not JobState.RUNNING:
        return
    if declared.habit == "watch":
        yield from saving_and_ending.watched(known, job, declared)
        return
    now, progress = known.observation.now, known.observation.progress.get(job.id)
    ran = now - job.start_s
    said = progress is not None and progress.restarts == job.restarts
    if not said:
        if declared.habit == "yes" and ran > _SILENT_S:
            look = f"ls -l {shlex.quote(str(known.config.site.exchange_dir))}/progress.{job.id}.*"
            yield Problem(
                f"no report since it started {formats.duration(ran)} ago: it cannot be moved, and "
                "its speed is not known",
                ("let the training use slurm_hadar.runtime", look),
            )
        return
    assert progress is not None
    silent = now - progress.time
    if silent > _SILENT_S and not progress.finished:
        yield Problem(
            f"no progress since {formats.duration(silent)} (at {progress.samples:,} samples)",
            (f"tail its output: scontrol show job {job.id} | grep StdOut",),
        )
    if progress.nonfinite:
        yield Problem(
            f"its loss or a parameter is not finite (at {progress.samples:,} samples), so it "
            "no longer saves",
            (f"scancel {job.id}", 'a training with nonfinite="end" ends by itself'),
        )
    since = now - (progress.checkpoint.time if progress.checkpoint else job.start_s)
    if declared.habit == "yes" and since > _LONG_WITHOUT_SAVING_S:
        saved = "its last checkpoint is" if progress.checkpoint else "it saved nothing in"
        old = " old" if progress.checkpoint else ""
        yield Problem(
            f"{saved} {formats.duration(since)}{old}: a kill loses that work",
            _ask_to_save(known, job, declared),
        )


def _ask_to_save(known: JobContext, job: Job, declared: Declaration) -> tuple[str, ...]:
    """Commands that ask a training to save. Without --batch only steps get a signal."""
    progress, asks = known.observation.progress.get(job.id), declared.asks
    if asks.target != "steps":
        return (f"scancel --{asks.target} --signal={asks.name} {job.id}",)
    stepped = progress is None or progress.restarts != job.restarts or progress.in_step
    if stepped or declared.habit == "signal":
        return (f"scancel --signal={asks.name} {job.id}",)
    return (
        f"scancel --batch --signal={asks.name} {job.id}",
        f"only where the batch script is the training (exec), or has a trap for {asks.name}: "
        "the signal ends any other shell, and the job",
    )


def _movable(known: JobContext, job: Job, declared: Declaration) -> Iterator[Problem]:
    if not declared.checkpoint:
        yield Problem(
            "it does not declare checkpoint=yes, so it is not moved",
            (f"only if it does: hadar set {job.id} checkpoint=yes (or signal, or watch:PATH)",),
        )
    elif declared.habit == "restart" and not declared.lose:
        yield Problem(
            "it may lose no work by a restart, so it stays where it starts",
            (f"hadar set {job.id} lose=SECONDS",),
        )
    elif not job.requeue:
        yield Problem(
            "Slurm may not requeue it (Requeue=0, as by --no-requeue), so it cannot be moved",
            (f"scontrol update JobId={job.id} Requeue=1",),
        )
    elif declared.pin:
        # Its owner's wish is no problem.
        return
    elif known.observation.steered(job.id).moves >= known.config.guards.max_moves_per_job:
        yield Problem(
            "it has reached guards.max_moves_per_job",
            ("raise guards.max_moves_per_job in the configuration",),
        )


def _moves(known: JobContext, job: Job, declared: Declaration) -> Iterator[Problem]:
    moves = [e for e in known.entries if e.kind == "move" and e.outcome is not None]
    if not moves:
        return
    last, effect = moves[-1], moves[-1].effect or {}
    late = (
        action_outcomes.after_its_signal(last, job)
        if last.details.get("habit") == "signal"
        else None
    )
    if (last.outcome or "").startswith(SAVED):
        yield Problem(
            f"its last move came too late: {last.outcome}",
            ("scontrol ping, and the controller's log: a later tick may move it",),
        )
    elif (last.outcome or "").startswith(NOT_SAVED) and not late:
        ask, *only = _ask_to_save(known, job, declared)
        yield Problem(
            f"it was asked to move and did not answer: {last.outcome}",
            (
                f"see whether it saves: {ask}",
                *only,
                f"or let it stay: hadar pin {job.id}",
            ),
        )
    elif "refused" in (last.outcome or ""):
        yield Problem(f"its last move failed: {last.outcome}", (f"hadar pin {job.id}",))
    before, after = number(effect, "rate_before"), number(effect, "rate_after")
    moved = bool(last.details.get("gpus"))
    moved &= action_outcomes.outcome_text(last) != NOT_CARRIED_OUT
    if not moved or before is None or after is None:
        return
    if after < before * (1.0 - _NOISE) and not move_text.given_back(last):
        yield Problem(
            f"its last move made it slower: {formats.rate(before)} -> {formats.rate(after)} "
            "samples/s",
            (f"hadar explain {job.id}", f"hadar pin {job.id}"),
        )


def _place_lost(known: JobContext, job: Job, _: Declaration) -> Iterator[Problem]:
    """A job that was requeued for a move and released, and that waits as others took its place."""
    moves = [entry for entry in known.entries if entry.kind == "move"]
    if job.state is not JobState.PENDING or job.held or not moves:
        return
    last, now = moves[-1], known.observation.now
    meant, before = steering_of(last.details, 0.0), last.details.get("restarts")
    waits = last.outcome == MOVED and isinstance(before, int) and job.restarts == before + 1
    if not waits or now - last.changed_s < _STARTS_WITHIN_S:
        return
    free = known.observation.free_gpus
    taken = any(
        count > free.get(node, {}).get(kind, 0)
        for node, gpus in meant.nodes.items()
        for kind, count in gpus.items()
    )
    if taken:
        since = formats.duration(now - last.changed_s)
        yield Problem(
            f"it gave up its GPUs for a move to {job_updates.steering_text(meant)}, and these are "
            f"not free any more: it has waited for {since} since",
            ("no action needed: Slurm starts it when it is its turn", f"hadar explain {job.id}"),
        )


def _without_gpus(known: JobContext, job: Job, _: Declaration) -> Iterator[Problem]:
    if job.state is not JobState.RUNNING or not any(job.request.gpus.values()):
        return
    if any(job.gpus.values()):
        return
    first = () if job.requeue else (f"scontrol update JobId={job.id} Requeue=1",)
    yield Problem(
        "Slurm shows no GPU of it, though it asks for some: it may have been started without, as "
        "after its node failed, and is not moved",
        (
            f"see whether it has one: scontrol show job -d {job.id} | grep GRES",
            *first,
            f"if not, start it again: scontrol requeue {job.id}",
        ),
    )


def _plan(known: JobContext, job: Job, _: Declaration) -> Iterator[Problem]:
    plan = known.plan
    if job.state is not JobState.RUNNING or plan is None or known.under_way or not plan.gpus:
        return
    held = by_type(placed(job, known.observation.nodes))
    if not held:
        return
    if plan.time < job.start_s and dict(plan.gpus) != held and plan.copies == 1:
        yield Problem(
            f"it runs on {formats.gpus(held)}, its plan speaks of {formats.gpus(plan.gpus)}: Slurm "
            "placed it otherwise",
            ("no action needed: the next tick adapts to it",),
        )


def _ago(words: str, now: float, beat: Heartbeat) -> str:
    return f"{words} {formats.duration(max(0.0, now - beat.time))} old"


_LOOKS: tuple[Callable[[JobContext, Job, Declaration], Iterator[Problem]], ...] = (
    _held,
    _types,
    _omitted,
    _left_out,
    _excluded,
    _files,
    _progress,
    _movable,
    _moves,
    _place_lost,
    _without_gpus,
    _plan,
)
