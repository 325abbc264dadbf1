"""One tick: observe, decide, act."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType

from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import (
    apply,
    confirm_exchange,
    lent_places,
    mails,
    moves,
    priority_exchange,
    queue_head,
    reconciliation,
    repair,
)
from slurm_hadar.controller.actuation.actions import Kind, MoveBudget, PlanDiff, diff
from slurm_hadar.controller.actuation.hints import hints
from slurm_hadar.controller.actuation.lent_places import Memory
from slurm_hadar.controller.actuation.minute_guard import MinuteGuard
from slurm_hadar.controller.actuation.move_steps import MOVED, NOT_SAVED
from slurm_hadar.controller.actuation.priority_exchange import NewPlaces
from slurm_hadar.controller.backfill import backfill, idle_nodes
from slurm_hadar.controller.backfill.backfill import BackfillPlan
from slurm_hadar.controller.backoff import Backoff
from slurm_hadar.controller.decided import decisions
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.lock import SETTLE_S, me, rival, taken_over, takes_over
from slurm_hadar.controller.observation import observed, rollout, steering_store
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.controller.observation.exchange_folder import ExchangeFolder
from slurm_hadar.controller.observation.lost_gpus import LostGpus
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.observation.racks import Topology
from slurm_hadar.controller.observation.returned_nodes import REQUEUED, ReturnedNodes
from slurm_hadar.controller.profiling.declared_work import DeclaredWork
from slurm_hadar.controller.profiling.gpu_use import GpuUseLearner
from slurm_hadar.controller.profiling.speeds import SpeedLearner
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.snapshot import bills, forks, newcomers, staying
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory, Place
from slurm_hadar.controller.snapshot.view_builder import Snapshot, take_snapshot
from slurm_hadar.controller.snapshot.work import explained
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.steering import Steering, decode
from slurm_hadar.domain.view import State
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.exchange.prices import write_prices
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.slurm.cluster import Cluster

_BACKFILL = "backfill"
"""Under this name the store keeps what backfill remembers."""
_KEEP_S = 30 * 86400.0
"""How long closed entries of the journal are kept."""


class Controller:
    """Reads, decides and acts on one cluster. The caller holds the lock of the state folder."""

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        store: Store,
        rates: Rates,
        own_uid: int,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        decide: policies.Decide | None = None,
    ) -> None:
        """``decide``: another policy than the one that the configuration names."""
        self.config = config
        self.cluster = cluster
        self.store = store
        self.rates = rates
        self.own_uid = own_uid
        self._clock = clock
        self._sleep = sleep
        policy = policies.find(config.controller.policy)
        self._decide = decide or policy.decide
        self.speeds = SpeedLearner(rates, store.connection)
        self._topology = Topology(cluster, policies.Trait.RACKS in policy.uses)
        self.rules = AccountingLimits(cluster, config)
        self._took_over = False
        self._room = True
        self._folder = ExchangeFolder(config.site.exchange_dir)
        self.gpus = GpuUseLearner(store.connection)
        self.declared_work = DeclaredWork(store.connection)
        self._lost_gpus = LostGpus()
        self._returned = ReturnedNodes(store, config.moving.after_return_s)
        self.backoff = Backoff(config, cluster.traffic, store)

    def tick(self) -> TickReport:
        """One pass. In observe mode, under the stop file or beside another controller that acts,
        it changes nothing in Slurm. Whether it is time for one, see ``backoff``."""
        with self.backoff.tick():
            self.rules.refuse_slurm_user(self._clock())
            return self._tick()

    def _tick(self) -> TickReport:
        other = rival(self.config, self._clock())
        if other is not None:
            why = f"a controller on {other} is active; running read-only"
            return self._pass(False, (why,))
        may_act, why_not = self._may_act()
        mode = "act" if may_act else "observe"
        folder = self.config.site.exchange_dir
        self._took_over = may_act and takes_over(self.config, self._clock())
        try:
            write_heartbeat(
                folder, mode, self.backoff.interval_s, self._room, me(self.config).identity
            )
        except OSError as error:
            raise HadarError(
                f"the heartbeat in {folder} cannot be written ({error.strerror}); see hadar check"
            ) from None
        if self._took_over:
            self._sleep(SETTLE_S)
            other = rival(self.config, self._clock())
            if other is not None:
                why = f"a controller on {other} took over at the same time; running read-only"
                return self._pass(False, (why,))
            self._folder.remove_unfinished()
        report = self._pass(may_act, (why_not,) if why_not else ())
        tidied = self._folder.tidy(report.seen.jobs.values(), self._clock(), self._seen_since)
        return replace(report, said=(*report.said, *tidied))

    def _seen_since(self, time_s: float) -> list[str]:
        with self.store.readable_errors():
            decided = self.store.decisions().values()
        return [one.job for one in decided if one.time_s >= time_s]

    def plan(self) -> TickReport:
        """What a tick would do and why; nothing is changed and nothing is kept."""
        return self._pass(False, (), keep=False)

    def _may_act(self) -> tuple[bool, str]:
        if self.config.site.mode != "act":
            return False, "observe mode: nothing is changed (site.mode)"
        stop = self.config.guards.stop_file
        try:
            stop.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True, ""
        except OSError as error:
            return False, f"{stop} cannot be looked for ({error.strerror}): nothing is changed"
        return False, f"{stop} exists: nothing is changed"

    def _stopped(self) -> str:
        """Why nothing more may be sent since the tick began: it may have taken longer than a
        heartbeat lasts. Empty where all is as it was."""
        # By the clock that the heartbeat was written with.
        return taken_over(self.config, time.time()) or self._may_act()[1]

    def _pass(self, may_act: bool, said: tuple[str, ...], keep: bool = True) -> TickReport:
        with self.store.readable_errors():
            report = self._whole_pass(may_act, said, keep)
            if keep:
                self.store.opening_reported()
            return report

    def _whole_pass(self, may_act: bool, said: tuple[str, ...], keep: bool) -> TickReport:
        before = Counter(self.cluster.queries)
        at = time.perf_counter()
        seen = self.observe()
        context = apply.ActionContext(
            self.cluster,
            self.store,
            self.config,
            seen.nodes,
            self._clock,
            self.rules.ages,
            lambda: taken_over(self.config, time.time()),
        )
        words, late = list(said), list[str]()
        sent: Mapping[str, Place] = {}
        if keep:
            words += self._of_the_opening(seen)
        if keep:
            # First: of what this tick sends nothing can be seen yet.
            late = reconciliation.reconcile(self.store, seen, self.config.moving.commit_s)
            words += self._lost_gpus.news(seen.nodes.values(), seen.jobs.values())
        # Reading may have taken longer than a heartbeat lasts.
        stopped = self._stopped() if may_act else ""
        if may_act and not stopped:
            repair.count_late_moves(context, seen, late)
            words += repair.resume_saved(context, seen)
            step = moves.advance(context, seen.jobs, seen.progress, seen.now)
            sent = step.sent
            words += step.said
            repair.keep_owners_changes(context, seen)
            repair.close_interrupted(context, seen)
            words += repair.release_failed_launches(context, seen)
            words += repair.undo_impossible_placements(context, seen)
        had: Mapping[str, float] = {}
        attained: Mapping[str, float] = {}
        if keep:
            # One write to the disk for all jobs.
            with self.store.transaction():
                self.speeds.learn(seen)
                self.gpus.learn(seen)
            had = self.store.attained(seen.jobs)
            attained = self._serve(seen)
        trainers = idle_nodes.on_idle_nodes(seen, self.config)
        # They give way to all others, so the policy does not see them.
        others = idle_nodes.without(seen, trainers)
        past = self._past(sent, attained)
        shown = take_snapshot(others, self.config, self.rates, past)
        words += shown.faults
        refusals = apply.refusals(self.store)
        refused_now = {job for job, known in refusals.items() if not known.over(seen.now)}
        shown = priority_exchange.in_own_places(shown, others, self._lent(), refused_now)
        if keep:
            jobs = [target.job for target in shown.schedulable.values()]
            self.declared_work.learn(jobs, shown.work, had, seen.now)
        read_s, at = time.perf_counter() - at, time.perf_counter()
        name = self.config.controller.policy
        plan, state = self._decide(shown.view, self.store.policy_state(name))
        plan = staying.explained(forks.carried_out(plan, shown.view), shown.staying)
        # What is said of its owner's declarations stands in no file that others may read.
        explained_plan = explained(plan, shown.view.jobs.ids, shown.work)
        self._room = queue_head.has_capacity(others)
        decide_s, at = time.perf_counter() - at, time.perf_counter()
        guard = MinuteGuard(self.cluster, self.rules, seen, self.config, tuple(past.moving))
        budget = self._move_budget(seen, guard)
        means = diff(shown, plan, others, self.config, budget)
        places = self._exchange(shown, plan, others, refused_now)
        hinted = hints(shown, plan, others, self.config, refusals, places.nices)
        hinted += lent_places.given_back(self._lent(), others)
        idle = self._backfill(seen, trainers, past, shown, means, budget.left)
        requeued = means.of(Kind.MOVE, Kind.STOP)
        idle = idle.without(guard.refused([*requeued, *idle.of(Kind.MOVE, Kind.STOP)]))
        means = PlanDiff(
            (*hinted, *means.actions, *idle.actions), {**means.deferred, **idle.deferred}
        )
        if keep:
            self._keep(name, state, seen, shown, explained_plan, means, idle)
            if may_act and not stopped:
                self.store.keep_policy_state(lent_places.NAME, lent_places.as_state(places.memory))
        refused: frozenset[str] = frozenset()
        stopped = stopped or (self._stopped() if may_act else "")
        if stopped:
            words.append(f"nothing more is sent: {stopped}")
        elif may_act:
            words += self._publish(seen, shown)
            done = self._act(context, means, seen, shown)
            words += done.said
            refused = done.refused
        after = Counter(self.cluster.queries)
        after.subtract(before)
        return TickReport(
            seen=seen,
            snapshot=shown,
            plan=explained_plan,
            diff=means,
            acted=may_act and not stopped,
            backfill=idle,
            said=tuple(words),
            queries={kind: number for kind, number in after.items() if number},
            refused=refused,
            private=self.rules.private,
            understated=past.understated,
            read_s=read_s,
            decide_s=decide_s,
            act_s=time.perf_counter() - at,
        )

    def _publish(self, seen: Observed, shown: Snapshot) -> list[str]:
        """Today's prices, for ``hbatch``. A word for the operator where that is not possible."""
        folder, interval_s = self.config.site.exchange_dir, self.backoff.interval_s
        try:
            groups = self.config.partitions.groups.values()
            nodes = newcomers.largest_nodes(seen, {name for some in groups for name in some})
            types, arriving = {}, 0
            if not newcomers.is_private(seen, self.rules.jobs_are_hidden):
                prices = newcomers.type_prices(seen, shown)
                types = {kind: asdict(price) for kind, price in prices.items()}
                arriving = newcomers.arriving(seen, interval_s)
            write_prices(folder, types, arriving, interval_s, nodes)
        except OSError as error:
            return [f"the prices in {folder} cannot be written ({error.strerror})"]
        return []

    def _exchange(
        self, shown: Snapshot, plan: Plan, seen: Observed, refused: Collection[str]
    ) -> NewPlaces:
        if not self.rules.ages:
            return NewPlaces()
        return priority_exchange.exchange(shown, plan, seen, self.config, self._lent(), refused)

    def _lent(self) -> Memory:
        return lent_places.remembered(self.store.policy_state(lent_places.NAME))

    def _of_the_opening(self, seen: Observed) -> list[str]:
        words = list(self.store.notes)
        # Of a new installation no job can tell.
        if self.store.new and seen.steering:
            words.append("the state file was lost; its content is read from Slurm again")
        return words

    def observe(self) -> Observed:
        """One bulk query of each kind, and the jobs' own files."""
        seen = observed.read(self.cluster, self._clock(), self.config, self.own_uid)
        seen = self._rolled_out(self._with_opted_in(seen))
        self.rules.read(seen.now)
        managed = {job.id: job for job in seen.jobs.values() if job.managed}
        # Jobs that opted out by themselves may still have a Nice of ours.
        managed |= {id_: seen.jobs[id_] for id_ in self._lent().ours if id_ in seen.jobs}
        said = self._folder.read(seen.jobs.values())
        ours = self._recall(managed)
        ours = steering_store.with_moves(ours, self.store.counts(Kind.MOVE.value, REQUEUED))
        open_entries = self.store.open_entries()
        if not steering_store.in_the_job(self.config):
            ours = repair.with_unsent(ours, managed, open_entries)
        busy = {entry.job for entry in open_entries}
        ours = steering_store.without_foreign(ours, managed, self.config, busy, seen.now)
        nodes = self._returned.applied(seen.nodes, seen.now)
        trainers = {job.id for job in idle_nodes.on_idle_nodes(seen, self.config)}
        jobs = self._returned.later(seen.jobs, seen.now, trainers)
        return Observed(
            now=seen.now,
            jobs=bills.as_billed(
                self.rules.applied(jobs, seen.partitions, ours), seen.partitions, ours
            ),
            nodes=nodes,
            partitions=seen.partitions,
            reservations=seen.reservations,
            progress=said.progress,
            gpus=said.gpus,
            steering=ours,
            racks=self._topology.read(seen.now),
            in_order=self.rules.in_order,
        )

    def _recall(self, jobs: Mapping[str, Job]) -> dict[str, Steering]:
        if steering_store.in_the_job(self.config):
            return observed.remember(jobs)
        return steering_store.recall(self.config, self.store, jobs, self._took_over)

    def _rolled_out(self, seen: Observed) -> Observed:
        """With the jobs that ``[rollout]`` leaves to Slurm; see :mod:`.observation.rollout`."""
        if not rollout.limited(self.config.rollout):
            return seen
        managed = {id_: job for id_, job in seen.jobs.items() if job.managed}
        if steering_store.in_the_job(self.config):
            ours = observed.remember(managed)
        else:
            texts = self.store.steerings(managed)
            ours = {id_: known for id_, text in texts.items() if (known := decode(text))}
        changed = rollout.changed(ours) | {entry.job for entry in self.store.open_entries()}
        return replace(seen, jobs=rollout.applied(seen.jobs, self.config.rollout, changed))

    def _with_opted_in(self, seen: Observed) -> Observed:
        """With the jobs of opt-in partitions that we gave others since."""
        asked = {
            job.id: replace(job, declaration=Declaration())
            for job in seen.jobs.values()
            if observed.sent_on_from_opt_in(job, self.config)
        }
        found = {
            id_: observed.opted_in(seen.jobs[id_], self.config, ours.was["Partition"].split(","))
            for id_, ours in self._recall(asked).items()
            if "Partition" in ours.was
        }
        return replace(seen, jobs={**seen.jobs, **found}) if found else seen

    def snapshot(
        self,
        seen: Observed,
        sent: Mapping[str, Place] = MappingProxyType({}),
        attained: Mapping[str, float] = MappingProxyType({}),
    ) -> Snapshot:
        """What the policy sees. ``sent``: jobs just released -> where they go."""
        others = idle_nodes.without(seen, idle_nodes.on_idle_nodes(seen, self.config))
        return take_snapshot(others, self.config, self.rates, self._past(sent, attained))

    def _move_budget(self, seen: Observed, guard: MinuteGuard) -> MoveBudget:
        recent = self.store.counts_since(Kind.MOVE.value, seen.now - 3600)
        by_user: Counter[int] = Counter()
        for id_, number in recent.items():
            if id_ in seen.jobs:
                by_user[seen.jobs[id_].uid] += number
        left = self.config.guards.max_moves_per_hour - sum(recent.values())
        return MoveBudget(left, by_user, guard.refused)

    def _past(self, sent: Mapping[str, Place], attained: Mapping[str, float]) -> ControllerHistory:
        going = {**moves.destinations(self.store.open_entries()), **sent}
        return ControllerHistory(
            attained,
            going,
            self.store.last_times(Kind.MOVE.value),
            Counter(self.store.counts_after(Kind.MOVE.value, NOT_SAVED, MOVED))
            + Counter(self.store.counts_in_vain(Kind.MOVE.value)),
            self.declared_work.factors(self._clock()),
        )

    def _backfill(
        self,
        seen: Observed,
        trainers: list[Job],
        past: ControllerHistory,
        shown: Snapshot,
        means: PlanDiff,
        hour_left: int,
    ) -> BackfillPlan:
        going = [a.placement for a in means.of(Kind.MOVE) if a.placement is not None]
        going += [
            Placement({kind: n for gpus in t.held.values() for kind, n in gpus.items()}, t.held)
            for t in shown.schedulable.values()
            if t.starting
        ]
        left = min(hour_left, self.config.guards.max_moves_per_tick)
        return backfill.decide(
            seen,
            trainers,
            self.config,
            self.rates,
            past,
            going,
            apply.refusals(self.store),
            self.store.policy_state(_BACKFILL),
            left - len(means.of(Kind.MOVE, Kind.STOP)),
        )

    def _serve(self, seen: Observed) -> dict[str, float]:
        running = {
            job.id: (job.gpu_count, job.start_s)
            for job in seen.jobs.values()
            if job.managed and job.state is JobState.RUNNING
        }
        return self.store.serve(running, seen.now, seen.jobs)

    def _keep(
        self,
        name: str,
        state: State,
        seen: Observed,
        shown: Snapshot,
        plan: Plan,
        means: PlanDiff,
        idle: BackfillPlan,
    ) -> None:
        self.store.keep_policy_state(name, state)
        if idle.state:
            self.store.keep_policy_state(_BACKFILL, idle.state)
        self._returned.keep()
        self.store.decide(decisions(seen, shown, plan, means, idle))
        self.store.forget(seen.now - _KEEP_S)

    def _act(
        self, context: apply.ActionContext, means: PlanDiff, seen: Observed, shown: Snapshot
    ) -> apply.Sent:
        hinted, later = mails.still_ours(context, means.of(Kind.HINT), seen.steering)
        hinted, unsent = confirm_exchange.unchanged_since_observed(context, hinted)
        done = apply.send_hints(context, hinted, seen.now)
        sent = [apply.Sent(refused=later), unsent, done]
        sent.append(confirm_exchange.confirm(context, hinted, done.refused))
        for action in means.of(Kind.MOVE, Kind.STOP):
            progress = seen.progress.get(action.job.id)
            current = progress is not None and progress.restarts == action.job.restarts
            in_step = progress.in_step if progress is not None and current else None
            hopes = reconciliation.expected_effect(shown, action, progress)
            sent.append(apply.ask_to_save(context, action, in_step, self._clock(), hopes))
        settled = moves.settle(context, seen.jobs, self._clock, self._sleep, self._stopped)
        return apply.Sent(
            (*(words for one in sent for words in one.said), *settled),
            frozenset().union(*(one.refused for one in sent)),
        )
