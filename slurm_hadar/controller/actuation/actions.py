"""The difference between the plan and where running jobs are, cut by the guards."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.destinations import left_nodes, preemption
from slurm_hadar.controller.actuation.destinations.blocked_partitions import blocking_job
from slurm_hadar.controller.actuation.destinations.crossing_moves import CrossingMoves
from slurm_hadar.controller.actuation.destinations.host_capacity import FreeHostResources
from slurm_hadar.controller.observation import racks
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.snapshot import batch_choice, cpus, movability, pending_demand
from slurm_hadar.controller.snapshot.eligibility import Place, SchedulableJob, placed
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.steering import Steering

WOULD_STOP = "runs on; the policy would stop it for other jobs"
NOT_STOPPED = f"{WOULD_STOP}, which this site does not do (guards.preempt)"


class Kind(Enum):
    """What can be done to a job."""

    HINT = "hint"
    MOVE = "move"
    STOP = "stop"
    CHAIN = "chain"
    """A requeue before the time limit ends."""
    STOP_IDLE = "stop idle"
    """A stop of a job that leaves its GPUs idle."""


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
class PlanDiff:
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
    refused: Callable[[Sequence[Action]], Mapping[str, str]] = lambda actions: {}
    """Which of some moves would not start again, by job, with the reason."""


def diff(
    snapshot: Snapshot, plan: Plan, seen: Observed, config: Config, budget: MoveBudget
) -> PlanDiff:
    """What to send to running jobs."""
    deferred: dict[str, str] = {}
    moves: list[Action] = []
    for id_, target in snapshot.schedulable.items():
        placement = plan.placements.get(id_)
        if target.starting or target.job.state is not JobState.RUNNING:
            continue
        action = (
            move(target, placement, seen, config)
            if placement
            else stop(target, plan.waiting.get(id_, "no placement in this round"), seen, config)
        )
        if action is None and placement is None:
            deferred[id_] = NOT_STOPPED
        elif action is not None and id_ in snapshot.staying:
            deferred[id_] = f"{movability.CANNOT_MOVE}: {snapshot.staying[id_]}"
        elif action is not None and (node := _reserved(action, seen)):
            deferred[id_] = f"a reservation of {node} begins before its time limit ends"
        elif action is not None:
            moves.append(action)
    newcomers = {id_ for id_ in plan.placements if not snapshot.schedulable[id_].held}
    most = min(budget.left, config.guards.max_moves_per_tick)
    while True:
        chosen = _shared(moves, most, budget.by_user)
        stopped = [action.job for action in chosen if action.placement is None]
        vain = preemption.needless_preemptions(stopped, newcomers, seen)
        if vain:
            deferred |= vain
            moves = [action for action in moves if action.job.id not in vain]
            continue
        # Under preempt a move may need what another one leaves, so that one has to be chosen too.
        claimed = _claimed(chosen, snapshot, seen, config)
        left = [action for action in chosen if action.job.id not in claimed]
        claimed |= budget.refused(left)
        deferred |= claimed
        moves = [action for action in moves if action.job.id not in claimed]
        if not claimed:
            break
    for action in moves:
        if action not in chosen:
            deferred[action.job.id] = "the limit on moves per tick or hour is reached"
    return PlanDiff(tuple(chosen), deferred)


def _claimed(
    moves: Sequence[Action], snapshot: Snapshot, seen: Observed, config: Config
) -> dict[str, str]:
    """Moves whose place a job that waits would take, with the reason.

    While a moved job is requeued Slurm gives what is free, and what the job leaves, to whoever is
    next. So a job moves only to what no waiting job can use, alone or together with what all
    moves of this tick leave, with CPUs and memory that are free beside it, to no node that another
    moved job leaves, and to none that Slurm closes for a job ahead. ``guards.preempt`` lets it move
    to what other moved jobs leave as well.
    """
    if not moves:
        return {}
    # Backfill keeps planned nodes for a job that is ahead.
    planned = {node.name for node in seen.nodes.values() if "PLANNED" in node.state.upper()}
    left = {
        name: gpus for name, gpus in pending_demand.free_now(seen).items() if name not in planned
    }
    under_way = [target for target in snapshot.schedulable.values() if target.starting]
    for target in under_way:
        for name, gpus in target.held.items():
            pending_demand.set_aside(gpus, [name], left)
    ids = [target.job.id for target in under_way]
    waiting, takers = _serve(pending_demand.unmanaged_jobs(seen, ids), seen, left)
    # What backfill expects to start later may start on what a moved job leaves.
    waiting += pending_demand.expected_later(seen, ids, left)
    waiting.sort(key=lambda job: pending_demand.queue_key(job, seen))
    crossing = CrossingMoves(under_way)
    beside = FreeHostResources(seen)
    joint: dict[str, str] = {}
    if not config.guards.preempt:
        leaving = [action.job for action in moves]
        joint = left_nodes.possible_takers(leaving, under_way, waiting, seen, left)
    else:
        for action in moves:
            _add(left, placed(action.job, seen.nodes))
            beside.add(action.job)
        waiting, more = _serve(waiting, seen, left)
        takers |= more
    found: dict[str, str] = {}
    for action in moves:
        if action.placement is None:
            continue
        own = {} if config.guards.preempt else placed(action.job, seen.nodes)
        there = {name: dict(gpus) for name, gpus in left.items()}
        _add(there, own)
        _, later = _serve(waiting, seen, there)
        place = action.placement.nodes or _anywhere(action.placement, there)
        later |= {name: joint[name] for name in place if name in joint}
        if _fits(place, there) and not any(name in joint for name in place):
            why = "" if config.guards.preempt else crossing.why_not(action.job, place)
            if ahead := blocking_job(action.job, place, waiting, seen):
                kept = f"Slurm keeps that partition for job {ahead}"
                why = f"{kept}: the moved job would start elsewhere"
            if why:
                found[action.job.id] = why
                continue
            if not beside.take(action.job, action.fields, list(place), set(own)):
                found[action.job.id] = "the CPUs or the memory that it needs there are not free yet"
                continue
            _take(left, place, own)
            crossing.add(action.job, place)
            continue
        taker = next(((takers | later)[name] for name in place if name in takers | later), "")
        found[action.job.id] = _not_free(taker, planned & place.keys())
    return found


def _take(left: pending_demand.Free, place: Place, own: Place) -> None:
    """Take a place from what is free, but for what the job itself leaves there."""
    for name, gpus in place.items():
        for kind, count in gpus.items():
            left[name][kind] -= max(0, count - own.get(name, {}).get(kind, 0))


def _not_free(taker: str, planned: Collection[str]) -> str:
    """Why a move's place is not free. ``planned``: its nodes that backfill keeps."""
    if taker:
        return f"job {taker}, which waits, gets these GPUs first"
    if planned:
        return f"Slurm keeps {min(planned)} for a job ahead (PLANNED)"
    return "these GPUs are not free yet"


