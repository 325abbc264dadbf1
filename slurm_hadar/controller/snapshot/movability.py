"""Whether a running job may be moved now, from when on, and why not."""

from dataclasses import replace
from math import inf, isfinite

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.observation.partition_access import why_closed
from slurm_hadar.controller.snapshot import at_risk
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory, SchedulableJob
from slurm_hadar.controller.snapshot.restart_costs import first_guess_s
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Plan, by_type
from slurm_hadar.reports import formats

CANNOT_MOVE = "it cannot be moved now"
"""What policies say, who do not know why; :func:`explained` adds that."""


def why_not(
    target: SchedulableJob, observation: Observation, config: Config, past: ControllerHistory
) -> str:
    """Why a job may not be moved now; empty where it may."""
    found = why_never(target, observation, config)
    if found or not target.held:
        return found
    until = _settles_at(target.job, past) + _min_stay_s(target.job, config, past)
    if observation.now >= until:
        return ""
    failed = past.failed_moves.get(target.job.id, 0)
    moves = f" and {formats.counted(failed, 'failed move')}" if failed else ""
    return f"not before {formats.moment(until)} (guards.min_between_moves_s{moves})"


def movable_from_s(
    target: SchedulableJob, observation: Observation, config: Config, past: ControllerHistory
) -> float:
    """Time from which it may be moved, s; 0 for one that waits, inf for one that may not."""
    if why_never(target, observation, config):
        return inf
    if not target.held:
        return 0.0
    return _settles_at(target.job, past) + _min_stay_s(target.job, config, past)


def explained(plan: Plan, reasons: dict[str, str]) -> Plan:
    """The plan, with why each job cannot be moved of which the policy says that. ``reasons``: by
    job."""
    found = {
        id_: replace(
            placement,
            reason=placement.reason.replace(CANNOT_MOVE, f"{CANNOT_MOVE}: {reasons[id_]}"),
        )
        if id_ in reasons and CANNOT_MOVE in placement.reason
        else placement
        for id_, placement in plan.placements.items()
    }
    return replace(plan, placements=found)


def why_no_option(target: SchedulableJob) -> str:
    """Why policies keep a job where it is that may be moved: what it has is no type and number that
    it may ask for."""
    job, want = target.job, target.request
    held = by_type(target.held)
    if len(held) > 1:
        kinds = " and ".join(f"{number} x {kind}" for kind, number in sorted(held.items()))
        return f"its nodes have GPUs of different types ({kinds})"
    count = sum(held.values())
    declared = job.declaration or Declaration()
    if declared.gpus is not None and want.copies[1] == 1 and count not in want.counts:
        has, gpus = formats.counted(count, "GPU"), declared.assignments()["gpus"]
        return f"it has {has} and gpus={gpus} is declared; hadar set {job.id} gpus={count}"
    return (
        "its partitions, its constraint, its time limit or a reservation leave no plan for the "
        f"{formats.counted(count, 'GPU')} that it has"
    )


def _settles_at(job: Job, past: ControllerHistory) -> float:
    last = past.last_moves.get(job.id, 0.0)
    if job.declaration is not None and job.declaration.habit == "restart":
        # The sooner after its start, the less is lost.
        return last
    return max(job.start_s, last)


def _min_stay_s(job: Job, config: Config, past: ControllerHistory) -> float:
    failed, refused = past.failed_moves.get(job.id, 0), past.refused_moves.get(job.id, 0)
    return config.guards.between_moves_s(failed, refused)


def why_never(target: SchedulableJob, observation: Observation, config: Config) -> str:
    """Why it may not be moved however long it has been where it is; empty where it may."""
    job, declared = target.job, target.job.declaration
    if target.starting:
        return "it is being moved" if target.held else ""
    if job.state is not JobState.RUNNING or declared is None:
        return f"it is {job.slurm_state}" if target.held else ""
    if not target.held:
        # As after a restart of slurmctld that lost count.
        return "Slurm does not show which GPUs it has"
    progress = observation.progress.get(job.id)
    unasked = declared.habit in at_risk.UNASKED
    if progress is not None and progress.restarts != job.restarts and not unasked:
        # It would not hear the wish to save, and a signal would kill it.
        return "it has not reported since its restart"
    if progress is None and declared.habit == "yes":
        # The same: it is still loading, or does not use the runtime at all.
        return "it has not reported yet"
    if declared.habit == "signal" and observation.now - job.start_s < first_guess_s(job):
        # It says nothing of itself, so it is given the time that a start takes.
        return f"it started less than {first_guess_s(job):.0f} s ago (restart_cost)"
    return _consent(job, observation, config)


