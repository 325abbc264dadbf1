"""Reservations of the nodes of a job that is requeued to a part of what it held.

Slurm gives what a requeued job leaves to the first that waits, in the second or two until the job
may start again. Meanwhile a reservation closes these nodes for all, and with it goes a Nice that
puts the job before all that wait there. The reservation ends by itself a minute or more later,
should the controller die; a Nice that is left is corrected when the move is ended.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.destinations.own_nodes import is_part
from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.actuation.running import priority_after_requeue
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState

_RESERVED = "reserved"
"""Key of a journal entry's details: a reservation was, or may have been, made for the move."""
_LOOKS, _PAUSE_S = 10, 0.5
"""How often, and how far apart, it is asked whether the jobs have started."""
_LEAST_S, _MORE_S = 60.0, 20.0
"""A reservation lasts so long at least, and so much longer than a job may take to leave its nodes:
also until a controller that died has been started anew (``RestartSec`` of the systemd unit)."""


def is_for(context: ActionContext, entry: Entry) -> bool:
    """Whether the nodes of a move are reserved: it goes to a part of what its job held when it was
    decided."""
    held, place = entry.details.get("from"), steering_of(entry.details, 0.0).nodes
    may = context.config.site.rights != "user"
    return may and isinstance(held, dict) and is_part(place, held)


def reserve(
    context: ActionContext, moved: Sequence[tuple[Entry, Job]]
) -> list[tuple[Entry, SlurmError | None]]:
    """Close the nodes of such moves before their jobs are requeued, where others wait: the entries
    as they are kept then, and Slurm's answers."""
    answers: list[tuple[Entry, SlurmError | None]] = []
    waiting = _waiting(context, moved)
    parts = {name for entry, _ in moved for name in steering_of(entry.details, 0.0).nodes}
    seconds = max(_LEAST_S, context.config.moving.after_return_s + _MORE_S)
    for entry, job in moved:
        known, answer = entry, None
        # One that was made without an answer would refuse the next of its name.
        end(context, entry, job)
        if waiting and is_for(context, entry):
            # First: the reservation is to end even if this controller dies meanwhile.
            known = replace(entry, details={**entry.details, _RESERVED: True})
            context.store.keep_details(known.id, known.details)
            try:
                part = steering_of(entry.details, 0.0).nodes.keys()
                # No node on which another of them goes on, maybe sooner.
                nodes = part | (_beside(context, entry, waiting) - parts)
                context.cluster.reserve(_name(job), sorted(nodes), seconds)
            except SlurmError as error:
                answer = error
        answers.append((known, answer))
    return answers


def least_priorities(context: ActionContext, moved: Sequence[tuple[Entry, Job]]) -> dict[str, int]:
    """Job -> the priority that puts it before all others that wait, of those whose nodes are
    reserved; empty where no other waits, or where that cannot be read."""
    waiting = _waiting(context, moved)
    first = max((job.priority + 1 for job in waiting), default=0)
    return {job.id: first for entry, job in moved if waiting and is_for(context, entry)}


def _waiting(context: ActionContext, moved: Sequence[tuple[Entry, Job]]) -> list[Job]:
    """The others that wait, where nodes of ``moved`` may be reserved; empty where that cannot be
    read."""
    if not any(is_for(context, entry) for entry, _ in moved):
        return []
    try:
        jobs = context.cluster.read_jobs()
    except SlurmError:
        return []
    ids = {job.id for _, job in moved}
    return [
        job for job in jobs if job.state is JobState.PENDING and not job.held and job.id not in ids
    ]


def _beside(context: ActionContext, entry: Entry, waiting: Sequence[Job]) -> set[str]:
    """The nodes that the job leaves and those with free GPUs, where one of ``waiting`` may take
    several. While the nodes on which the job goes on are reserved Slurm passes over such a job, and
    would start those behind it on the others."""
    partitions = {name for job in waiting if _may_spread(job) for name in job.partitions}
    held = entry.details.get("from")
    names = {*held} if partitions and isinstance(held, dict) else set[str]()
    for node in context.nodes.values():
        free = any(count > node.gpus_used.get(kind, 0) for kind, count in node.gpus.items())
        if free and node.usable and not partitions.isdisjoint(node.partitions):
            names.add(node.name)
    return names


def _may_spread(job: Job) -> bool:
    """Whether Slurm may start a job on several nodes."""
    request = job.request
    of_job = sum(request.per_job.values()) or job.tasks * sum(request.per_task.values())
    return job.node_count > 1 or of_job > 1


def give(
    context: ActionContext,
    released: Sequence[tuple[Entry, Job]],
    least: Mapping[str, int],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Open the nodes again: the jobs, which may start, are the first there. One that has not
    started some seconds later gets its own priority again. Slurm is asked about these jobs only.
    ``least``: what :func:`least_priorities` says."""
    if not released:
        return
    # Of a smaller job PriorityWeightJobSize makes less.
    priority_after_requeue.correct_nices(context, [entry for entry, _ in released], least)
    for entry, job in released:
        end(context, entry, job)
    waiting = {job.id: entry for entry, job in released}
    for _ in range(_LOOKS):
        sleep(_PAUSE_S)
        try:
            shown = context.cluster.read_jobs(list(waiting))
        except SlurmError:
            continue
        still = {job.id for job in shown if job.state is JobState.PENDING}
        waiting = {id_: entry for id_, entry in waiting.items() if id_ in still}
        if not waiting:
            return
    priority_after_requeue.correct_nices(context, list(waiting.values()), {})


def end(context: ActionContext, entry: Entry, job: Job) -> None:
    """Open the nodes of a move again, if they were reserved."""
    # Where that fails the reservation has ended by itself, or will.
    with contextlib.suppress(SlurmError):
        if entry.details.get(_RESERVED):
            context.cluster.unreserve(_name(job))


def _name(job: Job) -> str:
    return f"hadar_{job.raw_id}"
