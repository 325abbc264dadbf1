"""What the controller learns from one tick to the next, and gives to the next snapshot."""

import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.move_steps import FAILED, MOVED, REFUSED
from slurm_hadar.controller.actuation.running import moves
from slurm_hadar.controller.journal.last_reports import LastReports
from slurm_hadar.controller.journal.store import AttainedTime, Store
from slurm_hadar.controller.journal.work_tables import ASSUMED
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.profiling.gpu_use import GpuUseLearner
from slurm_hadar.controller.profiling.users_work import (
    DeclaredWork,
    EarlierJobsLearner,
    of_assumed,
)
from slurm_hadar.controller.snapshot import chaining, distance
from slurm_hadar.controller.snapshot.eligibility import (
    ControllerHistory,
    Place,
    batch_of,
    placed,
    profile_key,
)
from slurm_hadar.controller.snapshot.resource_request import may_have_copies
from slurm_hadar.controller.snapshot.restart_costs import RestartCosts
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.job import JobState
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.rates import Rates

ARRIVAL = "arrival_s"
"""Under this name the entry of a move has when its job was submitted: the requeue replaces that."""
NO_TIME = AttainedTime({}, {})
"""Of a pass that keeps nothing."""


class Learning:
    """Speeds, GPU samples, and the work of jobs, declared, assumed and received; in the state
    file."""

    def __init__(self, store: Store, rates: Rates) -> None:
        """``rates``: what is learned of speeds is added there."""
        self._store = store
        self.speeds = SpeedLearner(rates, store.connection)
        self.gpus = GpuUseLearner(store.connection)
        self.declared_work = DeclaredWork(store.connection)
        self.assumed_work = DeclaredWork(store.connection, ASSUMED)
        self.earlier_jobs = EarlierJobsLearner(store.connection)

    def learn(self, observation: Observation) -> AttainedTime:
        """Take in what the jobs report, and what ended. Returns their GPU-seconds before and
        now. Raises sqlite3.Error, and has in memory what the file holds then."""
        try:
            return self._learn(observation)
        except BaseException:
            with suppress(sqlite3.Error):
                for learner in (self.speeds, self.gpus, self.earlier_jobs):
                    learner.read_again()
            raise

    def _learn(self, observation: Observation) -> AttainedTime:
        # One write to the disk for all jobs.
        with self._store.transaction():
            self.speeds.learn(observation)
            self.gpus.learn(observation)
        running = {
            job.id: (job.gpu_count, job.start_s)
            for job in observation.jobs.values()
            if job.managed and job.state is JobState.RUNNING
        }
        received = self._store.serve(running, observation.now, observation.jobs)
        self.earlier_jobs.learn(observation, received.now)
        return received

    def learn_work(self, shown: Snapshot, received: AttainedTime, now: float) -> None:
        """Take in how much more the jobs of a snapshot needed than was declared or assumed of
        them; ``now``: s since the epoch."""
        jobs = [target.job for target in shown.schedulable.values()]
        self.declared_work.learn(jobs, shown.work, received.before, now)
        self.assumed_work.learn(*of_assumed(jobs, shown.work), received.before, now)

    def history(
        self, sent: Mapping[str, Place], attained: Mapping[str, float], now: float
    ) -> ControllerHistory:
        """What a snapshot takes from the past. ``sent``: jobs just released -> where they go;
        ``attained``: job -> GPU-seconds; ``now``: s since the epoch."""
        store, move = self._store, Kind.MOVE.value
        failed = {outcome: store.counts_after(move, outcome, MOVED) for outcome in FAILED}
        return ControllerHistory(
            attained=attained,
            moving={**moves.destinations(store.open_entries()), **sent},
            last_moves=store.last_times(move),
            failed_moves=sum(
                (Counter(counts) for counts in failed.values()),
                Counter(store.counts_in_vain(move)),
            ),
            refused_moves=failed[REFUSED],
            understated=self.declared_work.trust_factors(now),
            chains=chaining.records(store.entries_with(move, chaining.DETAIL)),
            earlier=self.earlier_jobs.of(now),
            outgrown=self.assumed_work.trust_factors(now),
            restarts=RestartCosts(store.restarts.means()),
            arrivals=store.least_details(move, ARRIVAL),
        )


class SpeedLearner:
    """Takes what jobs say of their own speed into the profiles, and remembers which reports were
    learned from already."""

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
