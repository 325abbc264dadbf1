"""The difference between the plan and where running jobs are, cut by the guards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import NOT_STOPPED, Action, Kind, move, stop
from slurm_hadar.controller.actuation.destinations import preemption
from slurm_hadar.controller.actuation.destinations.open_places import places_lost, reserved_node
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import movability
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Placement, Plan, by_type

_SAME = 0.99
"""Part of its present speed from which on a place is no slower."""


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
    snapshot: Snapshot, plan: Plan, observation: Observation, config: Config, budget: MoveBudget
) -> PlanDiff:
    """What to send to running jobs."""
    deferred: dict[str, str] = {}
    moves: list[Action] = []
    slower = SlowerPlaces(snapshot, config.guards.slower_for)
    for id_, target in snapshot.schedulable.items():
        placement = plan.placements.get(id_)
        if target.starting or target.job.state is not JobState.RUNNING:
            continue
        action = (
            move(target, placement, observation, config)
            if placement
            else stop(
                target, plan.waiting.get(id_, "no placement in this round"), observation, config
            )
        )
        if action is None and placement is None:
            deferred[id_] = NOT_STOPPED
        elif action is not None and id_ in snapshot.staying and id_ not in snapshot.returning:
            deferred[id_] = f"{movability.CANNOT_MOVE}: {snapshot.staying[id_]}"
        elif action is not None and (node := reserved_node(action, observation)):
            deferred[id_] = f"a reservation of {node} begins before its time limit ends"
        elif (
            action is not None
            and placement
            and id_ not in snapshot.returning
            and (why := slower.why_it_stays(target, plan))
        ):
            deferred[id_] = why
        elif action is not None:
            moves.append(action)
    newcomers = {id_ for id_ in plan.placements if not snapshot.schedulable[id_].held}
    under_way = [target for target in snapshot.schedulable.values() if target.starting]
    most = min(budget.left, config.guards.max_moves_per_tick)
    while True:
        chosen = _shared(moves, most, budget.by_user)
        stopped = [action.job for action in chosen if action.placement is None]
        vain = preemption.needless_preemptions(stopped, newcomers, observation)
        if vain:
            deferred |= vain
            moves = [action for action in moves if action.job.id not in vain]
            continue
        # Under preempt a move may need what another one leaves, so that one has to be chosen too.
        claimed = places_lost(chosen, under_way, observation, config)
        # These make way for the very jobs that take their nodes, and keep what those do not need.
        claimed = {id_: why for id_, why in claimed.items() if id_ not in snapshot.returning}
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


class SlowerPlaces:
    """For whose jobs a running job goes to a place where it is slower, in one tick. ``slower_for``:
    as in the configuration (``guards.slower_for``)."""

    def __init__(self, snapshot: Snapshot, slower_for: str) -> None:
        self._snapshot, self._for = snapshot, slower_for

    def why_it_stays(self, target: SchedulableJob, plan: Plan) -> str:
        """Why a running job is not moved to its place in the plan; empty: it may be. O(jobs)."""
        place = plan.placements[target.job.id]
        if self._for == "all" or not self._is_slower(target, place):
            return ""
        coming = self._coming_there(target, plan)
        if coming and all(self._shares(target.job, job) for job in coming):
            return ""
        return f"it would be slower there, for another's job (guards.slower_for = {self._for})"

    def _is_slower(self, target: SchedulableJob, place: Placement) -> bool:
        """Whether it is, or may be, as speeds on several types together are not known."""
        held = by_type(target.held)
        now, then = (self._snapshot.rate(target.job.id, gpus) for gpus in (held, place.gpus))
        return not (now and then) or then < _SAME * now

    def _coming_there(self, target: SchedulableJob, plan: Plan) -> list[Job]:
        """The jobs that come to the nodes that it leaves."""
        jobs = self._snapshot.schedulable
        left = {*target.held} - {*plan.placements[target.job.id].nodes}
        return [
            jobs[id_].job
            for id_, place in plan.placements.items()
            if id_ != target.job.id and left & ({*place.nodes} - {*jobs[id_].held})
        ]

    def _shares(self, job: Job, other: Job) -> bool:
        match self._for:
            case "user":
                return job.uid == other.uid
            case "account":
                return bool(job.account) and job.account == other.account
            case _:
                return False
