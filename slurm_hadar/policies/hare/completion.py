"""Hare's rounds for the plans of other policies: tasks dealt over nodes that a plan leaves free."""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import View
from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.policies.hadare.forks import SpareCapacity
from slurm_hadar.policies.hadare.main_copies import Seat, Seats, seats_of
from slurm_hadar.policies.hare.deal import DealtTasks, best, over, pays, placement

_SETTINGS = HadarOptions()


def with_dealt_rounds(view: View, plan: Plan, exchange: float = 0.02) -> Plan:
    """The plan with rounds dealt over further nodes. Pure; no job loses its placement.

    Only jobs with tasks that may be forked (``JobArrays.tasks``, ``copies``) change. In order of
    arrival: a waiting job gets the best that is free; a job on one node gets more nodes if its
    rounds end sooner. A running job that would stay restarts only if that pays, and one that may
    not be moved is unchanged. ``exchange``: see :func:`~slurm_hadar.policies.hare.deal.over`.
    """
    jobs, spare = view.jobs, SpareCapacity(view)
    able = (jobs.tasks > 1) & (jobs.copies > 1)
    if not able.any():
        return plan
    held: dict[int, set[Seat]] = {}
    for job, node, kind, count in jobs.held.tolist():
        held.setdefault(job, set()).add((node, kind, count))
    planned: dict[int, Seats] = {}
    for job, id_ in enumerate(jobs.ids):
        if id_ in plan.placements:
            if not plan.placements[id_].nodes:
                # Placements without node names cannot be subtracted from the nodes.
                return plan
            planned[job] = seats_of(view, plan.placements[id_])
            for seat in planned[job]:
                spare.take(job, seat)
    placements = dict(plan.placements)
    waiting = dict(plan.waiting)
    for job in np.argsort(jobs.arrival_s, kind="stable").tolist():
        id_, seats = jobs.ids[job], planned.get(job, ())
        stays = bool(seats) and set(seats) == held.get(job, set())
        if not able[job] or len(seats) > 1 or (job in held and not jobs.movable[job]):
            continue
        if not seats and id_ not in waiting:
            continue
        more = _still_there(spare, job, seats, held.get(job, set()))
        dealt = over(view, job, sorted({*seats, *more}), exchange) if more else None
        if dealt is not None and all(dealt.tasks):
            for seat in more:
                spare.take(job, seat)
            seats, stays = dealt.seats, True
        else:
            # These GPUs were those of a gang: a seat without a task would idle.
            dealt = None
        choice = _choice(spare, job, seats, stays, exchange) or dealt
        if choice is not None:
            placements[id_] = _placed(view, job, choice, plan.placements.get(id_))
            waiting.pop(id_, None)
    return Plan(placements, waiting, plan.notes)


def _still_there(spare: SpareCapacity, job: int, seats: Seats, had: set[Seat]) -> list[Seat]:
    """The further seats of a job with dealt rounds, if the plan keeps one of its seats and the
    others are free."""
    others = sorted(had - set(seats))
    if not seats or not set(seats) < had or not all(spare.holds(job, seat) for seat in others):
        return []
    return others


def _choice(
    spare: SpareCapacity, job: int, seats: Seats, stays: bool, exchange: float
) -> DealtTasks | None:
    view = spare.view
    for seat in seats:
        spare.take(job, seat, -1)
    choice = best(view, spare, job, exchange, _SETTINGS.communication)
    present = over(view, job, seats, exchange) if seats else None
    if choice is not None and present is not None:
        better = pays(view, job, present, choice, _SETTINGS) if stays else (
            choice.rate > present.rate * (1.0 + 1e-9)
        )  # fmt: skip
        choice = choice if better else None
    for seat in choice.seats if choice is not None else seats:
        spare.take(job, seat)
    return choice


def _placed(view: View, job: int, dealing: DealtTasks, before: Placement | None) -> Placement:
    if before is None:
        return placement(view, job, dealing, False, "waited, and these are spare")
    return replace(
        placement(view, job, dealing, False, before.reason),
        cpus_per_gpu=before.cpus_per_gpu,
        mem_per_gpu_mb=before.mem_per_gpu_mb,
        batch=before.batch,
    )
