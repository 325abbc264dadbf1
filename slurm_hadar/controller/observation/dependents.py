"""Waiting jobs that depend on others, by ``--dependency``, as Slurm shows it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_hadar.domain.job import Job, JobState

_CONDITION = re.compile(r"(after\w*):([^,?]*)")
_TARGET = re.compile(r"(?:^|:)(\d+(?:_(?:\d+|\*))?)(\+\d+)?")
_ENDS = frozenset({"afterok", "afterany", "afternotok", "aftercorr"})


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
