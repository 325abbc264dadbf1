"""Whether the places to which running jobs are to move stay free until they are there."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.destinations import vacated_nodes
from slurm_hadar.controller.actuation.destinations.crossing_moves import CrossingMoves, MovingJob
from slurm_hadar.controller.actuation.destinations.host_capacity import FreeHostResources
from slurm_hadar.controller.actuation.destinations.own_nodes import can_reserve
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import Place, placed
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.placement import Placement


class PlannedMove(Protocol):
    """A running job, where it is to go (None: it is to wait), and what is sent to Slurm."""

    @property
    def job(self) -> Job:
        """As Slurm shows it."""
        ...

    @property
    def placement(self) -> Placement | None:
        """Where it is to go."""
        ...

    @property
    def fields(self) -> Mapping[str, str]:
        """What is written into its request."""
        ...


def places_lost(
    moves: Sequence[PlannedMove],
    under_way: Sequence[MovingJob],
    observation: Observation,
    config: Config,
) -> dict[str, str]:
    """Moves whose place a job that waits would take, by job, with the reason. ``under_way``: the
    jobs of other moves, with where they go.

    While a moved job is requeued Slurm gives what is free, and what the job leaves, to the next
    job. So a job moves only to what no waiting job can use, alone or together with what all moves
    of this tick leave, with CPUs and memory that are free beside it, to no node that another
    moved job leaves, and to none that Slurm closes for a job ahead; or to a part of what it holds,
    which is kept for it (:mod:`.own_nodes`). ``guards.preempt`` lets it move
    to what other moved jobs leave as well.
    """
    if not moves:
        return {}
    places = _OpenPlaces(moves, under_way, observation, config)
    found = {
        action.job.id: places.why_not(action, action.placement)
        for action in moves
        if action.placement is not None
    }
    return {job: why for job, why in found.items() if why}


class _OpenPlaces:
    """What is free for the moves of a tick, and who takes it, while they take their places."""

    def __init__(
        self,
        moves: Sequence[PlannedMove],
        under_way: Sequence[MovingJob],
        observation: Observation,
        config: Config,
    ) -> None:
        self._observation, self._config = observation, config
        nodes = observation.nodes.values()
        # Backfill keeps planned nodes for a job that is ahead.
        self._planned = {node.name for node in nodes if "PLANNED" in node.state.upper()}
        left = self._left = {
            name: gpus
            for name, gpus in pending_demand.free_now(observation).items()
            if name not in self._planned
        }
        for target in under_way:
            for name, gpus in target.held.items():
                pending_demand.set_aside(gpus, [name], left)
        ids = [target.job.id for target in under_way]
        # What backfill expects to start later may start on what is free since its last pass, and
        # on what a moved job leaves.
        starts = pending_demand.possible_starts(observation, ids)
        self._waiting, self._takers = _serve(starts, observation, left)
        self._crossing = CrossingMoves(under_way)
        self._beside = FreeHostResources(observation)
        self._joint: dict[str, str] = {}
        self._closed = set[str]()
        if not config.guards.preempt:
            leaving = [action.job for action in moves]
            self._joint = vacated_nodes.possible_takers(
                leaving, under_way, self._waiting, observation, left
            )
            return
        for action in moves:
            pending_demand.give(placed(action.job, observation.nodes), left)
            self._beside.add(action.job)
        self._waiting, more = _serve(self._waiting, observation, left)
        self._takers |= more

    def why_not(self, action: PlannedMove, placement: Placement) -> str:
        """Why the move's place does not stay free; where it does ("") the move takes it."""
        observation, preempt = self._observation, self._config.guards.preempt
        own = {} if preempt else placed(action.job, observation.nodes)
        there = {name: dict(gpus) for name, gpus in self._left.items()}
        pending_demand.give(own, there)
        _, later = _serve(self._waiting, observation, there)
        place = placement.nodes or _anywhere(placement, there)
        later |= {name: self._joint[name] for name in place if name in self._joint}
        if _fits(place, there) and not any(name in self._joint for name in place):
            return self._take_free(action, place, own)
        if self._closed.isdisjoint(place) and can_reserve(
            action.job, place, observation, self._config
        ):
            self._closed |= place.keys()
            return ""
        takers = self._takers | later
        taker = next((takers[name] for name in place if name in takers), "")
        return _not_free(taker, self._planned & place.keys())

    def _take_free(self, action: PlannedMove, place: Place, own: Place) -> str:
        """Why a place whose GPUs are free cannot be taken; where it can ("") it is."""
        if ahead := blocking_job(action.job, place, self._waiting, self._observation):
            return (
                f"Slurm keeps that partition for job {ahead}: the moved job would start elsewhere"
            )
        if not self._config.guards.preempt and (why := self._crossing.why_not(action.job, place)):
            return why
        if not self._beside.take(action.job, action.fields, list(place), set(own)):
            return "the CPUs or the memory that it needs there are not free yet"
        _take(self._left, place, own)
        self._crossing.add(action.job, place)
        return ""


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


