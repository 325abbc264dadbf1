"""How far the priorities that Slurm shows may be from what they will be at its next count of ages.

Slurm counts the age of all jobs every PriorityCalcPeriod, and that of one job at each update of it
(:mod:`slurm_hadar.slurm.waiting_age`). So an update moves its job by up to :attr:`AgeSlack.points`
more than the Nice in it, until all are counted. A job that gets another's place gets a priority at
least that far from those of other jobs. Where there is no such gap the exchange does not begin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from slurm_hadar.controller.actuation.pending.waiting_line import WaitingJob
from slurm_hadar.controller.observation import counted_ages
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.domain.job import Job

_ROUNDED = 2
"""Points of a period in which a job gains at most one: that, and one for rounding."""
_SENT_S = 5.0
"""An update reaches Slurm so long after the look of its tick, at most."""


@dataclass(frozen=True)
class AgeSlack:
    """``points``: of priority, by which an update now may move a job too far for a time; 0 where
    age counts for nothing. ``period_points``: the same of a whole PriorityCalcPeriod; ``lag``: that
    jobs have gained since Slurm last counted all ages."""

    observation: Observation
    points: int = 0
    period_points: int = 0
    lag: float = 0.0

    @property
    def needed(self) -> bool:
        """Whether jobs gain more in a period than what Slurm's rounding makes anyway."""
        return self.period_points > _ROUNDED

    def are_counted_with_all(self, *jobs: Job) -> bool:
        """Whether Slurm has counted their ages when it last counted all, and not since, as far as
        that matters. One with the most age that counts gains none."""
        if not self.needed:
            return not any(self.observation.steered(job.id).age_lost for job in jobs)
        return all(map(self._is_counted_with_all, jobs))

    def _is_counted_with_all(self, job: Job) -> bool:
        lag = counted_ages.behind(job, self.observation)
        if lag is None:
            return False
        has_most = (
            self.observation.counted_ages[job.raw_id] > self.observation.age.weight - _ROUNDED
        )
        return has_most or lag > self.lag - _ROUNDED

    def place(self, wanted: int, ahead: int | None, behind: int | None) -> int | None:
        """The priority for a job that gets the place ``wanted``, with the next jobs ahead and
        behind of those that it may not pass (None: none); None where the gap is too small."""
        if not self.points:
            return wanted
        most = wanted if ahead is None else min(wanted, ahead - 1 - self.points)
        if behind is None or most > behind:
            return most
        return None if self.needed else wanted


def age_slack(observation: Observation) -> AgeSlack:
    """Of a site."""
    period = observation.age.points(observation.age.period_s)
    if not period:
        return AgeSlack(observation)
    whole = ceil(period) + 1
    waiting = (job for job in observation.jobs.values() if job.may_start_at(observation.now))
    lags = [counted_ages.behind(job, observation) for job in waiting]
    known = [lag for lag in lags if lag is not None]
    if not known:
        return AgeSlack(observation, whole, whole)
    return AgeSlack(
        observation, ceil(max(known) + observation.age.points(_SENT_S)) + 1, whole, max(known)
    )


@dataclass(frozen=True)
class Gaps:
    """The places of the line, and how near other jobs are to them. ``labels``: of each job, as of
    :func:`exchange_group`."""

    line: Sequence[WaitingJob]
    labels: Sequence[object]
    slack: AgeSlack

    def priority(self, at: int) -> int | None:
        """Of another job that gets this place; None where the gap is too small. It stays ahead of
        all places behind."""
        behind = self.line[at + 1].place if self._is_of_tier(at + 1, at) else None
        return self.slack.place(self.line[at].place, self._ahead(at), behind)

    def may_get(self, at: int, job: Job) -> bool:
        """Whether the job may get this place now."""
        return self._are_counted(at, job) and self.priority(at) is not None

    def may_keep(self, at: int, job: Job) -> bool:
        """Whether the job passes no other with this place, or will not with another Nice."""
        return self.has_slack(at, job) or not self._are_counted(at, job) or self.may_get(at, job)

    def has_slack(self, at: int, job: Job) -> bool:
        """Whether the job, which has this place, passes no other at Slurm's next count of ages. It
        gains on others where these have the most age that counts."""
        if not self.slack.needed or at >= len(self.line) or job.priority <= self.line[at].place + 1:
            return True
        ahead = self._ahead(at)
        return ahead is None or job.priority + self.slack.period_points < ahead

    def _are_counted(self, at: int, job: Job) -> bool:
        return self.slack.are_counted_with_all(self.line[at].job, job)

    def _ahead(self, at: int) -> int | None:
        """Priority of the first job ahead with another label."""
        for other in range(at - 1, -1, -1):
            if not self._is_of_tier(other, at):
                break
            if self.labels[other] is None or self.labels[other] != self.labels[at]:
                return self.line[other].place
        return None

    def _is_of_tier(self, other: int, at: int) -> bool:
        if other >= len(self.line):
            return False
        one, two = (
            pending_demand.rank(self.line[n].job, self.slack.observation)[0] for n in (other, at)
        )
        return one == two
