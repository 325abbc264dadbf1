"""When Slurm last counted the ages of all waiting jobs, as far as the ticks have seen it.

Slurm does not say it. But where jobs gain a point or more from one count to the next
(PriorityCalcPeriod), most priorities differ between two ticks if there was one in between.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.domain.job import Job, JobState

_MOST_JOBS = 50
_LEAST_JOBS = 2
"""One alone may have been updated by its owner."""


@dataclass(frozen=True)
class AgeCounts:
    """``looked_s``: when the last tick looked; ``after_s``: Slurm has counted since then, 0 where
    that is not known; both s since the epoch. ``priorities``: job -> what the last tick saw."""

    looked_s: float = 0.0
    after_s: float = 0.0
    priorities: Mapping[str, int] = field(default_factory=dict)


def watched(known: AgeCounts, seen: Observed) -> AgeCounts:
    """What is known with this tick's look."""
    shown: dict[str, int] = {}
    for job in seen.jobs.values():
        if len(shown) < _MOST_JOBS and _gains(job, seen):
            shown[job.id] = job.priority + job.nice
    both = [
        id_
        for id_ in shown.keys() & known.priorities.keys()
        if seen.steered(id_).time < known.looked_s
    ]
    changed = sum(shown[id_] != known.priorities[id_] for id_ in both)
    counted = len(both) >= _LEAST_JOBS and 2 * changed > len(both)
    return AgeCounts(seen.now, known.looked_s if counted else known.after_s, shown)


def _gains(job: Job, seen: Observed) -> bool:
    """Whether a job waits and gains priority by it."""
    waited_s = seen.now - max(job.submit_s, job.eligible_s)
    waits = job.state is JobState.PENDING and not job.held and job.priority > 1
    return waits and job.may_start_at(seen.now) and waited_s < seen.age.most_s
