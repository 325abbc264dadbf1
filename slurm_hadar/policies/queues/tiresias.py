"""Tiresias, two-dimensional least attained service (2D-LAS): a baseline that knows no run times.

Gu et al., NSDI 2019; recalled: attained service is GPUs x time; a job moves down from queue to
queue as it passes limits; higher queues go first, in order of arrival within a queue; preemption at
each decision. The limits are those of the authors' simulator (3,250, 7,200 and 18,000 GPU-seconds,
recalled). The promotion of starving jobs is left out: it is off there by default. Ours: since types
differ, a job takes the free type that is fastest for it and stays there until preempted.
"""

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import BoolArray, IntArray, State, View
from slurm_hadar.policies.options import PolicyOptions
from slurm_hadar.policies.queues.list_scheduler import seconds_left, serve
from slurm_hadar.policies.record import Policy, Trait

QUEUES = (3250.0, 7200.0, 18000.0)
"""Limits in GPU-seconds, ascending: those of the simulator of Tiresias's authors (recalled)."""


def _limits(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        return ()


def _rising(text: object) -> str:
    normalised = ",".join(f"{limit:g}" for limit in QUEUES) if text is None else str(text)
    limits = _limits(normalised)
    if not limits or not all(0 < a < 1e18 for a in limits) or list(limits) != sorted(set(limits)):
        raise ValueError("not rising limits in GPU-seconds, such as 3250,7200,18000")
    return normalised


class QueueOptions(PolicyOptions):
    """The queues of attained service."""

    queues: Annotated[str, BeforeValidator(_rising)] = "3250,7200,18000"
    """The limits of the queues, rising, in GPU-seconds, as text with commas."""

    @property
    def limits(self) -> tuple[float, ...]:
        """``queues`` as numbers."""
        return _limits(self.queues)


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for invalid limits."""
    limits = QueueOptions.read(view.options).limits
    jobs = view.jobs
    if not jobs.ids:
        return serve(view, (), strict=False), dict(state)
    queue = np.searchsorted(np.asarray(limits), jobs.attained, side="right")
    order = np.lexsort((np.arange(len(jobs.ids)), jobs.arrival_s, queue))
    first = _served_first(view, order)
    stopped = jobs.running & jobs.movable & ~first
    held = jobs.held[~stopped[jobs.held[:, 0]]] if len(jobs.held) else jobs.held
    # Stopped jobs come after the others, and may get what those leave.
    order = np.concatenate([order[first[order]], order[~first[order]]])
    shown = replace(view, jobs=replace(jobs, held=held, running=jobs.running & ~stopped))
    return serve(shown, order.tolist(), strict=False), dict(state)


def _served_first(view: View, order: IntArray) -> BoolArray:
    """(J,) jobs for which the GPUs suffice in this order, counted per type, nodes ignored."""
    jobs = view.jobs
    chosen: BoolArray = jobs.running & ~jobs.movable
    left = view.nodes.gpus.sum(axis=0).tolist()
    on: dict[int, list[tuple[int, int]]] = {}
    for job, _, kind, count in jobs.held.tolist():
        on.setdefault(job, []).append((kind, count))
        if chosen[job]:
            left[kind] -= count
    seconds = seconds_left(view)
    possible = np.isfinite(seconds).any(axis=1)
    column = possible.argmax(axis=1)
    gpus = np.asarray(view.counts)[column].tolist()
    faster = np.argsort(seconds[np.arange(len(column)), :, column], axis=1, kind="stable").tolist()
    able = np.isfinite(seconds[np.arange(len(column)), :, column])
    least = min(gpus)
    for job in order.tolist():
        if sum(left) < least:
            break
        if chosen[job]:
            continue
        kinds = on.get(job) or [
            (kind, gpus[job]) for kind in faster[job] if able[job, kind] and left[kind] >= gpus[job]
        ][:1]  # fmt: skip
        if kinds and all(left[kind] >= count for kind, count in kinds):
            chosen[job] = True
            for kind, count in kinds:
                left[kind] -= count
    return chosen


POLICY = Policy(
    name="tiresias",
    decide=decide,
    options=QueueOptions,
    uses=frozenset({Trait.MOVES, Trait.ORDER}),
    preempts=True,
    title="least attained service first, in queues; knows no lengths",
    paper="Tiresias, NSDI 2019",
)
