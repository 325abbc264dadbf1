"""A move that is under way, and what a job did after the controller's signal, as text."""

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.actuation.reconciliation import number
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.snapshot.at_risk import UNASKED
from slurm_hadar.reports import formats


def allowed_s(entry: Entry, config: Config) -> float:
    """How long the job of a move may take to save, s: what its owner declared, else the site."""
    declared = number(entry.details, "grace_s")
    return config.moving.ack_wait_s if declared is None else declared


def under_way(entry: Entry, now: float, config: Config) -> str:
    """Where a move stands and what comes next: ``asked to save 12 s ago, may take 60 s, then moves
    to 1 x v100 on v1``."""
    meant = steering_of(entry.details, 0.0)
    where = job_updates.placement_text(meant.gpus, list(meant.nodes))
    then = f"moves to {where}" if meant.gpus else "makes way for other jobs"
    ago = formats.duration(max(0.0, now - entry.changed_s))
    if entry.phase != "asked":
        return f"requeued {ago} ago, {then}"
    if entry.details.get("habit") in UNASKED:
        return f"is about to be requeued, {then}"
    return f"asked to save {ago} ago, may take {allowed_s(entry, config):.0f} s, then {then}"
