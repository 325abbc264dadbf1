"""Idle nodes train: who gets them, and what is sent for it.

The policy is :mod:`slurm_hadar.policies.bftrainer`; here the cluster becomes what it looks at, and
its answer becomes moves like those of any managed job. Slurm starts a training that waits, like any
other job, and takes the nodes back by itself: it preempts whoever runs in a partition of a lower
tier.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_hadar.config import Config
from slurm_hadar.controller.acts import actions
from slurm_hadar.controller.acts.actions import Action, Kind
from slurm_hadar.controller.acts.hints import Refusals, restored
from slurm_hadar.controller.idle import idle_nodes
from slurm_hadar.controller.idle.curves import Curves
from slurm_hadar.controller.idle.idle_view import Seats, learned
from slurm_hadar.controller.picture.targets import Past, Target, targets_of
from slurm_hadar.controller.picture.viewing import picture_without_faults
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.bftrainer import policy as bftrainer
from slurm_hadar.policies.bftrainer.stays import Stays
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.slurm.times import startable_s

_CLOCKS_S = 5.0
"""Slurm's clock and ours differ by less."""
_LONGEST_BEGIN_S = 600.0
"""A begin time further behind a requeue is its owner's."""


@dataclass(frozen=True)
class Backfill:
    """What one tick means to do with the idle nodes.

    ``idle``: nodes that nobody uses or is about to take; ``taken``: idle nodes left to others, with
    the reason; ``placements`` and ``waiting`` as in a plan; ``left_out``: trainings left to Slurm.
    """

    targets: Mapping[str, Target] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    deferred: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
    state: State = field(default_factory=dict)

    def of(self, *kinds: Kind) -> list[Action]:
        """The actions of some kinds."""
        return [action for action in self.actions if action.kind in kinds]

    def without(self, refused: Mapping[str, str]) -> "Backfill":
        """The same less the moves and stops of some jobs, which stay for the reason given."""
        stay = {
            a.job.id: refused[a.job.id]
            for a in self.of(Kind.MOVE, Kind.STOP)
            if a.job.id in refused
        }
        left = (a for a in self.actions if a.kind is Kind.HINT or a.job.id not in stay)
        return replace(self, actions=tuple(left), deferred={**self.deferred, **stay})


def decide(
    seen: Observed,
    trainers: list[Job],
    config: Config,
    rates: Rates,
    past: Past,
    placed: Sequence[Placement],
    refused: Mapping[str, Refusals],
    state: State,
    moves_left: int,
) -> Backfill:
    """One round. ``placed``: where other jobs are moved to; ``refused``: see :func:`hints`;
    ``moves_left``: what they left of the moves that the guards allow."""
    if not config.backfill.partitions:
        return Backfill(state=state)
    targets, left_out = _targets(seen, trainers, config, past)
    if not config.backfill.enabled:
        why = "training on idle nodes is switched off (backfill.enabled)"
        left_out |= dict.fromkeys(targets, why)
        taken_back = restored(left_out, left_out, seen, refused)
        return Backfill(left_out=left_out, actions=tuple(taken_back), state=state)
    shown = picture_without_faults(seen, config, rates, past, targets, left_out, in_limit=False)
    targets, left_out = dict(shown.targets), dict(shown.left_out)
    curves = learned(Curves.read(state.get("curves")), seen, shown.view, targets, past)
    others = idle_nodes.without(seen, trainers)
    unused = set(idle_nodes.idle(seen, config))
    taken = idle_nodes.about_to_be_taken(others, unused, config, placed)
    held = {name for target in targets.values() for name in target.held}
    free = [n for n in seen.nodes if n in unused and n not in taken and n not in held]
    before = state.get("since")
    since = {
        name: before.get(name, seen.now) if isinstance(before, dict) else seen.now
        for name in seen.nodes
        if name in held or name in free
    }
    now = _at_once(targets, config)
    seats = Seats(seen, config, shown.view, list(since), since, now, curves)
    chosen, stays = bftrainer.decide(seats.view(), _stays(state))
    round_ = _Round(seen, config, shown.view, targets, seats.placements(chosen))
    round_.carry_out(set(free), {target.job.id for target in now}, moves_left)
    waiting = [id_ for id_, target in targets.items() if not (target.held or target.starting)]
    again = {id_ for id_ in waiting if _preempted(targets[id_].job, config, past, seen.now)}
    round_.sent += restored([*waiting, *left_out], left_out, seen, refused, again)
    return Backfill(
        targets=targets,
        idle=tuple(free),
        taken={name: why for name, why in taken.items() if name in unused},
        placements=round_.placements,
        waiting=round_.waiting,
        deferred=round_.deferred,
        left_out=left_out,
        actions=tuple(round_.sent),
        notes=(*shown.faults, *chosen.notes),
        state={"stays": stays.to_dict(), "since": since, "curves": curves.plain()},
    )


