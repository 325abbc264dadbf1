"""What a policy that plans with rates alone takes in from the others, before and after it decides.

Before: the rate of every type and count is that of the best batch (ONES), with the job's fair share
of CPUs and memory (Synergy), at the nearest tier that could hold it (network). After: each
placement gets its batch, its CPUs and memory, near nodes, rounds dealt over GPUs that no other job
has (Hare), and copies on them that are averaged (HadarE). What a view does not hold is left as it
is.
"""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.batches import best_batches, with_batches
from slurm_hadar.policies.hadare.completion import with_copies
from slurm_hadar.policies.hadare.forks import ForkSettings
from slurm_hadar.policies.hadare.mains import RunningCopies, running
from slurm_hadar.policies.hare.completion import completed as with_dealt_rounds
from slurm_hadar.policies.hare.deal import over
from slurm_hadar.policies.hare.deal import placement as laid
from slurm_hadar.policies.network.compose import drawn_nearer, near_rates, placed_near
from slurm_hadar.policies.record import Decide
from slurm_hadar.policies.synergy.completing import completed as with_cpus
from slurm_hadar.policies.synergy.completing import eased

_FORKED = "forked"


def wrapped(inner: Decide, view: View, state: State) -> tuple[Plan, State]:
    """Another policy's decision with all of this around it; its state is kept beside ours."""
    before = state.get(_FORKED)
    memory = {key: value for key, value in state.items() if key != _FORKED}
    if not (view.jobs.copies > 1).any():
        plan, after = inner(widened(view), memory)
        return completed(view, plan), after
    forked = before if isinstance(before, dict) else {}
    now = running(view, forked, 0.0)
    plan, after = inner(widened(_mains(view, now)), memory)
    plan = completed(view, _bound(view, now, plan), now)
    copies = {id_: one.copies for id_, one in plan.placements.items() if one.copies > 1}
    return plan, {**after, _FORKED: copies}


def widened(view: View) -> View:
    """The view with the rates that a job may count on."""
    return near_rates(eased(best_batches(view)))


def completed(view: View, plan: Plan, now: RunningCopies | None = None) -> Plan:
    """The plan with all that the view tells of beside type and count. Pure. ``now``: the copies
    that run; None: no job may have any."""
    found = with_batches(view, plan)
    if view.jobs.network is not None:
        sure = eased(view)
        found = drawn_nearer(sure, placed_near(sure, found))
    found = with_dealt_rounds(view, found)
    if now is not None:
        found = _forked(view, found, now)
    # CPUs last: whoever gets a node here also needs what stands beside its GPUs.
    return with_cpus(view, found)


def _forked(view: View, plan: Plan, now: RunningCopies) -> Plan:
    """The plan with copies on nodes that no job has, of jobs on one node that may be forked and do
    not have their rounds dealt: these keep their global batch, which copies do not. Nor is a job
    forked that trains with another batch than its own."""
    jobs = view.jobs
    may = (jobs.copies > 1) & (jobs.tasks == 1)
    for job in np.flatnonzero(may).tolist():
        one = plan.placements.get(jobs.ids[job])
        own = jobs.batches is None or one is None or one.batch in (None, jobs.batches.base[job])
        may[job] = one is not None and len(one.nodes) == 1 and one.copies == 1 and own
    if not may.any() or not all(one.nodes for one in plan.placements.values()):
        return plan
    run = RunningCopies(
        {job: seat for job, seat in now.mains.items() if may[job]},
        {job: seats for job, seats in now.others.items() if may[job]},
        now.seats,
        now.free_to_change,
    )
    found, note = with_copies(view, plan, run, may, ForkSettings())
    return replace(found, notes=(*found.notes, note))


def _mains(view: View, now: RunningCopies) -> View:
    """Jobs that run dealt are shown with their fastest seat; the rest is free, or out of sight
    where the job may not be moved."""
    if not now.mains:
        return view
    rows = [(job, *seat) for job, seat in now.mains.items()]
    rows += [(job, *seat) for job, seats in now.seats.items() for seat in seats]
    gpus = view.nodes.gpus.copy()
    for job in now.mains:
        if not view.jobs.movable[job]:
            for node, kind, count in now.others[job]:
                gpus[node, kind] -= count
    held = np.array(sorted(rows), dtype=np.int64).reshape(-1, 4)
    nodes = replace(view.nodes, gpus=np.maximum(gpus, 0))
    return replace(view, nodes=nodes, jobs=replace(view.jobs, held=held))


def _bound(view: View, now: RunningCopies, plan: Plan) -> Plan:
    """Who may not be moved keeps all that it runs on."""
    placements = dict(plan.placements)
    for job, seat in now.mains.items():
        if not view.jobs.movable[job]:
            seats = (seat, *now.others[job])
            dealt = over(view, job, seats, 0.0)
            if dealt is not None:
                placements[view.jobs.ids[job]] = laid(view, job, dealt, True, "may not be moved")
    return replace(plan, placements=placements)
