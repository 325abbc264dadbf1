"""What a journal entry says of an action, and how it is read again."""

import contextlib
from collections.abc import Mapping

from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain import steering
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.hosts import fold

STOOD_FIELDS = ("Features", "Partition", "ReqNodeList")
"""What is compared of a job while it moves."""
UNKNOWN = "unknown"
"""Key of those of them of which it is not known how they stood."""
_ENTRIES = 50
"""Of a job's journal that are looked at: its last move is among them."""


def action_details(action: Action) -> dict[str, object]:
    """What every action writes, and why."""
    ours = action.steering
    return {
        "fields": dict(action.fields),
        "gpus": dict(ours.gpus),
        "nodes": {node: dict(gpus) for node, gpus in ours.nodes.items()},
        "moves": ours.moves,
        "was": dict(ours.was),
        "wrote": dict(ours.wrote),
        "foreign": list(ours.foreign),
        "listed": list(ours.listed),
        "priority": action.job.priority,
        "from": {node: dict(gpus) for node, gpus in action.job.gpus.items()},
        "reason": action.reason,
        "copies": action.placement.copies if action.placement else 1,
        "shares": list(action.placement.shares) if action.placement else [],
        "batch": action.placement.batch if action.placement else None,
    }


def hint_details(action: Action, before: Steering) -> dict[str, object]:
    """What a hint writes. ``before``: what was kept of the job until then."""
    return {**action_details(action), "before": steering.merge("", before)}


def move_details(action: Action, recorded: Steering, store: Store) -> dict[str, object]:
    """What a move or a stop writes besides :func:`action_details`. ``recorded``: what is kept of
    the job."""
    job, declared = action.job, action.job.declaration or Declaration()
    details: dict[str, object] = {
        "restarts": job.restarts,
        "priority": job.priority + _given_back(store, action),
        "stood": _stood(action, recorded),
        UNKNOWN: [key for key in STOOD_FIELDS if key in recorded.unsure],
        "habit": declared.habit,
    }
    if declared.habit == "signal":
        # The owner may opt the job out before it ends so.
        details["exit_code"] = declared.checkpoint_exit_code
        if declared.asks.grace_s is not None:
            details["grace_s"] = declared.asks.grace_s
    return details


def _stood(action: Action, recorded: Steering) -> dict[str, str]:
    """:data:`STOOD_FIELDS` of the request as the job's requeue shows them again. Of a job that
    runs Slurm shows one partition: its list is known where we, or hbatch, wrote it, or its owner
    while a tick saw it wait. What Slurm may not have taken is not known."""
    job = action.job
    listed = job.declaration.listed if job.declaration else ()
    listed = recorded.listed or listed
    fields = {"Features": job.features, "ReqNodeList": fold(job.required_nodes)}
    fields |= {"Partition": ",".join(listed)} if listed else {}
    fields |= recorded.wrote
    return {
        key: value
        for key, value in fields.items()
        if key in STOOD_FIELDS and key not in recorded.unsure
    }


def _given_back(store: Store, action: Action) -> int:
    """Priority that the last move of a running job took from it, and that it had by its Nice until
    it ran: Slurm shows it without that now, and after each further move it would have less."""
    job, points = action.job, 0
    if "Nice" in action.steering.was:
        # It still has it.
        return 0
    for entry in store.history(job.id, _ENTRIES):
        fields, restarts = entry.details.get("fields"), entry.details.get("restarts")
        if entry.kind == Kind.MOVE.value and restarts != job.restarts:
            # Another requeue than that of the move took away what was given back.
            return points if restarts == job.restarts - 1 else 0
        own_again = entry.kind == Kind.HINT.value and isinstance(fields, dict) and "Nice" in fields
        if own_again and not points:
            before = steering.decode(str(entry.details.get("before")))
            nice = (before.was.get("Nice"), before.wrote.get("Nice")) if before else (None, None)
            with contextlib.suppress(TypeError, ValueError):
                points = max(0, int(nice[0] or "") - int(nice[1] or ""))
    return 0


def steering_of(details: object, now: float) -> Steering:
    """The steering that a journal entry was about to write."""
    found = details if isinstance(details, dict) else {}
    return Steering(
        gpus=found.get("gpus", {}),
        nodes=found.get("nodes", {}),
        time=now,
        moves=int(found.get("moves", 0)),
        was=found.get("was", {}),
        wrote=found.get("wrote", {}),
        foreign=tuple(found.get("foreign", ())),
        listed=tuple(found.get("listed", ())),
        batch=batch_of_entry(found) or 0,
    )


def copies_of(details: Mapping[str, object]) -> tuple[int, tuple[float, ...]]:
    """Copies and their shares that a journal entry meant."""
    copies, shares = details.get("copies", 1), details.get("shares", [])
    if not isinstance(copies, int) or not isinstance(shares, list):
        return 1, ()
    return copies, tuple(float(share) for share in shares)


def batch_of_entry(details: Mapping[str, object]) -> int | None:
    """The global batch that a journal entry meant, None: as the job has it."""
    batch = details.get("batch")
    return batch if isinstance(batch, int) else None
