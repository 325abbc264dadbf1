"""The difference between the plan and the present, cut by the guards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from slurm_hadar.config import Config
from slurm_hadar.controller.acts import laying
from slurm_hadar.controller.picture import batch_choice, claims, cpus
from slurm_hadar.controller.picture.targets import LEASE_SLACK_S, Target, begin_is_ours
from slurm_hadar.controller.picture.viewing import Picture
from slurm_hadar.controller.seen import racks
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.times import at_once, begin_time, begins_at_once


class Kind(Enum):
    """What can be done to a job."""

    START = "start"
    WAIT = "wait"
    LET_GO = "let go"
    MOVE = "move"
    STOP = "stop"


@dataclass(frozen=True)
class Action:
    """One thing to do. ``fields`` are Slurm's; ``steering`` is what the job will carry."""

    kind: Kind
    job: Job
    fields: Mapping[str, str]
    steering: Steering
    reason: str
    placement: Placement | None = None


@dataclass(frozen=True)
class Intent:
    """What a tick means to do, and what the guards kept it from."""

    actions: tuple[Action, ...] = ()
    deferred: Mapping[str, str] = field(default_factory=dict)

    def of(self, *kinds: Kind) -> list[Action]:
        """The actions of some kinds."""
        return [action for action in self.actions if action.kind in kinds]


@dataclass(frozen=True)
class MoveBudget:
    """The moves that the hour still allows, and how many each user (UID) had in it already."""

    left: int
    by_user: Mapping[int, int] = field(default_factory=dict)


def intent(
    picture: Picture, plan: Plan, seen: Observed, config: Config, budget: MoveBudget
) -> Intent:
    """What to send."""
    actions: list[Action] = []
    deferred: dict[str, str] = {}
    moves: list[Action] = []
    held_back = _held_back(picture, plan, seen)
    movable = dict(zip(picture.view.jobs.ids, picture.view.jobs.movable.tolist(), strict=True))
    for id_, target in picture.targets.items():
        placement = plan.placements.get(id_)
        if target.starting:
            continue
        if target.job.state is JobState.RUNNING:
            why = plan.waiting.get(id_, "no placement in this round")
            action = (
                move(target, placement, seen, config)
                if placement
                else stop(target, why, seen, config)
            )
            if action is not None and not movable[id_]:
                deferred[id_] = "it may not be moved now"
            elif action is not None and (node := _reserved(action, seen)):
                deferred[id_] = f"a reservation of {node} begins before its time limit ends"
            elif action is not None:
                moves.append(action)
        elif target.job.state is JobState.PENDING:
            if id_ in held_back:
                deferred[id_] = held_back[id_]
                placement = None
            waiting = start(target, placement, seen, config) if placement else None
            if placement is None:
                why = held_back.get(id_) or plan.waiting.get(id_, "no placement in this round")
                waiting = wait(target, why, seen, config)
            if waiting is not None:
                actions.append(waiting)
    chosen = _shared(moves, min(budget.left, config.guards.max_moves_per_tick), budget.by_user)
    for action in moves:
        if action not in chosen:
            deferred[action.job.id] = "moves of this tick or hour are used up"
    actions += chosen
    actions += let_go(picture.left_out, seen, config)
    return Intent(tuple(actions), deferred)


def _reserved(action: Action, seen: Observed) -> str:
    """The first node of the placement with a reservation that begins before the job's time limit
    ends, so that Slurm would not start the job there; "": none."""
    if action.placement is None or not action.placement.nodes:
        return ""
    closed = claims.reserved_nodes(seen, action.job.time_limit_s)
    return next((name for name in action.placement.nodes if name in closed), "")


def _shared(moves: Sequence[Action], most: int, by_user: Mapping[int, int]) -> list[Action]:
    """At most ``most`` of the moves, in turn from the users who had the fewest in this hour, so
    that one user's many jobs do not take them all."""
    had = dict(by_user)
    waiting = list(moves)
    chosen: list[Action] = []
    while waiting and len(chosen) < most:
        # The first of equals: the order of the plan.
        action = min(waiting, key=lambda one: had.get(one.job.uid, 0))
        waiting.remove(action)
        had[action.job.uid] = had.get(action.job.uid, 0) + 1
        chosen.append(action)
    return chosen


def let_go(left_out: Mapping[str, str], seen: Observed, config: Config) -> list[Action]:
    """What is sent to jobs that are left to Slurm, with the reason by job."""
    limited = claims.at_limit(seen)
    actions = []
    for id_, why in left_out.items():
        job = seen.jobs[id_]
        may_end = claims.in_turn(job) and claims.payer(job) not in limited
        action = _let_go(job, why, seen, config, may_end)
        if action is not None:
            actions.append(action)
    return actions


def start(
    target: Target, placement: Placement, seen: Observed, config: Config, pin: bool = False
) -> Action | None:
    """Tell a waiting job to start; ``pin``: on these very nodes. None where it is told already."""
    job, steered = target.job, seen.steered(target.job.id)
    fields = laying.fields(job, target.wanted, placement, seen, config, pin)
    told = begins_at_once(job, seen.now) and not steered.leased
    if not fields and told and dict(steered.gpus) == dict(placement.gpus):
        return None
    steering = Steering(
        gpus=placement.gpus,
        nodes=placement.nodes,
        time=seen.now,
        moves=steered.moves,
        was=laying.originals(job, fields, steered.was),
        batch=placement.batch or 0,
    )
    if pin or target.wanted.copies[1] > 1:
        fields = laying.in_full(placement, fields, steering.was)
    return Action(
        Kind.START,
        job,
        {**fields, "StartTime": at_once(job, seen.now)},
        steering,
        placement.reason,
        placement,
    )


