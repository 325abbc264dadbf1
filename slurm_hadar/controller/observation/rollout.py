"""Which of the jobs that opted in a site has managed while it tries that (``[rollout]``)."""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from slurm_hadar.config import Rollout
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.steering import Steering

_PARTS = 1_000_000
_OUTSIDE = "outside the rollout"


def limited(rollout: Rollout) -> bool:
    """Whether any job may be outside."""
    return bool(rollout.accounts or rollout.users) or rollout.percent < 100


def changed(ours: Mapping[str, Steering]) -> set[str]:
    """The jobs that the controller has changed: their request, or where they ran. ``ours``: what
    is known of each."""
    return {id_ for id_, known in ours.items() if known.was or known.gpus or known.moves}


def applied(jobs: Mapping[str, Job], rollout: Rollout, ours: Collection[str]) -> dict[str, Job]:
    """The jobs, with why the site leaves each alone that is outside.

    ``ours``: jobs that we have changed already: they stay managed to their end, or nothing would
    restore what was changed, nor requeue them at the next end of their time limit.
    """
    if not limited(rollout):
        return dict(jobs)
    return {
        id_: replace(job, outside=why)
        if job.managed and id_ not in ours and (why := outside(job, rollout))
        else job
        for id_, job in jobs.items()
    }


def outside(job: Job, rollout: Rollout) -> str:
    """Why a job is outside, as a sentence; empty where it is inside."""
    if rollout.accounts or rollout.users:
        named = job.account in rollout.accounts or job.user in rollout.users
        if not named:
            return f"{_OUTSIDE}: neither its account nor its user is named in [rollout]"
    if share(job) >= rollout.percent:
        return f"{_OUTSIDE}: {rollout.percent:g}% of jobs are managed (rollout.percent)"
    return ""


def share(job: Job) -> float:
    """Where a job stands between 0 and 100, always the same for a job and for all tasks of an
    array, requeued or not; numbers that follow each other are spread evenly."""
    number = job.array_job_id or job.raw_id
    digest = hashlib.sha256(f"slurm-hadar {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _PARTS * 100 / _PARTS


def description(rollout: Rollout, jobs: Iterable[Job]) -> str:
    """What ``hadar status`` shows of it with these jobs; empty where all jobs are managed."""
    if not limited(rollout):
        return ""
    number = sum(job.outside.startswith(_OUTSIDE) for job in jobs)
    parts = [f"accounts {','.join(rollout.accounts)}"] if rollout.accounts else []
    parts += [f"users {','.join(rollout.users)}"] if rollout.users else []
    parts += [f"{rollout.percent:g}% of jobs"] if rollout.percent < 100 else []
    return f"{' and '.join(parts)}; {number} that opted in not steered by this"
