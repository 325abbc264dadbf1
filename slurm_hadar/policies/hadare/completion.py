"""HadarE's copies for the plan of any policy: jobs forked onto the nodes that it leaves over."""

from dataclasses import replace

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import BoolArray, View
from slurm_hadar.policies.allocation import gpus_and_nodes
from slurm_hadar.policies.hadare.forks import (
    Forks,
    ForkSettings,
    SpareCapacity,
    free_text,
    shares_of,
)
from slurm_hadar.policies.hadare.main_copies import RunningCopies, Seats, rate_of, seats_of
from slurm_hadar.policies.reason_text import end_text

_MOST_NAMED = 6


def with_copies(
    view: View, plan: Plan, now: RunningCopies, may: BoolArray, settings: ForkSettings
) -> tuple[Plan, str]:
    """The plan with copies of jobs that may have some on nodes that no job has (pure; no job loses
    its place), and what that comes to, as text.

    ``now``: the copies that run already, whose jobs the plan shows with their main alone. ``may``
    (J,): which jobs may be forked, where the plan places them.
    """
    spare = SpareCapacity(view)
    forks = Forks(view, settings, spare)
    seats_of_job = _keep(view, now, plan, spare)
    for job, seats in seats_of_job.items():
        # On a node that shrank below what is held there nothing new may be counted on.
        if not may[job] or any(spare.short(seat) for seat in seats):
            continue
        # Who starts or moves anyway takes further nodes at no cost.
        unchanged = set(seats) == set(_had(now, job))
        if not unchanged or now.free_to_change[job]:
            forks.enter(job, seats, float(view.jobs.restart_s[job]) if unchanged else 0.0)
    forks.hand_out()
    seats_of_job.update(forks.seats)
    placements = dict(plan.placements)
    shared: dict[int, Seats] = {}
    for job, seats in seats_of_job.items():
        if len(seats) > 1 and may[job]:
            stays = set(seats) == set(_had(now, job))
            placements[view.jobs.ids[job]] = _placement(view, forks, job, seats, stays)
            shared[job] = seats
    return replace(plan, placements=placements), free_text(view, spare, shared)


def _keep(view: View, now: RunningCopies, plan: Plan, spare: SpareCapacity) -> dict[int, Seats]:
    """The plan's places, and the further copies that can go on beside them; all set aside."""
    seats_of_job: dict[int, Seats] = {}
    for job, id_ in enumerate(view.jobs.ids):
        if id_ in plan.placements:
            seats_of_job[job] = seats_of(view, plan.placements[id_])
            for seat in seats_of_job[job]:
                spare.take(job, seat)
    bound = [job for job in now.others if not now.free_to_change[job]]
    for job in bound:
        _add(job, now, seats_of_job, spare)
    for job in now.others:
        # Who loses one copy restarts, so the others are up for choice again.
        if job in bound or seats_of_job.get(job) != (now.main_copies[job],):
            continue
        seats, most = now.others[job], int(view.jobs.copies[job])
        able = all(rate_of(view, job, seat) > 0 and spare.holds(job, seat) for seat in seats)
        if able and len(seats) < most:
            _add(job, now, seats_of_job, spare)
    return seats_of_job


def _add(
    job: int, now: RunningCopies, seats_of_job: dict[int, Seats], spare: SpareCapacity
) -> None:
    for seat in now.others[job]:
        spare.take(job, seat)
    seats_of_job[job] = tuple(sorted((*seats_of_job.get(job, ()), *now.others[job])))


def _had(now: RunningCopies, job: int) -> Seats:
    if job in now.main_copies:
        return (now.main_copies[job], *now.others[job])
    return now.seats.get(job, ())


def _placement(view: View, forks: Forks, job: int, seats: Seats, stays: bool) -> Placement:
    gpus, nodes = gpus_and_nodes(view, seats)
    shares = shares_of(view, job, seats)
    parts = [
        f"{count} x {view.types[kind]} on {view.nodes.names[node]} {100 * share:.0f}%"
        for (node, kind, count), share in zip(seats, shares, strict=True)
    ]
    if len(parts) > _MOST_NAMED:
        parts = [*parts[:_MOST_NAMED], f"{len(seats) - _MOST_NAMED} more"]
    alone = max(rate_of(view, job, seat) for seat in seats)
    rate = forks.rate(job, seats)
    reason = f"{'stays' if stays else 'forked'} in {len(seats)} copies: {', '.join(parts)}"
    if alone > 0:
        reason += f"; {rate / alone:.2f} times as fast as on the best of these alone"
        reason += f", {end_text(view, job, float(view.jobs.left[job]) / rate)}"
    return Placement(
        gpus=gpus, nodes=nodes, copies=len(seats), shares=shares, tier="network", reason=reason
    )
