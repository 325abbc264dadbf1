"""How much work a user's earlier jobs were, by name and model: what is assumed of the next one
that declares none (as in A-SRPT, by past jobs of the same name, model and user).

Only jobs that Slurm shows as COMPLETED count: one that was cancelled or failed says nothing of how
long it would have been.
"""

import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping

from slurm_hadar.controller.journal.ended_jobs_table import EndedJob, EndedJobsTable
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.assumed_work import EarlierJobs, Likeness, likeness
from slurm_hadar.domain.job import Job, JobState

FORGOTTEN_S = 90 * 86400.0
MOST_ALIKE = 20
"""Jobs of one user, name and model that are kept: the last ones."""
MOST_OF_USER = 1000
MOST = 20_000
"""Jobs that are kept: the last ones of a user, and of all."""


class EarlierJobsLearner:
    """The jobs that ended, in the state file; read once, as one controller writes it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """``connection``: of the open state file."""
        self._table = EndedJobsTable(connection)
        self._kept: dict[str, EndedJob] = {}
        self._alike: dict[Likeness, EarlierJobs] = {}
        self._learned: dict[str, tuple[float, float]] = {}
        """Jobs that Slurm still shows -> end and samples, whether or not they were kept."""
        self.read_again()

    def read_again(self) -> None:
        """Have what the file holds now, as after a transaction that was undone."""
        self._kept = {row.job: row for row in self._table.rows(0.0)}
        self._alike = _by_likeness(self._kept)
        self._learned = {}

    def of(self, now: float) -> Mapping[Likeness, EarlierJobs]:
        """What is known, by user, name and model. ``now``: s since the epoch."""
        if any(row.end_s < now - FORGOTTEN_S for row in self._kept.values()):
            self._drop(now)
        return self._alike

    def learn(self, observation: Observation, attained: Mapping[str, float]) -> None:
        """Take in the managed jobs that ended well. ``attained``: job -> its GPU-seconds.

        A job is shown for some minutes after its end, and its last report may come late.
        """
        added, learned = [], {}
        for job in observation.jobs.values():
            had, report = attained.get(job.id, 0.0), observation.progress.get(job.id)
            # One of a partition that opts jobs in shows no declaration any more.
            ours = job.managed or had > 0
            if not (job.state is JobState.FINISHED and ours and _ended_well(job)):
                continue
            samples = float(report.samples) if report is not None else 0.0
            # Not every tick reads every report.
            samples = max(samples, self._learned.get(job.id, (0.0, 0.0))[1])
            if job.end_s < observation.now - FORGOTTEN_S or not (samples > 0 or had > 0):
                continue
            learned[job.id] = (job.end_s, samples)
            if self._learned.get(job.id) != learned[job.id]:
                added.append(EndedJob(job.id, *likeness(job), samples, had, job.end_s))
        self._learned = learned
        added = [row for row in added if self._kept.get(row.job) != row]
        if not added:
            return
        self._kept |= {row.job: row for row in added}
        removed = self._drop(observation.now)
        kept = [row for row in added if row.job in self._kept]
        self._table.change(kept, removed, observation.now - FORGOTTEN_S)

    def _drop(self, now: float) -> list[str]:
        """Drop what is too old or too much, from memory; which jobs."""
        alike: Counter[Likeness] = Counter()
        by_user: Counter[int] = Counter()
        kept: dict[str, EndedJob] = {}
        for row in sorted(self._kept.values(), key=lambda row: row.end_s, reverse=True):
            alike_as = (row.uid, row.name, row.model)
            room = len(kept) < MOST and by_user[row.uid] < MOST_OF_USER
            if room and alike[alike_as] < MOST_ALIKE and row.end_s >= now - FORGOTTEN_S:
                kept[row.job] = row
                alike[alike_as] += 1
                by_user[row.uid] += 1
        removed = [id_ for id_ in self._kept if id_ not in kept]
        self._kept = kept
        self._alike = _by_likeness(kept)
        return removed


def _by_likeness(rows: Mapping[str, EndedJob]) -> dict[Likeness, EarlierJobs]:
    found: defaultdict[Likeness, list[EndedJob]] = defaultdict(list)
    for row in rows.values():
        found[row.uid, row.name, row.model].append(row)
    return {
        alike_as: EarlierJobs(
            tuple(row.samples for row in some if 0 < row.samples < math.inf),
            tuple(row.gpu_s for row in some if 0 < row.gpu_s < math.inf),
        )
        for alike_as, some in found.items()
    }


def _ended_well(job: Job) -> bool:
    return job.slurm_state.split()[:1] == ["COMPLETED"]
