"""Idle nodes train: who gets them, and what is sent for it.

The policy is :mod:`slurm_hadar.policies.bftrainer`; here the cluster becomes what it looks at, and
its answer becomes moves like those of any managed job. Slurm starts a training that waits, like any
other job, and takes the nodes back by itself: it preempts jobs in a partition of a lower
tier.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import actions
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.pending.hint_updates import HintInput, restored
from slurm_hadar.controller.idle_training import idle_nodes
from slurm_hadar.controller.idle_training.curves import Curves
from slurm_hadar.controller.idle_training.idle_view import IdleNodeView, update_curves
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import movability
from slurm_hadar.controller.snapshot.eligibility import (
    ControllerHistory,
    SchedulableJob,
    schedulable_jobs,
)
from slurm_hadar.controller.snapshot.sources import Sources
from slurm_hadar.controller.snapshot.view_builder import snapshot_without_faults
from slurm_hadar.controller.tick_context import TickContext
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.view import State
from slurm_hadar.policies.bftrainer import policy as bftrainer
from slurm_hadar.policies.bftrainer.idle_survival import IdleSurvival
from slurm_hadar.slurm.times import startable_s

_CLOCKS_S = 5.0
"""Slurm's clock and ours differ by less."""
_LONGEST_BEGIN_S = 600.0
"""A begin time further behind a requeue is its owner's."""


@dataclass(frozen=True)
class IdleTrainingPlan:
    """What one tick means to do with the idle nodes.

    ``idle``: nodes that no job uses or is about to take; ``taken``: idle nodes left to others, with
    the reason; ``placements`` and ``waiting`` as in a plan; ``excluded``: trainings that are not
    steered.
    """

    schedulable: Mapping[str, SchedulableJob] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    deferred: Mapping[str, str] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
    state: State = field(default_factory=dict)

    def of(self, *kinds: Kind) -> list[Action]:
        """The actions of some kinds."""
        return [action for action in self.actions if action.kind in kinds]

    def without(self, refused: Mapping[str, str]) -> "IdleTrainingPlan":
        """The same less the moves and stops of some jobs, which stay for the reason given."""
        stay = {
            a.job.id: refused[a.job.id]
            for a in self.of(Kind.MOVE, Kind.STOP)
            if a.job.id in refused
        }
        left = (a for a in self.actions if a.kind is Kind.HINT or a.job.id not in stay)
        return replace(self, actions=tuple(left), deferred={**self.deferred, **stay})


def decide(
    tick: TickContext, placed: Sequence[Placement], state: State, moves_left: int
) -> IdleTrainingPlan:
    """One round. ``placed``: where other jobs are moved to; ``moves_left``: what they left of the
    moves that the guards allow."""
    observation, config, past = tick.observation, tick.config, tick.past
    if not config.backfill.partitions:
        return IdleTrainingPlan(state=state)
    targets, excluded = _targets(tick)
    given = HintInput(observation, config, tick.refusals)
    if not config.backfill.enabled:
        why = "training on idle nodes is switched off (backfill.enabled)"
        excluded |= dict.fromkeys(targets, why)
        taken_back = restored(excluded, excluded, given)
        return IdleTrainingPlan(excluded=excluded, actions=tuple(taken_back), state=state)
    sources = Sources(observation, config, tick.rates, past, in_limit=False)
    shown = snapshot_without_faults(sources, targets, excluded)
    targets, excluded = dict(shown.schedulable), dict(shown.excluded)
    curves = update_curves(Curves.read(state.get("curves")), observation, shown.view, targets)
    unused = set(idle_nodes.idle(observation, config))
    taken = idle_nodes.about_to_be_taken(tick.others, unused, config, placed)
    held = {name for target in targets.values() for name in target.held}
    free = [n for n in observation.nodes if n in unused and n not in taken and n not in held]
    before = state.get("since")
    since = {
        name: before.get(name, observation.now) if isinstance(before, dict) else observation.now
        for name in observation.nodes
        if name in held or name in free
    }
    now = _at_once(targets, config)
    seats = IdleNodeView(observation, config, shown.view, list(since), since, now, curves)
    chosen, survival = bftrainer.decide(seats.view(), _idle_survival(state))
    round_ = _Round(observation, config, shown.staying, targets, seats.placements(chosen))
    round_.carry_out(set(free), {target.job.id for target in now}, moves_left)
    waiting = [id_ for id_, target in targets.items() if not (target.held or target.starting)]
    again = {id_ for id_ in waiting if _preempted(targets[id_].job, config, past, observation.now)}
    round_.sent += restored([*waiting, *excluded], excluded, given, again)
    return IdleTrainingPlan(
        schedulable=targets,
        idle=tuple(free),
        taken={name: why for name, why in taken.items() if name in unused},
        placements=round_.placements,
        waiting=round_.waiting,
        deferred=round_.deferred,
        excluded=excluded,
        actions=tuple(round_.sent),
        notes=(*shown.faults, *chosen.notes),
        state={"idle_survival": survival.to_dict(), "since": since, "curves": curves.plain()},
    )


