"""Widening lists of partitions past their deadline, where no controller does it.

A job may wait for a GPU type with a list that is shorter than it may be, up to a deadline. The
controller widens it then. Where that has died, a user who may change the job does: the controller's
user (a timer, see packaging/), or the job's owner.
"""

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.config import Config
from slurm_hadar.controller.lock import is_fresh, is_left_behind, silent_in_s
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.heartbeat import read_heartbeat
from slurm_hadar.slurm import pending
from slurm_hadar.slurm.cluster import Cluster, Update


@dataclass(frozen=True)
class Widened:
    """``sent``: what Slurm took, with the jobs as they were before; ``refused``: Slurm's id of the
    others -> its message."""

    sent: Sequence[tuple[Job, Update]] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def lists(self) -> dict[str, str]:
        """The lists that were widened: Slurm's id -> its partitions now."""
        return {update.job_id: update.fields["Partition"] for _, update in self.sent}


def controller_is_active(config: Config) -> bool | None:
    """Whether a controller lives that does it; None where none ever acted, or it was retired."""
    beat = read_heartbeat(config.site.exchange_dir, config.controller_uid)
    if beat is None or beat.mode == "observe":
        return None
    # One that was killed leaves its heartbeat, which others than its host can only wait out.
    killed = beat.host == socket.gethostname() and is_left_behind(beat)
    return beat.mode == "act" and is_fresh(beat, time.time()) and not killed


def active_controller_message(config: Config) -> str:
    """Which controller is active, and until when it is taken for active where it has died."""
    beat, now = read_heartbeat(config.site.exchange_dir, config.controller_uid), time.time()
    if beat is None:
        return "a controller is active"
    return (
        f"a controller on {beat.host} is active (its heartbeat is {max(0.0, now - beat.time):.0f} "
        f"s old); if it has died, run this again in {max(1.0, silent_in_s(beat, now)):.0f} s"
    )


def is_expired(job: Job, steered: Steering, now: float) -> bool:
    """Whether a waiting job still has a list of the controller's that is past its deadline."""
    return (
        job.state is JobState.PENDING
        and job.managed
        and 0 < steered.until <= now
        and "Partition" in steered.was
        and ",".join(job.partitions) == steered.wrote.get("Partition")
    )


Restored = Callable[[Job, Steering, Mapping[str, str]], Mapping[str, str]]
"""Fields that give a job its owner's partitions ->
without the GPU types that its owner excludes."""


def widen(
    cluster: Cluster,
    jobs: Iterable[Job],
    steering: Mapping[str, Steering],
    now: float,
    restored: Restored = lambda job, steered, fields: fields,
) -> Widened:
    """Give jobs whose list is past its deadline the one that they had before it was shortened.

    Waiting tasks that Slurm keeps in one record stay in one.
    """
    late: dict[str, tuple[Job, Update]] = {}
    for job in jobs:
        steered = steering.get(job.id, Steering())
        if is_expired(job, steered, now):
            name = f"{job.array_job_id}_[{job.array_tasks}]" if job.array_tasks else job.id
            fields = restored(job, steered, {"Partition": steered.was["Partition"]})
            if "Partition" in fields:
                late[name] = job, Update(name, dict(fields))
    if not late:
        return Widened()
    updates = [update for _, update in late.values()]
    errors = pending.apply(cluster, [job for job, _ in late.values()], updates, now)
    sent = [one for one, error in zip(late.values(), errors, strict=True) if error is None]
    return Widened(
        sent,
        {
            update.job_id: str(error)
            for update, error in zip(updates, errors, strict=True)
            if error is not None and not _has_begun(error)
        },
    )


def _has_begun(error: SlurmError) -> bool:
    return pending.BEGUN in str(error)
