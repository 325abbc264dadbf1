"""From what one tick sees to what it means to change: the policy, and the guards around it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.destinations import surplus
from slurm_hadar.controller.actuation.pending import owners_nices, priority_exchange
from slurm_hadar.controller.actuation.pending.hints import hints
from slurm_hadar.controller.actuation.pending.priority_exchange import NewPlaces
from slurm_hadar.controller.actuation.plan_diff import MoveBudget, PlanDiff, diff
from slurm_hadar.controller.actuation.running import idle_allocations
from slurm_hadar.controller.actuation.running.limits_guard import LimitsGuard
from slurm_hadar.controller.idle_training import decision
from slurm_hadar.controller.idle_training.decision import IdleTrainingPlan
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import forks, movability, no_gpu, shapes
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.controller.snapshot.work import explained, with_unknown_speeds
from slurm_hadar.controller.tick_context import TickContext
from slurm_hadar.domain.placement import Placement, Plan, by_type
from slurm_hadar.domain.view import State
from slurm_hadar.slurm.cluster import Cluster

BACKFILL = "backfill"
"""Under this name the store keeps what backfill remembers."""


@dataclass(frozen=True)
class PolicyAnswer:
    """``plan``, and what the policy shall remember. ``explained``: the plan with reasons that say
    nothing of what owners declared, as they stand in files that others may read."""

    plan: Plan
    explained: Plan
    state: State

    def with_places(self, places: Mapping[str, Placement]) -> "PolicyAnswer":
        """With other places than the policy's for some jobs."""
        return PolicyAnswer(
            surplus.without_surplus(self.plan, places),
            surplus.without_surplus(self.explained, places),
            self.state,
        )


@dataclass(frozen=True)
class Changes:
    """What a tick means to send: ``diff`` has all of it, ``backfill`` what of it is for trainings
    on idle nodes; ``places``: the exchanged places in the queue from now on; ``staying``: jobs that
    do not get another list of partitions, since it would change places."""

    diff: PlanDiff
    backfill: IdleTrainingPlan
    places: NewPlaces
    staying: frozenset[str] = frozenset()


class Decider:
    """Decides with one policy; sends nothing and keeps nothing."""

    def __init__(
        self, config: Config, cluster: Cluster, store: Store, rules: AccountingLimits,
        decide: policies.Decide,
    ) -> None:  # fmt: skip
        self._config, self._cluster, self._store, self._rules = config, cluster, store, rules
        self._decide = decide

    def ask(self, shown: Snapshot) -> PolicyAnswer:
        """What the policy wants."""
        remembered = self._store.policy_state(self._config.controller.policy)
        plan, state = self._decide(shown.view, remembered)
        plan = shapes.shaped(forks.within_allowed_copies(plan, shown.view), shown)
        fixed = {
            id_: movability.why_no_option(target)
            for id_, target in shown.schedulable.items()
            if target.held
        }
        plan = movability.explained(plan, {**fixed, **shown.staying})
        plan = no_gpu.explained(plan, shown.view.types, shown.why_no_gpu)
        declaring = {
            id_
            for id_, target in shown.schedulable.items()
            if target.job.declaration is not None and target.job.declaration.total_samples
        }
        ids = shown.view.jobs.ids
        plan = with_unknown_speeds(plan, ids, shown.work, declaring)
        return PolicyAnswer(plan, explained(plan, ids, shown.work), state)

    def changes(self, tick: TickContext, shown: Snapshot, plan: Plan) -> Changes:
        """What has to be sent for it, as far as the guards allow."""
        guard = LimitsGuard(
            self._cluster, self._rules, tick.observation, self._config, tuple(tick.past.moving)
        )
        budget = self._move_budget(tick.observation, guard)
        means = diff(shown, plan, tick.others, self._config, budget)
        places = self._exchange(tick, shown, plan)
        staying = set[str]()
        hinted = hints(shown, plan, tick.hint_input, places.nices, staying)
        hinted += owners_nices.given_back(tick.others, tick.refusals, places.nices, shown.excluded)
        idle = self._idle_training(tick, shown, means, budget.left)
        requeued = means.of(Kind.MOVE, Kind.STOP)
        idle = idle.without(guard.refused([*requeued, *idle.of(Kind.MOVE, Kind.STOP)]))
        requeued += idle.of(Kind.MOVE, Kind.STOP)
        offered = self._idle_preemptions(tick, shown, requeued, budget)
        refused = budget.refused([*requeued, *offered]) if offered else {}
        everything = PlanDiff(
            (
                *hinted,
                *means.actions,
                *idle.actions,
                *(action for action in offered if action.job.id not in refused),
            ),
            {**means.deferred, **idle.deferred},
        )
        return Changes(everything, idle, places, frozenset(staying))

    def _idle_preemptions(
        self, tick: TickContext, shown: Snapshot, requeued: Sequence[Action], budget: MoveBudget
    ) -> list[Action]:
        """Stops of jobs that leave their GPUs idle, as far as the limits on moves allow beside
        those that the policy wants."""
        left = min(budget.left, self._config.guards.max_moves_per_tick) - len(requeued)
        found = idle_allocations.preemptions(shown, tick.others, self._config, tick.idle, left)
        moved = {action.job.id for action in requeued}
        return [action for action in found if action.job.id not in moved]

    def _exchange(self, tick: TickContext, shown: Snapshot, plan: Plan) -> NewPlaces:
        if not self._rules.ages:
            return NewPlaces()
        return priority_exchange.exchange(shown, plan, tick.hint_input, tick.lent)

    def _move_budget(self, observation: Observation, guard: LimitsGuard) -> MoveBudget:
        recent = self._store.counts_since(Kind.MOVE.value, observation.now - 3600)
        by_user: Counter[int] = Counter()
        for id_, number in recent.items():
            if id_ in observation.jobs:
                by_user[observation.jobs[id_].uid] += number
        left = self._config.guards.max_moves_per_hour - sum(recent.values())
        return MoveBudget(left, by_user, guard.refused)

    def _idle_training(
        self, tick: TickContext, shown: Snapshot, means: PlanDiff, hour_left: int
    ) -> IdleTrainingPlan:
        going = [a.placement for a in means.of(Kind.MOVE) if a.placement is not None]
        going += [
            Placement(by_type(t.held), t.held) for t in shown.schedulable.values() if t.starting
        ]
        left = min(hour_left, self._config.guards.max_moves_per_tick)
        left -= len(means.of(Kind.MOVE, Kind.STOP))
        return decision.decide(tick, going, self._store.policy_state(BACKFILL), left)
