"""The age in the priority of each waiting job, as Slurm last counted it.

Slurm counts the age of all jobs every PriorityCalcPeriod, and that of one job at each update of it,
be it the owner's (:mod:`slurm_hadar.slurm.waiting_age`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.scheduling.exchange_rule import ExchangeLevel
from slurm_hadar.slurm.waiting_age import AgePriority
from slurm_hadar.slurm.waiting_priorities import CountedPriority

_ROUNDING = 2


def are_needed(jobs: Iterable[Job], age: AgePriority, config: Config, exchanged: bool) -> bool:
    """Whether places may be exchanged, or are (``exchanged``), and jobs gain more by their age in a
    period than what Slurm's rounding makes anyway."""
    level = ExchangeLevel(config.queue.exchange)
    if level is ExchangeLevel.NONE or age.points(age.period_s) < 1:
        return False
    waiting = [one for one in jobs if one.managed and one.state is JobState.PENDING]
    groups = Counter(level.group(one.uid, one.account, one.qos) for one in waiting)
    return exchanged or max(groups.values(), default=0) > 1


def as_counted(
    jobs: Mapping[str, Job], counted: Mapping[int, Iterable[CountedPriority]]
) -> tuple[dict[str, Job], dict[int, float]]:
    """The jobs with the priorities that belong to these ages, where Slurm has counted a job again
    since it was read; and the ages as in :attr:`Observed.counted_ages`."""
    shown, ages = dict(jobs), dict[int, float]()
    for job in jobs.values():
        of_job = list(counted.get(job.raw_id, ()))
        if job.state is not JobState.PENDING or not of_job:
            continue
        nearest = min(of_job, key=lambda one: abs(one.priority - job.priority))
        if abs(nearest.priority - job.priority) > _ROUNDING and job.priority > 1:
            nearest = max(of_job, key=lambda one: one.priority)
            shown[job.id] = replace(job, priority=max(1, nearest.priority))
        ages[job.raw_id] = float(nearest.age)
    return shown, ages


def behind(job: Job, observation: Observation) -> float | None:
    """Points that the job's priority would have more if Slurm counted its age now; None where that
    is not known."""
    counted = observation.counted_ages.get(job.raw_id)
    if counted is None or not job.accrue_s:
        return None
    return observation.age.points(observation.now - job.accrue_s) - counted
