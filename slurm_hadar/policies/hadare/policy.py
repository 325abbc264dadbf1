"""HadarE: Hadar, with jobs forked into copies on further nodes so that no node is idle beside work.

arXiv 2503.10918. Verified in the paper: jobs are forked into copies that train at the same time on
different nodes, and the gain. Recalled: at most as many copies as there are nodes, one node each;
in each round the remaining work is divided in proportion to throughput, and parameters are averaged
after it.

Here Hadar places each job first; the nodes that it leaves become further copies of jobs that may be
forked (``JobArrays.copies``), see :mod:`.forks`. The rate of a job is the sum of its copies' rates
less ``averaging``. Gangs over several nodes are not forked. A job that may not be moved now keeps
its copies; a waiting job comes before any second copy.

Options: Hadar's, and ``averaging``.
"""

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.ends import ends
from slurm_hadar.policies.hadare.forks import (
    Forks,
    ForkSettings,
    SpareCapacity,
    free_text,
    gpus_of,
    shares_of,
)
from slurm_hadar.policies.hadare.mains import (
    RunningCopies,
    Seats,
    place,
    rate_of,
    running,
    seats_of,
)
from slurm_hadar.policies.record import Policy, Trait

_MOST_NAMED = 6


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an invalid option."""
    settings = ForkSettings.read(view.options)
    before, past = state.get("forked"), state.get("hadar")
    forked = before if isinstance(before, dict) else {}
    now = running(view, forked, settings.min_stay_s)
    plan, memory = place(view, now, past if isinstance(past, dict) else {})
    if not plan.placements:
        return plan, {"hadar": memory, "forked": {}}
    spare = SpareCapacity(view)
    forks = Forks(view, settings, spare)
    seats_of_job = _keep(view, now, plan, spare)
    gangs = {id_ for id_, placement in plan.placements.items() if len(placement.nodes) > 1}
    for job, seats in seats_of_job.items():
        # A node that has shrunk below what jobs hold there takes nothing new.
        if view.jobs.ids[job] in gangs or any(spare.short(seat) for seat in seats):
            continue
        # A job that starts or moves anyway takes further nodes at no cost.
        unchanged = set(seats) == set(_had(now, job))
        if not unchanged or now.free_to_change[job]:
            forks.enter(job, seats, float(view.jobs.restart_s[job]) if unchanged else 0.0)
    forks.hand_out()
    seats_of_job.update(forks.seats)
    placements = dict(plan.placements)
    copies: dict[str, int] = {}
    for job, seats in seats_of_job.items():
        id_ = view.jobs.ids[job]
        if len(seats) > 1 and id_ not in gangs:
            placements[id_] = _placement(view, forks, job, seats, set(seats) == set(_had(now, job)))
            copies[id_] = len(seats)
    shared = {job: seats for job, seats in seats_of_job.items() if view.jobs.ids[job] in copies}
    notes = tuple(f"before forking: {note}" for note in plan.notes)
    text = free_text(view, spare, shared)
    return Plan(placements, plan.waiting, (*notes, text)), {"hadar": memory, "forked": copies}


def _keep(view: View, now: RunningCopies, plan: Plan, spare: SpareCapacity) -> dict[int, Seats]:
    """Hadar's placements, and the further copies that can go on beside them; all are taken."""
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
        # A job that loses a copy restarts, so its other copies are chosen again.
        if job in bound or seats_of_job.get(job) != (now.mains[job],):
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
    if job in now.mains:
        return (now.mains[job], *now.others[job])
    return now.seats.get(job, ())


def _placement(view: View, forks: Forks, job: int, seats: Seats, stays: bool) -> Placement:
    gpus, nodes = gpus_of(view, seats)
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
        reason += f", {ends(view, job, float(view.jobs.left[job]) / rate)}"
    return Placement(
        gpus=gpus, nodes=nodes, copies=len(seats), shares=shares, tier="network", reason=reason
    )


POLICY = Policy(
    name="hadare",
    decide=decide,
    options=ForkSettings,
    uses=frozenset({Trait.MOVES, Trait.ORDER, Trait.COPIES}),
    title="hadar, then spare nodes train copies of jobs that may be forked",
    paper="HadarE, arXiv 2503.10918",
)
