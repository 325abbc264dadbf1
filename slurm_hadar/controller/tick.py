"""One tick: observe, snapshot, decide, diff, record, apply."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.controller import price_file
from slurm_hadar.controller.actuation import action_outcomes, apply, repair
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.apply import ActionContext, Sent
from slurm_hadar.controller.actuation.destinations import surplus
from slurm_hadar.controller.actuation.pending import (
    age_after_list_update,
    confirm_exchange,
    lent_places,
    list_updates,
    priority_exchange,
    queue_head,
)
from slurm_hadar.controller.actuation.plan_diff import PlanDiff
from slurm_hadar.controller.actuation.running import (
    chain_requeues,
    idle_allocations,
    mail_type,
    moves,
    recheck_before_requeue,
)
from slurm_hadar.controller.actuation.running.limits_guard import LimitsGuard
from slurm_hadar.controller.announcements import Announcements
from slurm_hadar.controller.backoff import Backoff
from slurm_hadar.controller.decider import BACKFILL, Changes, Decider, PolicyAnswer
from slurm_hadar.controller.decision_records import decisions
from slurm_hadar.controller.idle_training import idle_nodes
from slurm_hadar.controller.journal import tick_fault
from slurm_hadar.controller.journal.entry import Decision, Entry
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.leadership import Leadership
from slurm_hadar.controller.learning import ARRIVAL, NO_TIME, Learning
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.observer import Observer
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.snapshot.eligibility import Place
from slurm_hadar.controller.snapshot.view_builder import Snapshot, take_snapshot
from slurm_hadar.controller.snapshot.work import with_sentences
from slurm_hadar.controller.tick_context import TickContext
from slurm_hadar.domain import steering
from slurm_hadar.domain.errors import HadarError, SlurmError, UsageError
from slurm_hadar.domain.job import Job
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.slurm.cluster import Cluster

_KEEP_S = 30 * 86400.0
"""How long closed entries of the journal are kept."""
_LOOK_AGAIN_S = 5.0
"""Where Slurm takes longer to show all, a tick looks once, and moves that are ripe wait for the
next."""


@dataclass(frozen=True)
class _Mode:
    """``may_act``: whether this pass may send anything to Slurm; ``keep``: whether it is a tick,
    which remembers what it saw, and no plan."""

    may_act: bool
    keep: bool = True


class _Stopwatch:
    """Seconds from lap to lap."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        passed, self._at = now - self._at, now
        return passed


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
        try:
            policy = policies.find(config.controller.policy)
        except UsageError as error:
            raise UsageError(f"controller.policy: {error}") from None
        racks = policies.Trait.RACKS in policy.uses
        self._observer = Observer(config, cluster, store, own_uid, racks)
        self.rules = self._observer.rules
        self._decider = Decider(config, cluster, store, self.rules, decide or policy.decide)
        with store.readable_errors():
            self.learning = Learning(store, rates)
        self.gpus = self.learning.gpus
        self._has_capacity = True
        self._read_s = 0.0
        self._leadership = Leadership(config, store, sleep)
        self._announcements = Announcements(config, store, self.rules)
        self.backoff = Backoff(config, cluster.traffic, store)
        self.process = ""
        """Of a daemon: see :class:`slurm_hadar.exchange.heartbeat.Writer`."""

    def tick(self) -> TickReport:
        """One pass. In observe mode, under the stop file or beside another controller that acts,
        it changes nothing in Slurm. Whether it is time for one, see ``backoff``."""
        with self.backoff.tick():
            try:
                self.rules.begin_tick(self._clock())
                return self._tick()
            except HadarError as error:
                tick_fault.keep(self.store, str(error), self._clock())
                raise

    def _tick(self) -> TickReport:
        turn = self._leadership.begin(
            self._clock, self.backoff.interval_s, self._has_capacity, self.process
        )
        self._announcements.after_another = turn.host_changed
        self._observer.took_over = turn.took_over
        if turn.took_over and not turn.why_not:
            self._observer.folder.remove_unfinished()
        report = self._pass(_Mode(not turn.why_not), self._announcements.of_changes(turn.why_not))
        if not turn.alone:
            return report
        jobs = report.observation.jobs.values()
        tidied = self._observer.folder.tidy(jobs, self._clock(), self._seen_since)
        return replace(report, notices=(*report.notices, *tidied))

    def _seen_since(self, time_s: float) -> list[str]:
        with self.store.readable_errors():
            decided = self.store.decisions.last().values()
        return [decision.job for decision in decided if decision.time_s >= time_s]

    def plan(self) -> TickReport:
        """What a tick would do and why; nothing is changed and nothing is kept."""
        self._observer.took_over = self._leadership.look()
        return self._pass(_Mode(False, keep=False), ())

    def _pass(self, mode: _Mode, announced: tuple[str, ...]) -> TickReport:
        with self.store.readable_errors():
            report = self._whole_pass(mode, announced)
            if mode.keep:
                tick_fault.clear(self.store)
                self._announcements.reported()
            return report

    def _whole_pass(self, mode: _Mode, announced: tuple[str, ...]) -> TickReport:
        before, watch = Counter(self.cluster.queries), _Stopwatch()
        observation = self.observe()
        context = self._action_context(observation)
        messages, late = list(announced), list[str]()
        if mode.keep:
            # First: of what this tick sends nothing can be seen yet.
            late = action_outcomes.reconcile(self.store, observation, self.config.moving.commit_s)
            messages += self._announcements.of_cluster(observation)
        # Reading may have taken longer than a heartbeat lasts.
        stopped = self._leadership.stopped() if mode.may_act else ""
        sent: Mapping[str, Place] = {}
        if mode.may_act and not stopped:
            done, sent = self._go_on(context, observation, late)
            messages += done
        tick, shown = self._snapshot(observation, sent, mode)
        messages += shown.faults
        read_s = self._read_s = watch.lap()
        shown, answer = self._ask(tick, shown)
        self._has_capacity = queue_head.has_capacity(tick.others)
        decide_s = watch.lap()
        changes = self._decider.changes(tick, shown, answer.plan)
        shown, answer, changes = self._with_requeues(tick, shown, answer, changes)
        messages += changes.places.messages
        decided = None
        if mode.keep:
            decided = self._record(tick, shown, answer, changes)
            if mode.may_act and not stopped:
                places = lent_places.as_state(changes.places.memory)
                self.store.keep_policy_state(lent_places.NAME, places)
                self._leadership.has_acted()
        result = Sent()
        stopped = stopped or (self._leadership.stopped() if mode.may_act else "")
        if stopped:
            messages.append(f"nothing more is sent: {stopped}")
        elif mode.may_act:
            messages += price_file.publish(
                self.config, self.rules, observation, shown, self.backoff.interval_s
            )
            result = self._apply(context, changes.diff, tick, shown)
        queries = Counter(self.cluster.queries)
        queries.subtract(before)
        return TickReport(
            observation=observation,
            snapshot=shown,
            plan=answer.explained,
            diff=changes.diff,
            acted=mode.may_act and not stopped,
            backfill=changes.backfill,
            decided=decided,
            notices=tuple(messages),
            outcomes=result.messages,
            queries={kind: number for kind, number in queries.items() if number},
            refused=result.refused,
            private=self.rules.private,
            understated=tick.past.understated,
            read_s=read_s,
            decide_s=decide_s,
            act_s=watch.lap(),
        )

    # -- observe -----------------------------------------------------------------------------

    def observe(self) -> Observation:
        """One bulk query of each kind, and the jobs' own files."""
        if self._leadership.another_acted is None:
            self._observer.took_over = self._leadership.look()
        return self._observer.observe(self._clock())

    def _keep_anothers(self) -> None:
        """Keep what another controller did to jobs: the next tick looks into the own file only."""
        if self._observer.recalled:
            with self.store.transaction():
                for id_, ours in self._observer.recalled.items():
                    self.store.keep_steering(id_, steering.merge("", ours))

    def _action_context(self, observation: Observation) -> ActionContext:
        return ActionContext(
            self.cluster,
            self.store,
            self.config,
            observation.nodes,
            self._clock,
            self.rules.ages,
            self._leadership.taken_over,
            self.rules.requeue_delay_s,
        )

    def _go_on(
        self, context: ActionContext, observation: Observation, late: Sequence[str]
    ) -> tuple[list[str], Mapping[str, Place]]:
        """Go on with what earlier ticks and other controllers began: the next step of every move
        under way, and repairs. What was done, and which jobs were just released -> where they go.
        ``late``: jobs that requeued themselves after their move was given up."""
        self._keep_anothers()
        for id_, ours in self._observer.cut.items():
            steering_store.keep(self.config, self.store, id_, ours)
        repair.count_late_moves(context, observation, late)
        messages = repair.resume_saved(context, observation)
        look = partial(self._obstacles, observation)
        step = moves.advance(context, observation.jobs, observation.progress, observation.now, look)
        messages += step.messages
        repair.keep_owners_changes(context, observation)
        repair.close_interrupted(context, observation)
        messages += repair.release_failed_launches(context, observation)
        messages += repair.undo_impossible_placements(context, observation)
        return messages, step.sent

    def _obstacles(
        self, observation: Observation, ripe: Sequence[tuple[Entry, Job]], others: Sequence[Entry]
    ) -> Mapping[str, str]:
        """See :data:`moves.Obstacles`; ``observation``: the cluster now."""
        left = idle_nodes.without(observation, idle_nodes.on_idle_nodes(observation, self.config))
        moving = [entry.job for entry in others]
        guard = LimitsGuard(self.cluster, self.rules, observation, self.config, moving)
        return recheck_before_requeue.obstacles(ripe, others, left, self.config, guard.refused)

    def _obstacles_now(
        self, ripe: Sequence[tuple[Entry, Job]], others: Sequence[Entry]
    ) -> Mapping[str, str] | None:
        """The same, with another look at the cluster. None where a look takes long, or fails: the
        next tick looks anyway."""
        if self._read_s > _LOOK_AGAIN_S:
            return None
        try:
            return self._obstacles(self.observe(), ripe, others)
        except SlurmError:
            return None

    # -- snapshot ----------------------------------------------------------------------------

    def snapshot(self, observation: Observation) -> Snapshot:
        """What the policy sees."""
        others = idle_nodes.without(observation, idle_nodes.on_idle_nodes(observation, self.config))
        past = self.learning.history({}, {}, self._clock())
        return take_snapshot(others, self.config, self.rates, past)

    def _snapshot(
        self, observation: Observation, sent: Mapping[str, Place], mode: _Mode
    ) -> tuple[TickContext, Snapshot]:
        """Learn from what is seen; then what all further steps share, and what the policy sees.
        ``sent``: jobs just released -> where they go."""
        received = self.learning.learn(observation) if mode.keep else NO_TIME
        trainers = idle_nodes.on_idle_nodes(observation, self.config)
        tick = TickContext(
            config=self.config,
            rates=self.rates,
            observation=observation,
            trainers=trainers,
            # They give way to all others, so the policy does not see them.
            others=idle_nodes.without(observation, trainers),
            past=self.learning.history(sent, received.now, self._clock()),
            refusals=apply.refusals(
                self.store, {job.id for job in observation.jobs.values() if job.held}
            ),
            lent=self._lent(),
            idle=idle_allocations.read_idle_record(self.store, self.config, observation.now),
        )
        shown = take_snapshot(tick.others, self.config, self.rates, tick.past)
        refused = tick.hint_input.refused_now
        shown = priority_exchange.in_own_places(shown, tick.others, tick.lent, refused)
        if mode.keep:
            self.learning.learn_work(shown, received, observation.now)
        return tick, shown

    def _lent(self) -> lent_places.Memory:
        memory = lent_places.remembered(self.store.policy_state(lent_places.NAME))
        return lent_places.after_another(memory) if self._leadership.another_acted else memory

    def _ask(self, tick: TickContext, shown: Snapshot) -> tuple[Snapshot, PolicyAnswer]:
        """What the policy wants, and the GPUs that jobs with more than they asked for give back."""
        answer = self._decider.ask(shown)
        returned = surplus.given_back(shown, answer.plan, tick.others, self.config)
        if not returned:
            return shown, answer
        return replace(shown, returning=frozenset(returned)), answer.with_places(returned)

    def _with_requeues(
        self, tick: TickContext, shown: Snapshot, answer: PolicyAnswer, changes: Changes
    ) -> tuple[Snapshot, PolicyAnswer, Changes]:
        """With the requeues of jobs whose time limit ends soon, which no policy decides, and what
        is reported for these and for jobs that leave their GPUs idle."""
        past = tick.past
        ending = chain_requeues.due(
            tick.others, self.config, past.chains, past.moving, self.backoff.interval_s
        )
        notes = chain_requeues.notes(tick.others.jobs, self.config, past.chains)
        offered = changes.diff.of(Kind.STOP_IDLE)
        held = idle_allocations.notes(shown, tick.others, self.config, tick.idle, offered)
        places = priority_exchange.notes(changes.places, tick.others)
        lists = list_updates.notes(changes.staying)
        notes = {
            id_: "".join(source.get(id_, "") for source in (notes, held, places, lists))
            for id_ in {**notes, **held, **places, **lists}
        }
        left_alone = {id_: why + notes.get(id_, "") for id_, why in shown.excluded.items()}
        return (
            replace(shown, excluded=left_alone),
            replace(answer, explained=with_sentences(answer.explained, notes)),
            replace(changes, diff=chain_requeues.with_due(changes.diff, ending)),
        )

    # -- record and apply --------------------------------------------------------------------

    def _record(
        self, tick: TickContext, shown: Snapshot, answer: PolicyAnswer, changes: Changes
    ) -> list[Decision]:
        """Keep what was decided and why, before anything is sent; returns that."""
        self.store.keep_policy_state(self.config.controller.policy, answer.state)
        if changes.backfill.state:
            self.store.keep_policy_state(BACKFILL, changes.backfill.state)
        self._observer.returned.keep()
        means, idle = changes.diff, changes.backfill
        decided = decisions(tick.observation, shown, answer.explained, means, idle)
        self.store.decisions.record(decided)
        self.store.forget(tick.observation.now - _KEEP_S)
        return decided

    def _apply(
        self, context: ActionContext, means: PlanDiff, tick: TickContext, shown: Snapshot
    ) -> Sent:
        observation = tick.observation
        hinted, later = mail_type.still_ours(context, means.of(Kind.HINT), observation.steering)
        hinted, unsent = confirm_exchange.unchanged_since_observed(context, hinted)
        recounted = age_after_list_update.need(hinted, observation)
        hinted = [action for action in hinted if action not in recounted]
        done = apply.send_hints(context, hinted, observation.now)
        sent = [Sent(refused=later), unsent, done]
        sent.append(confirm_exchange.confirm(context, hinted, done.refused))
        sent.append(age_after_list_update.send(context, recounted, observation, self._sleep))
        # First those whose time ends.
        for action in means.of(Kind.CHAIN) + means.of(Kind.MOVE, Kind.STOP, Kind.STOP_IDLE):
            progress = observation.progress.get(action.job.id)
            current = progress is not None and progress.restarts == action.job.restarts
            in_step = progress.in_step if progress is not None and current else None
            expected = action_outcomes.expected_effect(shown, action, progress)
            expected |= chain_requeues.details(action, observation, tick.past.chains)
            expected |= idle_allocations.details(action, tick.idle)
            expected[ARRIVAL] = tick.past.arrival_s(action.job)
            sent.append(apply.ask_to_save(context, action, in_step, self._clock(), expected))
        followed = moves.follow_open_moves(
            context, observation.jobs, self._sleep, self._leadership.stopped, self._obstacles_now
        )
        return Sent(
            (*(message for result in sent for message in result.messages), *followed),
            frozenset().union(*(result.refused for result in sent)),
        )