def _serve(
    waiting: Sequence[Job], observation: Observation, free: pending_demand.Free
) -> tuple[list[Job], dict[str, str]]:
    """Give those who wait what they can use of ``free``: who gets nothing, and node -> who takes
    something there."""
    some = {name: gpus for name, gpus in free.items() if any(gpus.values())}
    rest: list[Job] = []
    takers: dict[str, str] = {}
    for number, job in enumerate(waiting):
        if not some:
            return [*rest, *waiting[number:]], takers
        claimed = pending_demand.pending_demand(job, observation, some)
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


def reserved_node(move: PlannedMove, observation: Observation) -> str:
    """The first node of the placement with a reservation that begins before the job's time limit
    ends, so that Slurm would not start the job there; "": none."""
    if move.placement is None or not move.placement.nodes:
        return ""
    closed = observation.reserved_nodes(move.job.time_limit_s)
    return next((name for name in move.placement.nodes if name in closed), "")


# Moves to a partition in which a job ahead waits: Slurm would start the moved job elsewhere.
#
# When a job does not fit, Slurm's main scheduler starts no later job on the nodes of its partition
# in that pass (``job_scheduler.c``: ``failed_parts``). A moved job that is requeued names its old
# partition as well, and that is where it starts at once: it has lost its restart for nothing.
def blocking_job(job: Job, place: Place, waiting: Sequence[Job], observation: Observation) -> str:
    """The id of a job of ``waiting`` for which Slurm keeps the running ``job`` from ``place`` but
    not from the nodes that it has; "": none.

    ``waiting``: those that Slurm would start and that do not fit now, in its order. Where the old
    nodes are closed too, backfill chooses, and takes the first of the job's partitions.
    """
    blocked: dict[str, str] = {}
    for other in waiting:
        if not _is_ahead(other, job, observation):
            break
        for name in _closed(other, observation):
            blocked.setdefault(name, other.id)
    there = [blocked[name] for name in place if name in blocked and name not in job.gpus]
    return there[0] if there and not blocked.keys() >= job.gpus.keys() else ""


def _is_ahead(other: Job, job: Job, observation: Observation) -> bool:
    """Slurm's order once ``job`` is requeued: of equals the smaller number first."""
    if not observation.priority_returns:
        return True
    ranks = pending_demand.rank(other, observation), pending_demand.rank(job, observation)
    return ranks[0] > ranks[1] or (ranks[0] == ranks[1] and other.raw_id < job.raw_id)


def _closed(other: Job, observation: Observation) -> Sequence[str]:
    """The nodes on which no later job starts: those that it names, else all of its partitions."""
    if other.required_nodes:
        return other.required_nodes
    partitions = (
        observation.partitions[name] for name in other.partitions if name in observation.partitions
    )
    return [name for partition in partitions for name in partition.nodes]