def _targets(tick: TickContext) -> tuple[dict[str, SchedulableJob], dict[str, str]]:
    ids = {job.id for job in tick.trainers}
    if not ids:
        return {}, {}
    targets, excluded = schedulable_jobs(tick.observation, tick.config, tick.past.moving)
    targets = {id_: target for id_, target in targets.items() if id_ in ids}
    excluded = {id_: why for id_, why in excluded.items() if id_ in ids}
    for id_, target in list(targets.items()):
        job, why = target.job, ""
        if not (job.declaration and job.declaration.habit == "yes" and job.requeue):
            why = "training on idle nodes needs checkpoint=yes and --requeue: it is stopped often"
        elif target.request.form != "node" or target.request.nodes != 1:
            why = "training on idle nodes needs its GPUs per node (--gres), and -N1 or nodes=1-K"
        if why:
            excluded[id_] = why
            del targets[id_]
    return targets, excluded


def _preempted(job: Job, config: Config, past: ControllerHistory, now: float) -> bool:
    """Whether a training waits for the begin time that Slurm gave it when it preempted it: 121 s
    by default, in which the nodes that are left would idle."""
    # What the controller stopped itself shall not have its place again at once.
    stopped = past.last_moves.get(job.id, 0.0) + _CLOCKS_S if config.guards.preempt else 0.0
    ahead = max(now, startable_s(job)) + 1 < job.eligible_s <= job.submit_s + _LONGEST_BEGIN_S
    return job.restarts > 0 and job.submit_s > stopped and ahead


def _idle_survival(state: State) -> IdleSurvival:
    # Under its second name a version before wrote it.
    stored = state.get("idle_survival", state.get("stays"))
    try:
        return (
            IdleSurvival.from_dict(stored) if isinstance(stored, dict) else IdleSurvival.unknown()
        )
    except UsageError:
        # Only what was learned is lost.
        return IdleSurvival.unknown()


def _at_once(targets: Mapping[str, SchedulableJob], config: Config) -> list[SchedulableJob]:
    """Those that have nodes, then the first of those that wait."""
    running = [target for target in targets.values() if target.held]
    waiting = [target for target in targets.values() if not target.held]
    waiting.sort(key=lambda target: (-target.job.priority, target.job.submit_s, target.job.id))
    return running + waiting[: max(0, config.backfill.at_once - len(running))]


class _Round:
    """From placements to what is sent, training by training."""

    def __init__(
        self,
        observation: Observation,
        config: Config,
        why_staying: Mapping[str, str],
        targets: Mapping[str, SchedulableJob],
        placements: dict[str, Placement],
    ) -> None:
        self.observation, self.config, self.schedulable = observation, config, targets
        self.placements = placements
        self.staying = why_staying
        self.waiting: dict[str, str] = {}
        self.deferred: dict[str, str] = {}
        self.sent: list[Action] = []

    def carry_out(self, free: Collection[str], considered: Collection[str], moves: int) -> None:
        """``free``: nodes that no job holds; ``considered``: trainings that had a chance in this
        round; ``moves``: how many the guards still allow."""
        for id_, target in self.schedulable.items():
            placement = self.placements.get(id_)
            if placement is None:
                self.waiting[id_] = self._why(id_, free, considered)
            if target.job.state is JobState.RUNNING and not target.starting:
                moves -= self._change(target, placement, free, moves)

    def _why(self, id_: str, free: Collection[str], considered: Collection[str]) -> str:
        if not free:
            return "no node is idle"
        if id_ not in considered:
            return "others come first, and only some train at a time (backfill.at_once)"
        return "the idle nodes are not open to it, worth more to others, or not worth a start"

    def _change(
        self, target: SchedulableJob, placement: Placement | None, free: Collection[str], moves: int
    ) -> int:
        """Moves sent: 0 or 1."""
        id_ = target.job.id
        if placement is not None:
            action = actions.move(target, placement, self.observation, self.config, pin=True)
        else:
            action = actions.stop(target, self.waiting[id_], self.observation, self.config)
        if action is None:
            if placement is None:
                self.deferred[id_] = actions.NOT_STOPPED
            return 0
        if id_ in self.staying:
            self.deferred[id_] = f"{movability.CANNOT_MOVE}: {self.staying[id_]}"
        elif placement and not set(placement.nodes) <= {*free, *target.held}:
            self.deferred[id_] = "the nodes that it shall get are not free yet"
        elif moves <= 0:
            self.deferred[id_] = "the limit on moves per tick or hour is reached"
        else:
            self.sent.append(action)
            return 1
        return 0
