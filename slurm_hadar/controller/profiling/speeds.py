"""What jobs say of their own speed, into the profiles."""

import sqlite3

from slurm_hadar.controller.journal.last_reports import LastReports
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import distance
from slurm_hadar.controller.snapshot.eligibility import batch_of, placed, profile_key
from slurm_hadar.controller.snapshot.resource_request import may_have_copies
from slurm_hadar.domain.job import JobState
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.rates import Rates


class SpeedLearner:
    """Remembers which reports were learned from already."""

    def __init__(self, rates: Rates, connection: sqlite3.Connection | None = None) -> None:
        """``connection``: of the file that outlives the process; None: nothing does."""
        self._rates = rates
        self._learned = LastReports(connection, "speed")
        # Job -> start of the attempt that was counted: reports of others of its kind come between.
        self._counted = LastReports(connection, "run")

    def read_again(self) -> None:
        """Have what the file holds now, as after a transaction that was undone."""
        self._learned.read_again()
        self._rates.read_again()

    def learn(self, observation: Observation) -> None:
        """Learn from the jobs' own reports: one GPU type at a time, this attempt's speed only."""
        self._learned.forget_others(observation.jobs)
        self._counted.forget_others(observation.jobs)
        self._rates.forget_unused()
        learned, counted = {}, {}
        for id_, progress in observation.progress.items():
            job = observation.jobs[id_]
            kinds = {kind for gpus in placed(job, observation.nodes).values() for kind in gpus}
            new = progress.time - self._learned.of(id_)
            current = job.state is JobState.RUNNING and progress.restarts == job.restarts
            # What copies make together is no speed of that many GPUs side by side.
            current = current and not (len(job.gpus) > 1 and may_have_copies(job))
            if not current or len(kinds) != 1 or progress.rate <= 0 or new <= 0:
                continue
            learned[id_] = progress.time
            kind, window_s = kinds.pop(), min(progress.window_s, new)
            sample = RateSample(
                profile_key(job),
                kind,
                job.gpu_count,
                progress.batch or batch_of(job),
                progress.rate,
                window_s,
                uid=job.uid,
                run=f"{job.id}.{job.restarts}",
                is_known=self._counted.of(id_) == job.start_s,
            )
            if distance.learn(observation, self._rates, job, sample) and self._rates.record(sample):
                counted[id_] = job.start_s
        self._learned.keep(learned)
        self._counted.keep(counted)
