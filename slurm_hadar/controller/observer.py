"""What a tick knows before it decides: Slurm's answers, the jobs' own files, what we did before."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import repair
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.pending import lent_places
from slurm_hadar.controller.idle_training import idle_nodes
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import (
    counted_ages,
    interactive,
    observed,
    rollout,
    steering_store,
)
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.controller.observation.exchange_folder import ExchangeFolder
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.observation.racks import Topology
from slurm_hadar.controller.observation.returned_nodes import REQUEUED, ReturnedNodes
from slurm_hadar.controller.snapshot import billing, chaining
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering, decode
from slurm_hadar.slurm.cluster import Cluster

_LATE_TICKS = 3
"""Within so many intervals a tick sees what Slurm made of the last update."""


class Observer:
    """Reads one cluster, tick after tick."""

    def __init__(
        self, config: Config, cluster: Cluster, store: Store, own_uid: int, racks: bool
    ) -> None:
        """``racks``: whether the policy looks at them."""
        self._config, self._cluster, self._store = config, cluster, store
        self._own_uid = own_uid
        self._topology = Topology(cluster, racks)
        self.rules = AccountingLimits(cluster, config)
        self.folder = ExchangeFolder(config.site.exchange_dir)
        self.returned = ReturnedNodes(store, config.moving.after_return_s)
        self.took_over = False
        """Whether another controller may have acted until now: what it kept is in its files."""
        self.recalled: dict[str, Steering] = {}
        """What is kept of jobs, where another controller may have acted."""
        self.cut: Mapping[str, Steering] = {}
        """What is to be kept of jobs whose lists Slurm cut."""

    def observe(self, now: float) -> Observation:
        """One bulk query of each kind, and the jobs' own files. ``now``: s since the epoch."""
        self.recalled = {}
        observation = observed.read(self._cluster, now, self._config, self._own_uid)
        observation = self._rolled_out(self._with_opted_in(observation))
        self.rules.read(observation.now)
        managed = {job.id: job for job in observation.jobs.values() if job.managed}
        # Jobs that opted out by themselves may still have a Nice of ours, of whatever kind.
        lent = lent_places.remembered(self._store.policy_state(lent_places.NAME))
        with_nice = {*lent.ours, *self._store.changed("Nice")}
        managed |= {id_: observation.jobs[id_] for id_ in with_nice if id_ in observation.jobs}
        said = self.folder.read(observation.jobs.values())
        closed = [one.name for one in observation.partitions.values() if not one.up]
        ours, nice_changed = self._done_before(managed, observation.now, closed)
        nodes = self.returned.applied(observation.nodes, observation.now)
        trainers = {job.id for job in idle_nodes.on_idle_nodes(observation, self._config)}
        jobs = self.returned.later(observation.jobs, observation.now, trainers)
        limited = self.rules.applied(jobs, observation.partitions, ours)
        shown, ages = self._with_ages(limited, bool(lent.ours))
        return Observation(
            now=observation.now,
            jobs=billing.as_billed(shown, observation.partitions, ours),
            nodes=nodes,
            partitions=observation.partitions,
            reservations=observation.reservations,
            progress=said.progress,
            gpus=said.gpus,
            all_reports=said.complete,
            steering=ours,
            nice_changed=nice_changed,
            opted_out=self._before_opt_out(observation.opted_out_jobs(), observation.now),
            racks=self._topology.read(observation.now),
            slurm_version=observation.slurm_version,
            priority_returns=self.rules.ages,
            age=self.rules.age,
            keeps_ages=self.rules.keeps_ages,
            counted_ages=ages,
            in_order=self.rules.in_order,
            preemption=self.rules.preemption,
            billing_rule=self.rules.billing_rule,
            queue_depth=self.rules.queue_depth,
        )

    def _with_ages(
        self, jobs: Mapping[str, Job], exchanged: bool
    ) -> tuple[Mapping[str, Job], Mapping[int, float]]:
        """The jobs, and :attr:`Observed.counted_ages`, by one query where they are needed."""
        if not counted_ages.are_needed(jobs.values(), self.rules.age, self._config, exchanged):
            return jobs, {}
        try:
            return counted_ages.as_counted(jobs, self._cluster.read_priorities())
        except SlurmError:
            return jobs, {}

    def _done_before(
        self, managed: Mapping[str, Job], now: float, closed: Collection[str]
    ) -> tuple[dict[str, Steering], frozenset[str]]:
        """What we did to these jobs, less what another user changed since; and those of which it
        was the Nice."""
        ours = self._with_moves(self._recall(managed))
        open_entries = self._store.open_entries()
        if not steering_store.in_the_job(self._config):
            ours = repair.with_unsent(ours, managed, open_entries)
        since_s = now - _LATE_TICKS * self._config.controller.interval_s
        self.cut = steering_store.cut_lists(ours, managed, closed, since_s)
        ours |= self.cut
        busy = {entry.job for entry in open_entries}
        left = steering_store.without_foreign(ours, managed, self._config, busy, now)
        return left, steering_store.nice_changed(ours, managed, self._config, busy)

    def _before_opt_out(self, jobs: Mapping[str, Job], now: float) -> dict[str, Steering]:
        """What we did to these jobs while they were managed."""
        if steering_store.in_the_job(self._config):
            ours = steering_store.of_jobs(self._config, jobs.values())
        else:
            ours = self._recall(jobs)
        ours = self._with_moves(ours)
        return steering_store.without_foreign(ours, jobs, self._config, (), now)

    def _with_moves(self, ours: dict[str, Steering]) -> dict[str, Steering]:
        if not ours:
            return ours
        # A requeue at the time limit is no move.
        moved = self._store.counts(Kind.MOVE.value, REQUEUED, without=chaining.DETAIL)
        return steering_store.with_moves(ours, moved)

    def _recall(self, jobs: Mapping[str, Job]) -> dict[str, Steering]:
        if steering_store.in_the_job(self._config):
            return observed.remember(jobs)
        found = steering_store.recall(self._config, self._store, jobs, self.took_over)
        self.recalled |= found if self.took_over else {}
        return found

    def _rolled_out(self, observation: Observation) -> Observation:
        """With the jobs that ``[rollout]`` leaves to Slurm, and interactive ones; see
        :mod:`.observation.rollout` and :mod:`.observation.interactive`."""
        settings, guards = self._config.rollout, self._config.guards
        managed = {id_: job for id_, job in observation.jobs.items() if job.managed}
        named = rollout.limited(settings) or any(
            interactive.why(job, guards) for job in managed.values()
        )
        if not named:
            # Others need no look at the state file.
            return replace(observation, jobs=interactive.applied(observation.jobs, guards, ()))
        if steering_store.in_the_job(self._config):
            ours = observed.remember(managed)
        else:
            texts = self._store.steerings(managed)
            ours = {id_: known for id_, text in texts.items() if (known := decode(text))}
        changed = rollout.changed(ours) | {entry.job for entry in self._store.open_entries()}
        # One that was moved or requeued may have its owner's request again.
        requeued = {id_: job for id_, job in managed.items() if job.restarts and id_ not in changed}
        if requeued:
            changed |= self._store.counts(Kind.MOVE.value, REQUEUED).keys() & requeued.keys()
            changed |= rollout.changed(self._recall(requeued))
        jobs = interactive.applied(observation.jobs, guards, changed)
        return replace(observation, jobs=rollout.applied(jobs, settings, changed))

    def _may_be_of_former_group(self, job: Job) -> bool:
        """Whether a waiting job that declared nothing has partitions which we may have given it for
        an opt-in partition that was a group of the site until now."""
        if not self._config.partitions.opt_in or job.declaration is not None or job.nodes:
            return False
        return len(job.partitions) > 1 and job.state is JobState.PENDING

    def _with_opted_in(self, observation: Observation) -> Observation:
        """With the jobs of opt-in partitions that we gave others since."""
        asked = {
            job.id: replace(job, declaration=Declaration())
            for job in observation.jobs.values()
            if observed.may_come_from_opt_in(job, self._config) or self._may_be_of_former_group(job)
        }
        found = {
            id_: observed.opted_in(
                observation.jobs[id_], self._config, ours.was["Partition"].split(",")
            )
            for id_, ours in self._recall(asked).items()
            if "Partition" in ours.was
        }
        return replace(observation, jobs={**observation.jobs, **found}) if found else observation
