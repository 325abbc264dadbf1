"""The age of a waiting job, and what an update of the job does to its priority.

Slurm computes all priorities every ``PriorityCalcPeriod``, and that of one job at each update of
it, of whatever field: with its age of that moment, while others have theirs of the last time.
Where Slurm enforces limits (``AccountingStorageEnforce``) an update of the partitions, be it of
their order alone, makes it forget since when the job waits, and its priority has no age. Its next
scheduling pass finds the time again, but the priority stays as it is until it is computed anew
(``acct_policy_remove_accrue_time`` and the end of ``_update_job``, read in 22.05.8 and 24.11.5).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.slurm.cluster import Cluster, Update
from slurm_hadar.slurm.times import parse_duration

PASS_S = 15.0
"""Within this Slurm has made a scheduling pass after an update: measured 3 to 8 s."""
_LOOK_S = 2.0
_MOST_S = 30.0
_LEAST_PART = 0.1
"""Of its age that a job may have had in its priority, since Slurm last computed it; less may be a
fair share that has fallen."""
_ENFORCED = ("limits", "safe", "all")


@dataclass(frozen=True)
class AgePriority:
    """``weight`` is the priority that a job gains by waiting for ``most_s`` (seconds) or longer;
    ``period_s``: between two computations of all; ``is_forgotten``: at an update of its
    partitions."""

    weight: int = 0
    most_s: float = inf
    period_s: float = 300.0
    is_forgotten: bool = False

    def points(self, waited_s: float) -> float:
        """Priority of a job that has waited for so many seconds."""
        return self.weight * min(1.0, max(0.0, waited_s) / self.most_s)

    def lost(self, waited_s: float) -> float:
        """Priority that an update of its partitions takes from such a job."""
        return self.points(waited_s) if self.is_forgotten else 0.0

    def in_a_period(self, waited_s: float) -> float:
        """Priority that a job gains at most from one computation of all to the next."""
        return self.points(min(waited_s, self.period_s))


def age_priority(settings: Mapping[str, str]) -> AgePriority:
    """Of a site, by what ``scontrol show config`` says."""
    weight = settings.get("PriorityWeightAge", "")
    if settings.get("PriorityType", "") != "priority/multifactor" or not weight.isdecimal():
        return AgePriority()
    enforced = settings.get("AccountingStorageEnforce", "").lower()
    keeps = "ACCRUE_ALWAYS" in settings.get("PriorityFlags", "").upper()
    return AgePriority(
        int(weight),
        parse_duration(settings.get("PriorityMaxAge", "")) or inf,
        parse_duration(settings.get("PriorityCalcPeriod", "")) or 300.0,
        any(word in enforced for word in _ENFORCED) and not keeps,
    )


def count_again(
    cluster: Cluster,
    sent: Sequence[tuple[Job, Update]],
    say: Callable[[Sequence[str]], None],
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Make Slurm count the age of jobs that got other partitions; takes up to 30 s, and no time
    where none has lost its age.

    ``sent``: the jobs as they were before, with what was sent; ``say`` gets their ids before the
    wait. Returns those of which Slurm has not counted it yet. Raises SlurmError.
    """
    left = {
        update.job_id: (job, update)
        for job, update in sent
        if "Partition" in update.fields and job.state is JobState.PENDING
    }
    low = {id_: job for id_, job in _waiting(cluster, left).items()
           if job.priority < _expected(*left[id_])}  # fmt: skip
    if not low:
        return ()
    age, now = age_priority(cluster.read_config()), time.time()
    half = {
        id_: points / 2
        for id_, job in low.items()
        if (points := age.lost(now - max(job.eligible_s, job.submit_s))) >= 1
        and _expected(*left[id_]) - job.priority >= points * _LEAST_PART
    }
    left = {id_: left[id_] for id_ in half}
    if left:
        say(tuple(left))
    for _ in range(round(_MOST_S / _LOOK_S)):
        if not left:
            break
        sleep(_LOOK_S)
        # What Slurm answers does not matter: the next look shows what became of it.
        cluster.apply([Update(id_, {"Partition": update.fields["Partition"]})
                       for id_, (_, update) in left.items()])  # fmt: skip
        waiting = _waiting(cluster, left)
        left = {id_: left[id_] for id_, job in waiting.items()
                if job.priority < low[id_].priority + half[id_]}  # fmt: skip
    return tuple(left)


def _waiting(cluster: Cluster, sent: Mapping[str, tuple[Job, Update]]) -> dict[str, Job]:
    """Those that wait and are not held, with the partitions that they got: what another user has
    changed since is left alone. By the id that the update named, also an array's."""
    shown = cluster.read_jobs(tuple(sent)) if sent else []
    known = {str(job.raw_id): job for job in shown} | {job.id: job for job in shown}
    return {
        id_: job
        for id_, (_, update) in sent.items()
        if (job := known.get(id_)) is not None
        and job.state is JobState.PENDING
        and job.priority > 0
        and ",".join(job.partitions) == update.fields["Partition"]
    }


def _expected(before: Job, update: Update) -> int:
    """The priority of a job after an update that takes no age from it."""
    nice = update.fields.get("Nice")
    return before.priority if nice is None else before.priority + before.nice - int(nice)
