"""What a policy that plans by rates alone takes from other policies, before and after it decides.

Before: the rate of each type and count becomes that of the best batch (ONES), with the job's fair
share of CPUs and memory (Synergy), at the nearest tier that could hold the job (network). After:
each placement gets its batch, its CPUs and memory and near nodes; the tasks of rounds are dealt
over GPUs that no other job has (Hare), and jobs get copies on them (HadarE). Traits that the view
lacks change nothing.
"""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.batches import best_batches, with_batches
from slurm_hadar.policies.hadare.completion import with_copies
from slurm_hadar.policies.hadare.forks import ForkSettings
from slurm_hadar.policies.hadare.main_copies import RunningCopies, running
from slurm_hadar.policies.hare.completion import with_dealt_rounds
from slurm_hadar.policies.hare.deal import over
from slurm_hadar.policies.hare.deal import placement as dealt_placement
from slurm_hadar.policies.network.compose import moved_nearer, near_rates, placed_near
from slurm_hadar.policies.record import Decide
from slurm_hadar.policies.synergy.completion import at_fair_share, with_cpus_and_memory

_FORKED = "forked"


def decide_composite(inner: Decide, view: View, state: State) -> tuple[Plan, State]:
    """One decision of the policy ``inner`` between both steps. Its state is kept beside ours."""
    before = state.get(_FORKED)
    memory = {key: value for key, value in state.items() if key != _FORKED}
    if not (view.jobs.copies > 1).any():
        plan, after = inner(with_attainable_rates(view), memory)
        return completed_plan(view, plan), after
    forked = before if isinstance(before, dict) else {}
    now = running(view, forked, 0.0)
    plan, after = inner(with_attainable_rates(_with_mains(view, now)), memory)
    plan = completed_plan(view, _keep_immovable(view, now, plan), now)
    copies = {id_: one.copies for id_, one in plan.placements.items() if one.copies > 1}
    return plan, {**after, _FORKED: copies}


def with_attainable_rates(view: View) -> View:
    """The view with the rates that a job can count on."""
    return near_rates(at_fair_share(best_batches(view)))


def completed_plan(view: View, plan: Plan, now: RunningCopies | None = None) -> Plan:
    """The plan with all that the view tells of beside type and count. Pure. ``now``: the copies
    that run; None: no job may have any."""
    found = with_batches(view, plan)
    if view.jobs.network is not None:
        sure = at_fair_share(view)
        found = moved_nearer(sure, placed_near(sure, found))
    found = with_dealt_rounds(view, found)
    if now is not None:
        found = _forked(view, found, now)
    # CPUs last: a job that gets a node here also needs what stands beside its GPUs.
    return with_cpus_and_memory(view, found)


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
        {job: seat for job, seat in now.main_copies.items() if may[job]},
        {job: seats for job, seats in now.others.items() if may[job]},
        now.seats,
        now.free_to_change,
    )
    found, note = with_copies(view, plan, run, may, ForkSettings())
    return replace(found, notes=(*found.notes, note))


def _with_mains(view: View, now: RunningCopies) -> View:
    """The view in which a job whose tasks are dealt holds its fastest seat only. Its other seats
    are free, or hidden if the job may not be moved."""
    if not now.main_copies:
        return view
    rows = [(job, *seat) for job, seat in now.main_copies.items()]
    rows += [(job, *seat) for job, seats in now.seats.items() for seat in seats]
    gpus = view.nodes.gpus.copy()
    for job in now.main_copies:
        if not view.jobs.movable[job]:
            for node, kind, count in now.others[job]:
                gpus[node, kind] -= count
    held = np.array(sorted(rows), dtype=np.int64).reshape(-1, 4)
    nodes = replace(view.nodes, gpus=np.maximum(gpus, 0))
    return replace(view, nodes=nodes, jobs=replace(view.jobs, held=held))


def _keep_immovable(view: View, now: RunningCopies, plan: Plan) -> Plan:
    """Jobs that may not be moved keep all that they run on."""
    placements = dict(plan.placements)
    for job, seat in now.main_copies.items():
        if not view.jobs.movable[job]:
            seats = (seat, *now.others[job])
            dealt = over(view, job, seats, 0.0)
            if dealt is not None:
                placements[view.jobs.ids[job]] = dealt_placement(
                    view, job, dealt, True, "it cannot be moved now"
                )
    return replace(plan, placements=placements)
