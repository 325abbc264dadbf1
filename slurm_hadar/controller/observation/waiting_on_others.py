"""Waiting jobs that other jobs keep waiting: by a dependency on them (``--dependency``, as Slurm
shows it), or by their share of a limit of Slurm.
"""

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from slurm_hadar.domain.job import Job, JobState

_LIMITS = ("QOS", "Assoc", "Max")
_OF_ONE_JOB = ("PerJob", "PerNode", "PerLimit", "MaxWall", "QOSMin", "NotAllowed", "TimeLimit")
"""Reasons that begin like the first name a limit of a user, an account or a QOS, unless one of the
second is in them: those speak of the size of one job."""
_CONDITION = re.compile(r"(after\w*):([^,?]*)")
_TARGET = re.compile(r"(?:^|:)(\d+(?:_(?:\d+|\*))?)(\+\d+)?")
_ENDS = frozenset({"afterok", "afterany", "afternotok", "aftercorr"})


def is_at_limit(job: Job) -> bool:
    """Whether a limit of its user, account or QOS keeps a job waiting."""
    waits = job.state is JobState.PENDING and job.reason.startswith(_LIMITS)
    return waits and not any(word in job.reason for word in _OF_ONE_JOB)


@dataclass(frozen=True)
class LimitWaiters:
    """Whom a limit may bind -> a job that waits for it."""

    by_group: Mapping[Hashable, str] = field(default_factory=dict)

    def taker(self, job: Job) -> str:
        """A job that waits for a limit which may count ``job``: it starts once ``job`` is requeued,
        and then ``job`` waits for the limit. Empty: none."""
        return next((self.by_group[one] for one in _groups(job) if one in self.by_group), "")


def limit_waiters(jobs: Iterable[Job]) -> LimitWaiters:
    """Those among ``jobs``. Limits on minutes are left to the limits guard, which knows
    what is left of them."""
    found: dict[Hashable, str] = {}
    for job in jobs:
        if is_at_limit(job) and "Minutes" not in job.reason:
            for group in _bound(job):
                found.setdefault(group, job.id)
    return LimitWaiters(found)


def _groups(job: Job) -> tuple[Hashable, ...]:
    return (
        ("qos", job.qos),
        ("qos and user", job.qos, job.uid),
        ("qos and account", job.qos, job.account),
        ("account", job.account),
        ("user", job.uid),
    )


def _bound(job: Job) -> tuple[Hashable, ...]:
    """The groups of jobs that count for the limit that the job waits for, by Slurm's reason."""
    qos, qos_user, qos_account, account, user = _groups(job)
    if job.reason.startswith("QOSGrp"):
        return (qos,)
    if job.reason.startswith("QOS"):
        return (qos_account,) if "Account" in job.reason else (qos_user,)
    # The association of a user, or of an account above it.
    return (account, user) if job.reason.startswith("AssocGrp") else (user,)


@dataclass(frozen=True)
class Dependents:
    """Job, task or array as a dependency names it -> a waiting job that depends on its end
    (``ends``), and one that counts minutes from its start (``counts``: ``after:JOB+MINUTES``);
    ``singletons``: (UID, job name) -> one that waits until no other job has that name."""

    ends: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    singletons: Mapping[tuple[int, str], str] = field(default_factory=dict)

    def on_end(self, job: Job) -> str:
        """A waiting job that starts or never starts by how ``job`` ends; empty: none."""
        found = next((self.ends[name] for name in _names(job) if name in self.ends), "")
        return found or self.singletons.get((job.uid, job.name), "")

    def on_start(self, job: Job) -> str:
        """A waiting job that still counts minutes from the start of ``job``; empty: none."""
        return next((self.counts[name] for name in _names(job) if name in self.counts), "")


def dependents(jobs: Iterable[Job]) -> Dependents:
    """Those among ``jobs``."""
    ends: dict[str, str] = {}
    counts: dict[str, str] = {}
    singletons: dict[tuple[int, str], str] = {}
    for job in jobs:
        waits = job.state is JobState.PENDING and job.reason.startswith("Dependency")
        if job.state is not JobState.PENDING or not (waits or job.dependency):
            continue
        for kind, targets in _CONDITION.findall(job.dependency):
            for name, minutes in _TARGET.findall(targets):
                if kind in _ENDS:
                    ends.setdefault(name, job.id)
                elif kind == "after" and minutes:
                    counts.setdefault(name, job.id)
        # PySlurm leaves a singleton out.
        if "singleton" in job.dependency or not job.dependency:
            singletons.setdefault((job.uid, job.name), job.id)
    return Dependents(ends, counts, singletons)


def _names(job: Job) -> tuple[str, ...]:
    array = str(job.array_job_id)
    return (job.id, str(job.raw_id), *((array, f"{array}_*") if job.array_job_id else ()))
