"""Whether a move that was decided some time ago is still right, just before its requeue.

Until a job has saved it runs on, so nothing is lost where its move is dropped. Meanwhile others may
have been submitted or held, and nodes may have gone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.destinations.open_places import places_lost, reserved_node
from slurm_hadar.controller.actuation.entry_details import copies_of, steering_of
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import movability
from slurm_hadar.controller.snapshot.eligibility import Place
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.placement import Placement


@dataclass(frozen=True)
class _UnderWay:
    """Another move, and where its job goes."""

    job: Job
    held: Place


def obstacles(
    ripe: Sequence[tuple[Entry, Job]],
    others: Sequence[Entry],
    observation: Observation,
    config: Config,
    refused: Callable[[Sequence[Action]], Mapping[str, str]] = lambda actions: {},
) -> dict[str, str]:
    """Why moves would harm their jobs now, by job. ``others``: moves under way that are not about
    to be requeued; ``observation``: without trainings on idle nodes, which give way; ``refused``:
    see :attr:`MoveBudget.refused`."""
    found: dict[str, str] = {}
    moves: list[Action] = []
    for entry, job in ripe:
        move = _move(entry, job)
        gone = [name for name in move.steering.nodes if not _is_usable(name, observation)]
        if why := movability.starts_worse(job, observation):
            found[job.id] = why
        elif gone:
            found[job.id] = f"node {gone[0]}, where it would go, is not available any more"
        elif node := reserved_node(move, observation):
            found[job.id] = f"a reservation of {node} begins before its time limit ends"
        else:
            moves.append(move)
    found |= refused([_or_stop(move) for move in moves])
    moves = [move for move in moves if move.job.id not in found]
    if config.guards.preempt:
        # Their places may still be those of jobs that make way for them.
        return found
    return found | places_lost(moves, _under_way(others, observation), observation, config)


def _is_usable(name: str, observation: Observation) -> bool:
    node = observation.nodes.get(name)
    return node is not None and node.usable and not node.asleep


def _move(entry: Entry, job: Job) -> Action:
    ours, fields = steering_of(entry.details, entry.opened_s), entry.details.get("fields")
    copies, _ = copies_of(entry.details)
    placement = Placement(ours.gpus, ours.nodes, copies=copies)
    written = fields if isinstance(fields, dict) else {}
    return Action(Kind.MOVE, job, written, ours, "", placement)


def _or_stop(move: Action) -> Action:
    """A stop goes nowhere."""
    return move if move.steering.gpus else replace(move, kind=Kind.STOP, placement=None)


def _under_way(entries: Sequence[Entry], observation: Observation) -> list[_UnderWay]:
    return [
        _UnderWay(observation.jobs[entry.job], steering_of(entry.details, entry.opened_s).nodes)
        for entry in entries
        if entry.job in observation.jobs
    ]