def _consent(job: Job, observation: Observation, config: Config) -> str:
    declared = job.declaration
    assert declared is not None
    if not declared.checkpoint:
        return "it declares no checkpoint"
    if declared.pin:
        return "it is pinned"
    progress = observation.progress.get(job.id)
    if at_risk.may_stop_for_s(job, progress, observation.now) < 0:
        if isfinite(at_risk.work_at_risk_s(job, progress, observation.now)):
            may_lose = f"the {declared.most_lost_s:.0f} s that it may lose"
            return f"a stop now would cost more work than {may_lose}"
        return at_risk.why_unknown(job, progress, observation.now)
    if not job.requeue:
        return "Slurm may not requeue it (Requeue=0, as by --no-requeue)"
    if job.expedited:
        return "Slurm does not requeue it as others (--requeue=expedite)"
    if job.external:
        return "it has licences, a burst buffer or segments, which a requeue would give to others"
    if why := starts_worse(job, observation):
        return why
    if observation.steered(job.id).moves >= config.guards.max_moves_per_job:
        return "guards.max_moves_per_job is reached"
    return ""


def starts_worse(job: Job, observation: Observation) -> str:
    """Why Slurm might start it later, for a shorter time or not at all once it is requeued; empty
    where nothing is known."""
    if job.priority == 0:
        return "it is held, so it would not start again"
    if job.array_job_id in observation.throttled_arrays:
        return "another task of its array would take its place (--array=...%N)"
    if job.deadline_s:
        return "Slurm may cancel it at its next start, as it has a --deadline"
    if 0 < job.least_limit_s < job.time_limit_s:
        return "Slurm may cut its time limit at its next start, as it has a --time-min"
    if why := _preempted_elsewhere(job, observation):
        return why
    if why := _refused(job, observation):
        return why
    if taker := observation.limit_waiters.taker(job):
        return f"job {taker} waits for a limit that it counts for, and would take its share"
    if _requeues_its_array(job, observation):
        return (
            "it is the task of its array that has the array's number: a script that requeues "
            "itself by that would requeue all tasks"
        )
    return _misleads(job, observation)


def _preempted_elsewhere(job: Job, observation: Observation) -> str:
    """Why others would take its GPUs sooner once it has moved, or get them later."""
    rule = observation.preemption
    if rule.whose == "none":
        return ""
    giving_way = observation.giving_way
    reached = _may_run_in(job, observation)
    modes = [mode for name, mode in giving_way.items() if name in reached]
    if rule.whose == "partitions" and not modes:
        return ""
    if rule.youngest_first:
        return "Slurm preempts the job first that started last (preempt_youngest_first)"
    if rule.exempts_qos.get(job.qos, rule.exempts):
        return (
            "started anew it would keep jobs that may preempt it waiting for its "
            "PreemptExemptTime once more"
        )
    of_tier = rule.whose == "partitions" and any("CANCEL" in mode for mode in modes)
    if of_tier or rule.cancels_job_of(job.qos):
        of = "of a higher tier" if of_tier else "that preempts it by QOS"
        return (
            f"on other GPUs a job {of} may be the next that wants them, and that would "
            "end it for good (PreemptMode=CANCEL)"
        )
    return ""


def _may_run_in(job: Job, observation: Observation) -> set[str]:
    """The partition that it runs in, those that it waited in, and those that its owner asked for,
    one of which has the nodes of all that it stands for."""
    steered = observation.steered(job.id)
    asked = job.declaration.partitions if job.declaration is not None else ()
    submitted = steered.was.get("Partition", "").split(",")
    return {*job.partitions, *steered.listed, *submitted, *asked}


def _refused(job: Job, observation: Observation) -> str:
    """Why no partition that it runs in, or that its owner asked for, would start it again: limits
    that became tighter hold for jobs that wait, not for those that run."""
    asked = job.declaration.partitions if job.declaration is not None else ()
    for names in (job.partitions, asked):
        found = [
            why_closed(job, observation.partitions[name], observation)
            for name in names
            if name in observation.partitions
        ]
        if found and all(found):
            return f"Slurm would not start it again: {found[0]}"
    return ""


def _requeues_its_array(job: Job, observation: Observation) -> bool:
    """Whether ``scontrol requeue $SLURM_JOB_ID`` in the job requeues other tasks too. Slurm gives
    the array's number to the last task that it takes out of the array's record."""
    declared = job.declaration
    by_itself = declared is not None and declared.habit == "signal"
    if not by_itself or (declared is not None and declared.checkpoint_exit_code):
        return False
    return job.raw_id == job.array_job_id and any(
        other.array_job_id == job.array_job_id and other.id != job.id
        for other in observation.jobs.values()
        if other.state is not JobState.FINISHED
    )


def _misleads(job: Job, observation: Observation) -> str:
    """Why a move would start a job that depends on this one too early, too late or never."""
    if other := observation.dependents.on_start(job):
        return f"job {other} counts minutes from its start (after:{job.id}+...)"
    declared = job.declaration
    leaves = declared is not None and declared.habit == "signal" and declared.checkpoint_exit_code
    if leaves and (other := observation.dependents.on_end(job)):
        return (
            f"job {other} depends on its end, and it ends for Slurm where it saves for a move "
            "(checkpoint_exit_code)"
        )
    return ""
