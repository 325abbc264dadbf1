"""A move that is under way, and what a job did after the controller's signal, as text."""

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.action_outcomes import number
from slurm_hadar.controller.actuation.destinations.surplus import what_was_given_back
from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.actuation.move_steps import MOVED, acknowledged
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.at_risk import UNASKED
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.reports import formats


def allowed_s(entry: Entry, config: Config) -> float:
    """How long the job of a move may take to save, s: what its owner declared, else the site."""
    declared = number(entry.details, "grace_s")
    return config.moving.ack_wait_s if declared is None else declared


def is_under_way(entry: Entry, job: Job | None) -> bool:
    """Whether a move is being carried out, or its job has not started yet where it was sent."""
    if entry.outcome is None:
        return True
    sent = entry.outcome == MOVED and entry.shown is None and entry.details.get("gpus")
    return bool(sent) and job is not None and job.state is JobState.PENDING


def moved_since(entry: Entry, observation: Observation) -> str:
    """That a move came to its end after ``observation``, as in the tick that a daemon answers of;
    else empty."""
    if (
        entry.outcome != MOVED
        or not entry.details.get("gpus")
        or entry.changed_s <= observation.now
    ):
        return ""
    meant = steering_of(entry.details, 0.0)
    where = job_updates.placement_text(meant.gpus, list(meant.nodes))
    return f"moved to {where} since the controller last looked at Slurm"


def given_back(entry: Entry) -> str:
    """That a job gave GPUs beyond its request back by this move, once it is carried out; else
    empty."""
    return what_was_given_back(str(entry.details.get("reason"))) if entry.outcome == MOVED else ""


def stage(entry: Entry, observation: Observation) -> str:
    """How far the job of a move is, which the tick that carries it on may not know yet: ``asked``
    (of a job that is not asked: nothing yet), ``saved`` or ``requeued``."""
    job = observation.jobs.get(entry.job)
    waits = job is not None and job.state is JobState.PENDING
    if entry.phase != "asked" or waits:
        return "requeued"
    return "saved" if acknowledged(entry, observation.progress.get(entry.job)) else "asked"


def under_way(entry: Entry, observation: Observation, config: Config) -> str:
    """Where a move stands and what comes next: ``asked to save 12 s ago, may take 60 s, then moves
    to 1 x v100 on v1``."""
    meant = steering_of(entry.details, 0.0)
    where = job_updates.placement_text(meant.gpus, list(meant.nodes))
    then = f"moves to {where}" if meant.gpus else "makes way for other jobs"
    ago = formats.duration(max(0.0, observation.now - entry.changed_s))
    reached = stage(entry, observation)
    if reached == "requeued":
        # One that requeued itself did so since it was asked.
        when = f" {ago} ago" if entry.phase != "asked" else ""
        then = f"waits to start on {where}" if meant.gpus else then
        return f"requeued{when} for this move, {then}"
    if reached == "saved":
        return f"has saved and is about to be requeued, {then}"
    if entry.details.get("habit") in UNASKED:
        return f"is about to be requeued, {then}"
    return f"asked to save {ago} ago, may take {allowed_s(entry, config):.0f} s, then {then}"