def _targets(
    seen: Observed, trainers: list[Job], config: Config, past: Past
) -> tuple[dict[str, Target], dict[str, str]]:
    ids = {job.id for job in trainers}
    if not ids:
        return {}, {}
    targets, left_out = targets_of(seen, config, past.moving)
    targets = {id_: target for id_, target in targets.items() if id_ in ids}
    left_out = {id_: why for id_, why in left_out.items() if id_ in ids}
    for id_, target in list(targets.items()):
        job, why = target.job, ""
        if not (job.declaration and job.declaration.habit == "yes" and job.requeue):
            why = "training on idle nodes needs checkpoint=yes and --requeue: it is stopped often"
        elif target.wanted.form != "node" or target.wanted.nodes != 1:
            why = "training on idle nodes needs its GPUs per node (--gres), and -N1 or nodes=1-K"
        if why:
            left_out[id_] = why
            del targets[id_]
    return targets, left_out


def _preempted(job: Job, config: Config, past: Past, now: float) -> bool:
    """Whether a training waits for the begin time that Slurm gave it when it preempted it: 121 s
    by default, in which the nodes that are left would idle."""
    # What the controller stopped itself shall not have its place again at once.
    stopped = past.last_moves.get(job.id, 0.0) + _CLOCKS_S if config.guards.preempt else 0.0
    ahead = max(now, startable_s(job)) + 1 < job.eligible_s <= job.submit_s + _LONGEST_BEGIN_S
    return job.restarts > 0 and job.submit_s > stopped and ahead


def _stays(state: State) -> Stays:
    stored = state.get("stays")
    try:
        return Stays.from_dict(stored) if isinstance(stored, dict) else Stays.unknown()
    except UsageError:
        # Only what was learned is lost.
        return Stays.unknown()


def _at_once(targets: Mapping[str, Target], config: Config) -> list[Target]:
    """Those that have nodes, then the first of those that wait."""
    running = [target for target in targets.values() if target.held]
    waiting = [target for target in targets.values() if not target.held]
    waiting.sort(key=lambda target: (-target.job.priority, target.job.submit_s, target.job.id))
    return running + waiting[: max(0, config.backfill.at_once - len(running))]


class _Round:
    """From placements to what is sent, training by training."""

    def __init__(
        self,
        seen: Observed,
        config: Config,
        view: View,
        targets: Mapping[str, Target],
        placements: dict[str, Placement],
    ) -> None:
        self.seen, self.config, self.targets = seen, config, targets
        self.placements = placements
        self.movable = dict(zip(view.jobs.ids, view.jobs.movable.tolist(), strict=True))
        self.waiting: dict[str, str] = {}
        self.deferred: dict[str, str] = {}
        self.sent: list[Action] = []

    def carry_out(self, free: Collection[str], considered: Collection[str], moves: int) -> None:
        """``free``: nodes that nobody holds; ``considered``: trainings that had a chance in this
        round; ``moves``: how many the guards still allow."""
        for id_, target in self.targets.items():
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
        self, target: Target, placement: Placement | None, free: Collection[str], moves: int
    ) -> int:
        """Moves sent: 0 or 1."""
        id_ = target.job.id
        if placement is not None:
            action = actions.move(target, placement, self.seen, self.config, pin=True)
        else:
            action = actions.stop(target, self.waiting[id_], self.seen, self.config)
        if action is None:
            return 0
        if not self.movable[id_]:
            self.deferred[id_] = "it may not be moved now"
        elif placement and not set(placement.nodes) <= {*free, *target.held}:
            self.deferred[id_] = "the nodes that it shall get are not free yet"
        elif moves <= 0:
            self.deferred[id_] = "moves of this tick or hour are used up"
        else:
            self.sent.append(action)
            return 1
        return 0
