"""Changes meant for a job that waits, which must do nothing to one that has begun meanwhile.

Slurm may start a job between our look and our update. Of a running job it refuses what it accepts
for a waiting one, with these exceptions: ReqNodeList (22.05.8, 24.11.5, 26.05.5) and NumNodes
(24.11.5, 26.05.5) are taken for a wish to give nodes back, and the others are cut off with what
trains there; only then the rest of the same update is refused. The memory of a job with an extern
step 26.05.5 seems to change: it says of one without that it would need it.
"""

from collections.abc import Sequence

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job
from slurm_hadar.slurm.cluster import Cluster, Update
from slurm_hadar.slurm.times import at_once, begin_time, set_back

_OF_RUNNING_JOBS = frozenset({"MinMemoryCPU", "MinMemoryNode", "NumNodes", "ReqNodeList"})
"""What some release changes of a running job as well."""
BEGUN = "no longer pending"
"""Slurm's messages about a job that has begun."""
_AHEAD_S = 60
"""A job that begins no sooner is safe: thousands of updates are sent in less. Should we die between
the two updates of one that is not, it begins so much later."""


def apply(
    cluster: Cluster, jobs: Sequence[Job], updates: Sequence[Update], now: float
) -> list[SlurmError | None]:
    """As :meth:`Cluster.apply`, for jobs that waited when they were read.

    ``jobs``: of these updates, in their order; ``now``: s since the epoch. A job that Slurm may
    start at any moment first gets a begin time a minute later, which a running job refuses; only
    where that is accepted it gets the update, which then always says when it begins.
    """
    exposed = [
        index
        for index, (job, update) in enumerate(zip(jobs, updates, strict=True))
        if _OF_RUNNING_JOBS & set(update.fields) and not _waits_on(job, now)
    ]
    answers: list[SlurmError | None] = [None] * len(updates)
    sent = list(updates)
    if exposed:
        later = [Update(updates[i].job_id, {"StartTime": f"now+{_AHEAD_S}"}) for i in exposed]
        for index, error in zip(exposed, cluster.apply(later), strict=True):
            answers[index] = error
            begin = {"StartTime": _begin(jobs[index], now)}
            sent[index] = Update(sent[index].job_id, begin | dict(sent[index].fields))
    left = [index for index, error in enumerate(answers) if error is None]
    found = cluster.apply([sent[index] for index in left]) if left else []
    for index, error in zip(left, found, strict=True):
        answers[index] = error
    return answers


def _waits_on(job: Job, now: float) -> bool:
    return job.eligible_s > now + _AHEAD_S and not set_back(job, now)


def _begin(job: Job, now: float) -> str:
    """When it would have begun without us."""
    ahead = job.eligible_s > now and not set_back(job, now)
    return begin_time(job.eligible_s) if ahead else at_once(job, now)
