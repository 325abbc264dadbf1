"""Priorities of waiting jobs with their ages counted up to one moment.

What Slurm shows has the age of each job as last counted: that of most at its last computation of
all priorities, that of a job that was updated since at its update
(:mod:`slurm_hadar.slurm.waiting_age`). So two priorities that it shows are not compared as they
will be after its next computation, and an update of a job moves it by more than the Nice in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.slurm.waiting_priorities import CountedPriority

ROUNDING = 2
"""Points by which a priority that is computed so may be off: Slurm drops fractions of both."""


def gained(job: Job, seen: Observed, at_s: float) -> float:
    """Points that the job's priority would have more if its age were counted at that time (s since
    the epoch). 0 where the age in it is not known, or Slurm counts none."""
    counted = (seen.counted_ages or {}).get(job.raw_id)
    since_s = job.accrue_s
    if not since_s and seen.steered(job.id).age_lost:
        # An update of ours made Slurm forget it, until its next pass.
        since_s = max(job.eligible_s, job.submit_s)
    if counted is None or not since_s:
        return 0.0
    return seen.age.points(at_s - since_s) - counted


def next_computation(seen: Observed) -> float:
    """When Slurm next computes all priorities, at the latest; s since the epoch."""
    age, now = seen.age, seen.now
    if not seen.counted_ages or not age.weight:
        return now
    per_point = age.most_s / age.weight
    counted = [
        job.accrue_s + points * per_point
        for job in seen.jobs.values()
        if job.accrue_s
        and (points := seen.counted_ages.get(job.raw_id)) is not None
        and points < age.weight
    ]
    # Each was counted then, or later.
    return min(max(min(counted, default=now) + age.period_s, now), now + age.period_s)


def as_counted(
    jobs: Mapping[str, Job], counted: Mapping[int, Iterable[CountedPriority]]
) -> tuple[dict[str, Job], dict[int, float]]:
    """The jobs with the priorities that belong to these ages, where Slurm has counted a job again
    since it was read; and Slurm's own number of a job -> the age in its priority, points."""
    shown, ages = dict(jobs), dict[int, float]()
    for job in jobs.values():
        of_job = list(counted.get(job.raw_id, ()))
        if job.state is not JobState.PENDING or not of_job:
            continue
        nearest = min(of_job, key=lambda one: abs(one.priority - job.priority))
        ages[job.raw_id] = float(nearest.age)
        if abs(nearest.priority - job.priority) > ROUNDING and job.priority > 1:
            highest = max(of_job, key=lambda one: one.priority)
            ages[job.raw_id] = float(highest.age)
            shown[job.id] = replace(job, priority=max(1, highest.priority))
    return shown, ages
