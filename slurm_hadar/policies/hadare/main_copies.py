"""The first half of HadarE: one placement per job by Hadar, beside the running copies.

Hadar sees a running forked job as its fastest copy alone, the *main*. Its other copies delay no
job: they keep their nodes at first and are given up only if jobs would wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import BoolArray, FloatArray, NodeArrays, State, View
from slurm_hadar.policies.hadar import policy as hadar

_NEVER = 1e6
"""A fraction of the horizon that no job needs."""

Seat = tuple[int, int, int]
"""(node, type, GPUs) of one copy."""
Seats = tuple[Seat, ...]


@dataclass(frozen=True)
class RunningCopies:
    """The running jobs. ``main_copies``: forked jobs and their fastest copy; ``others``: their
    other copies; ``seats``: what the jobs that are not forked hold; ``free_to_change`` (J,): may be
    forked or moved now."""

    main_copies: Mapping[int, Seat]
    others: Mapping[int, Seats]
    seats: Mapping[int, Seats]
    free_to_change: BoolArray


def running(view: View, forked: Mapping[str, object], min_stay_s: float) -> RunningCopies:
    """Distinguish copies from gangs. ``forked``: the jobs that this policy has forked, from its
    state; without state, what cannot be a gang is taken as copies."""
    jobs = view.jobs
    rows: dict[int, list[Seat]] = {}
    for job, node, kind, count in jobs.held.tolist():
        if count > 0:
            rows.setdefault(job, []).append((node, kind, count))
    main_copies: dict[int, Seat] = {}
    others: dict[int, Seats] = {}
    whole: dict[int, Seats] = {}
    for job, seats in rows.items():
        apart = len(seats) > 1 and len({node for node, _, _ in seats}) == len(seats)
        if not apart or not (jobs.ids[job] in forked or _is_no_gang(view, job, seats)):
            whole[job] = tuple(seats)
            continue
        seats.sort(key=lambda seat: (-rate_of(view, job, seat), seat))
        main_copies[job], others[job] = seats[0], tuple(seats[1:])
    stayed = view.now - jobs.since_s >= min_stay_s
    return RunningCopies(main_copies, others, whole, jobs.movable & (stayed | ~jobs.running))


def rate_of(view: View, job: int, seat: Seat) -> float:
    """Rate of one copy in samples/s; 0 if the job cannot run there."""
    _, kind, count = seat
    if count not in view.counts:
        return 0.0
    return float(view.jobs.rate[job, kind, view.counts.index(count)])


def place(view: View, now: RunningCopies, state: State) -> tuple[Plan, State]:
    """Hadar's plan: one placement per job. Copies are given up for jobs that would wait."""
    shown = _unprotected(_with_held(view, _rows(now)))
    kept = range(len(view.jobs.ids))
    plan, memory = hadar.decide(_without(shown, now, kept), state)
    bound = np.flatnonzero(~now.free_to_change).tolist()
    waits = [job for job, id_ in enumerate(view.jobs.ids) if id_ in plan.waiting]
    could = bool(len(waits)) and bool(view.jobs.rate[waits].any())
    if not could or all(job in bound for job in now.others):
        return plan, memory
    again = _without(_with_held(shown, _rows_of(view, plan)), now, bound)
    again = replace(again, jobs=replace(again.jobs, movable=~again.jobs.running))
    more, _ = hadar.decide(again, state)
    placements = {**more.placements, **plan.placements}
    return Plan(placements, more.waiting, more.notes), memory


def seats_of(view: View, placement: Placement) -> Seats:
    """The seats of a placement that names its nodes."""
    return tuple(
        (view.nodes.names.index(node), view.types.index(kind), count)
        for node, gpus in placement.nodes.items()
        for kind, count in gpus.items()
    )


def _unprotected(view: View) -> View:
    """The view without priority for critical jobs, if each job may be forked with a copy on any
    GPU. Hadar lets long jobs and large gangs go first because they determine the makespan; here
    none does, as the last jobs get all nodes."""
    one_gpu = view.jobs.rate[:, :, :1].any(axis=(1, 2)) & (view.counts[:1] == (1,))
    if "critical" in view.options or not ((view.jobs.copies > 1) & one_gpu).all():
        return view
    return replace(view, options={**view.options, "critical": _NEVER})


def _is_no_gang(view: View, job: int, seats: list[Seat]) -> bool:
    total = sum(count for _, _, count in seats)
    as_gang = all(rate_of(view, job, (node, kind, total)) > 0 for node, kind, _ in seats)
    as_copies = all(rate_of(view, job, seat) > 0 for seat in seats)
    spread = len(seats) <= view.jobs.max_nodes[job]
    return view.jobs.copies[job] > 1 and as_copies and not (as_gang and spread)


def _rows(now: RunningCopies) -> list[tuple[int, int, int, int]]:
    rows = [(job, *seat) for job, seat in now.main_copies.items()]
    return rows + [(job, *seat) for job, seats in now.seats.items() for seat in seats]


def _rows_of(view: View, plan: Plan) -> list[tuple[int, int, int, int]]:
    return [
        (job, *seat)
        for job, id_ in enumerate(view.jobs.ids)
        if id_ in plan.placements
        for seat in seats_of(view, plan.placements[id_])
    ]


def _with_held(view: View, rows: list[tuple[int, int, int, int]]) -> View:
    held = np.array(sorted(rows), dtype=np.int64).reshape(-1, 4)
    there: BoolArray = np.zeros(len(view.jobs.ids), dtype=bool)
    there[held[:, 0]] = True
    return replace(view, jobs=replace(view.jobs, held=held, running=there))


def _without(view: View, now: RunningCopies, kept: range | list[int]) -> View:
    """The view without the GPUs of the further copies of these jobs."""
    taken = [(job, seat) for job in kept for seat in now.others.get(job, ())]
    if not taken:
        return view
    gpus = view.nodes.gpus.copy()
    cpus: FloatArray = view.nodes.cpus.astype(np.float64)
    mem: FloatArray = view.nodes.mem_mb.astype(np.float64)
    for job, (node, kind, count) in taken:
        gpus[node, kind] -= count
        cpus[node] -= count * view.jobs.cpus_per_gpu[job]
        mem[node] -= count * view.jobs.mem_per_gpu_mb[job]
    nodes: NodeArrays = replace(
        view.nodes,
        gpus=np.maximum(gpus, 0),
        cpus=np.floor(np.maximum(cpus, 0.0)).astype(np.int64),
        mem_mb=np.floor(np.maximum(mem, 0.0)).astype(np.int64),
    )
    return replace(view, nodes=nodes)