def wait(target: Target, why: str, seen: Observed, config: Config) -> Action | None:
    """Renew a lease when less than half is left; take an unused start back."""
    job, steered = target.job, seen.steered(target.job.id)
    by_hbatch = bool(job.declaration and job.declaration.lease)
    if not (steered.leased or steered.gpus or by_hbatch):
        return None
    length = config.lease.length_s
    # One that is longer than any of ours was given before the clock was set back.
    if length / 2 <= job.eligible_s - seen.now <= length + LEASE_SLACK_S and not steered.gpus:
        return None
    back = laying.back(job, steered)
    steering = Steering(time=seen.now, leased=True, moves=steered.moves, was=steered.was)
    return Action(
        Kind.WAIT, job, {**back, "StartTime": begin_time(seen.now + length)}, steering, why
    )


def _let_go(job: Job, why: str, seen: Observed, config: Config, may_end: bool) -> Action | None:
    """A job that we cannot steer is Slurm's, as its owner wrote it; a lease ends at once.

    Where Slurm would keep it waiting all the same (``may_end`` False) the lease just runs out.
    """
    steered = seen.steered(job.id)
    if job.state is not JobState.PENDING or job.held:
        return None
    fields = laying.back(job, steered)
    ours = steered.leased or (bool(job.declaration and job.declaration.lease) and not steered.time)
    ends = (
        ours
        and may_end
        and job.eligible_s > seen.now + 1
        and begin_is_ours(job, seen, config)
        and not job.dependency
    )
    if ends:
        fields["StartTime"] = at_once(job, seen.now)
    if not fields:
        return None
    steering = Steering(
        time=seen.now,
        leased=steered.leased and not ends,
        moves=steered.moves,
        was=steered.was,
    )
    return Action(Kind.LET_GO, job, fields, steering, f"left to Slurm: {why}")


def stop(target: Target, why: str, seen: Observed, config: Config) -> Action | None:
    """Make way for jobs that gain more: save, and wait under a lease like any other."""
    if not config.guards.preempt:
        return None
    job, steered = target.job, seen.steered(target.job.id)
    steering = Steering(time=seen.now, leased=True, moves=steered.moves + 1, was=steered.was)
    return Action(Kind.STOP, job, laying.back(job, steered), steering, why)


def move(
    target: Target, placement: Placement, seen: Observed, config: Config, pin: bool = False
) -> Action | None:
    """Move a running job; ``pin``: to these very nodes. None where it is there already."""
    held: dict[str, int] = {}
    for gpus in target.held.values():
        for kind, count in gpus.items():
            held[kind] = held.get(kind, 0) + count
    steered = seen.steered(target.job.id)
    named = pin or placement.copies > 1 or racks.pinned(placement, seen.racks)
    elsewhere = named and set(target.held) != set(placement.nodes)
    other = elsewhere or cpus.differs(target.job, target.wanted, placement)
    said = seen.progress.get(target.job.id)
    other |= batch_choice.differs(target.job, placement, said, steered.batch)
    if held == dict(placement.gpus) and not other:
        return None
    fields = laying.fields(target.job, target.wanted, placement, seen, config, pin)
    steering = Steering(
        gpus=placement.gpus,
        nodes=placement.nodes,
        time=seen.now,
        moves=steered.moves + 1,
        was=laying.originals(target.job, fields, steered.was),
        batch=placement.batch or 0,
    )
    if pin or target.wanted.copies[1] > 1:
        fields = laying.in_full(placement, fields, steering.was)
    return Action(Kind.MOVE, target.job, fields, steering, placement.reason, placement)


def _held_back(picture: Picture, plan: Plan, seen: Observed) -> dict[str, str]:
    """Starts that would take GPUs from a pending job of others with a higher priority."""
    free = claims.free_now(seen)
    starts = [
        (target, plan.placements[id_])
        for id_, target in picture.targets.items()
        if target.job.state is JobState.PENDING and id_ in plan.placements
    ]
    rivals = claims.outsiders(seen, picture.targets)
    if not rivals or not starts:
        return {}
    back: dict[str, str] = {}
    last, claimed_kinds = "", set[str]()
    rivals.reverse()
    starts.sort(key=lambda start: claims.rank(start[0].job, seen), reverse=True)
    for target, placement in starts:
        job = target.job
        place = claims.rank(job, seen)
        while rivals and claims.rank(rivals[-1], seen) > place:
            claimed = claims.claim(rivals.pop(), seen, free)
            if claimed is not None:
                last = claimed.job
                claimed_kinds.update(kind for gpus in claimed.gpus.values() for kind in gpus)
        names = list(placement.nodes) or list(free)
        for kind, count in placement.gpus.items():
            room = sum(free[name].get(kind, 0) for name in names if name in free)
            if room < count and kind in claimed_kinds and not target.held:
                back[job.id] = f"pending job {last} has a higher priority and gets these GPUs first"
        if job.id not in back:
            claims.set_aside(placement.gpus, names, free)
    return back