def _add(free: pending_demand.Free, more: Place) -> None:
    for name, gpus in more.items():
        for kind, count in gpus.items():
            if name in free:
                free[name][kind] = free[name].get(kind, 0) + count


def _serve(
    waiting: Sequence[Job], seen: Observed, free: pending_demand.Free
) -> tuple[list[Job], dict[str, str]]:
    """Give those who wait what they can use of ``free``: who gets nothing, and node -> who takes
    something there."""
    some = {name: gpus for name, gpus in free.items() if any(gpus.values())}
    rest: list[Job] = []
    takers: dict[str, str] = {}
    for number, job in enumerate(waiting):
        if not some:
            return [*rest, *waiting[number:]], takers
        claimed = pending_demand.pending_demand(job, seen, some)
        if claimed is None:
            rest.append(job)
            continue
        for name in claimed.gpus:
            takers[name] = job.id
            if not any(some[name].values()):
                del some[name]
    return rest, takers


def _anywhere(placement: Placement, free: pending_demand.Free) -> dict[str, dict[str, int]]:
    """Some nodes for a placement that names none; less than its GPUs where there are not enough."""
    found: dict[str, dict[str, int]] = {}
    for kind, count in placement.gpus.items():
        left = count
        for name, gpus in free.items():
            part = min(left, gpus.get(kind, 0))
            if part > 0:
                found.setdefault(name, {})[kind] = part
                left -= part
        if left:
            # On no node there is: it does not fit.
            found.setdefault("", {})[kind] = left
    return found


def _fits(place: Place, free: pending_demand.Free) -> bool:
    return all(
        free.get(name, {}).get(kind, 0) >= count
        for name, gpus in place.items()
        for kind, count in gpus.items()
    )


def _reserved(action: Action, seen: Observed) -> str:
    """The first node of the placement with a reservation that begins before the job's time limit
    ends, so that Slurm would not start the job there; "": none."""
    if action.placement is None or not action.placement.nodes:
        return ""
    closed = seen.reserved_nodes(action.job.time_limit_s)
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


def stop(target: SchedulableJob, why: str, seen: Observed, config: Config) -> Action | None:
    """Make way for jobs that gain more: save, and wait in the queue like any other."""
    if not config.guards.preempt:
        return None
    job, steered = target.job, seen.steered(target.job.id)
    steering = Steering(time=seen.now, moves=steered.moves + 1, foreign=steered.foreign)
    return Action(Kind.STOP, job, job_updates.undo_fields(job, steered), steering, why)


def move(
    target: SchedulableJob, placement: Placement, seen: Observed, config: Config, pin: bool = False
) -> Action | None:
    """Move a running job; ``pin``: to these very nodes. None where it is there already, or its
    owner changed it so that it may not go there."""
    held: dict[str, int] = {}
    for gpus in target.held.values():
        for kind, count in gpus.items():
            held[kind] = held.get(kind, 0) + count
    steered = seen.steered(target.job.id)
    named = pin or placement.copies > 1 or racks.pinned(placement, seen.racks)
    elsewhere = named and set(target.held) != set(placement.nodes)
    other = elsewhere or cpus.differs(target.job, target.request, placement)
    said = seen.progress.get(target.job.id)
    other |= batch_choice.differs(target.job, placement, said, steered.batch)
    if held == dict(placement.gpus) and not other:
        return None
    if job_updates.owner_forbids(target.job, target.request, placement, seen, config):
        return None
    fields = job_updates.fields(target.job, target.request, placement, seen, config, pin)
    was = job_updates.originals(target.job, fields, steered.was, target.request.partitions)
    if pin or target.request.copies[1] > 1:
        fields = job_updates.in_full(placement, fields, was)
    steering = Steering(
        gpus=placement.gpus,
        nodes=placement.nodes,
        time=seen.now,
        moves=steered.moves + 1,
        was=was,
        batch=placement.batch or 0,
        wrote={key: fields.get(key, job_updates.current(target.job, key)) for key in was},
        foreign=steered.foreign,
    )
    return Action(Kind.MOVE, target.job, fields, steering, placement.reason, placement)
