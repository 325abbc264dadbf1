"""How far the priorities that Slurm shows may be from what they will be at its next count of ages.

Slurm counts the age of all jobs every PriorityCalcPeriod, and that of one job at each update of it
(:mod:`slurm_hadar.slurm.waiting_age`). So an update moves its job by up to :attr:`AgeSlack.points`
more than the Nice in it, until all are counted. A job that gets another's place gets a priority at
least that far from those of other jobs. Where there is no such gap the exchange does not begin.
"""

from dataclasses import dataclass
from math import ceil

from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.domain.job import Job


@dataclass(frozen=True)
class AgeSlack:
    """``points``: of priority, by which an update may move a job too far for a time; 0 where age
    counts for nothing. ``needed``: whether it is more than what Slurm's rounding makes anyway."""

    seen: Observed
    points: int
    needed: bool

    def are_counted_alike(self, *jobs: Job) -> bool:
        """Whether the ages in their priorities are all of one moment, as far as that matters."""
        return all(map(self._is_counted_with_all, jobs))

    def _is_counted_with_all(self, job: Job) -> bool:
        steered = self.seen.steered(job.id)
        if not self.needed and not steered.age_lost:
            return True
        since = max(steered.time, job.submit_s, job.eligible_s)
        return since + self.seen.age.period_s < self.seen.now

    def place(self, wanted: int, ahead: int | None, behind: int | None) -> int | None:
        """The priority for a job that gets the place ``wanted``, with the next jobs ahead and
        behind of those that it may not pass (None: none); None where the gap is too small."""
        if not self.points:
            return wanted
        most = wanted if ahead is None else min(wanted, ahead - 1 - self.points)
        if behind is None or most > behind:
            return most
        return None if self.needed else wanted


def age_slack(seen: Observed) -> AgeSlack:
    """Of a site. A point more than the age of one period, as Slurm drops fractions."""
    gained = seen.age.points(seen.age.period_s)
    return AgeSlack(seen, ceil(gained) + 1 if gained else 0, gained >= 1)
