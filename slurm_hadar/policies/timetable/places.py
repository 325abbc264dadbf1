"""The nodes of a choice: a job that stays keeps its GPUs, the others are packed into what is
left."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import Allocation, FreeCapacity, ResourcePools
from slurm_hadar.policies.timetable.choice import RoundChoice
from slurm_hadar.policies.timetable.fewest import NodeMaker
from slurm_hadar.policies.timetable.work import Options


@dataclass
class PlacedJobs:
    """``parts``: where the jobs run. ``short``: why those who were chosen have no place.
    ``onto_idle``: the option of jobs that move onto GPUs that no choice needs."""

    room: FreeCapacity
    parts: dict[int, Allocation] = field(default_factory=dict)
    short: dict[int, str] = field(default_factory=dict)
    onto_idle: dict[int, int] = field(default_factory=dict)


def place(
    view: View, pools: ResourcePools, options: Options, choice: RoundChoice, steady: bool = False
) -> PlacedJobs:
    """Place the chosen gangs, the largest first.

    ``steady``: a job that stays keeps its place even on a node on which more is held than the view
    offers. Where a gang finds no set of nodes although its pool has the GPUs, the pool's movable
    jobs are packed anew, once. A job that still finds none leaves its GPUs to the next best that
    fit.
    """
    found = PlacedJobs(FreeCapacity(view, pools))
    chosen = np.flatnonzero(choice.option != -1).tolist()
    stay = [job for job in chosen if choice.option[job] == options.now[job]]
    # Nodes shrink, and the CPUs of a running job are known only roughly: who may not leave comes
    # first, whatever the view offers.
    for job in sorted(stay, key=lambda job: not options.bound[job]):
        parts, need = options.held[job], options.needs[job]
        if steady or options.bound[job] or found.room.holds(parts, need):
            found.parts[job] = parts
            found.room.take(parts, need)
    new = [job for job in chosen if job not in found.parts]
    tried = set(new)
    if choice.gives_way is not None:
        _close(options, choice, found, new)
    new = [job for job in new if job not in found.parts]
    failed = _lay(view, options, choice, found, new)
    if failed:
        crowded = {int(options.pool[choice.option[job]]) for job in failed}
        loose = [
            job
            for job in stay
            if job in found.parts
            and job not in tried
            and not options.bound[job]
            and int(options.pool[choice.option[job]]) in crowded
        ]
        again = [job for job in new if int(options.pool[choice.option[job]]) in crowded]
        attempt = PlacedJobs(found.room.copy(), dict(found.parts))
        for job in (*loose, *(job for job in again if job in found.parts)):
            attempt.room.give(attempt.parts.pop(job), options.needs[job])
        if not _lay(view, options, choice, attempt, [*loose, *again]):
            found, failed = attempt, []
    for job in failed:
        pool = int(options.pool[choice.option[job]])
        found.short[job] = found.room.shortage(
            [pool], int(options.gpus[choice.option[job]]), options.needs[job],
            int(view.jobs.max_nodes[job]),
        )  # fmt: skip
    if failed:
        _next_best(view, options, choice, found)
    return found


def _close(options: Options, choice: RoundChoice, found: PlacedJobs, jobs: Sequence[int]) -> None:
    """Gangs that one node holds get one, the largest first, though others must change theirs."""
    assert choice.gives_way is not None
    maker = NodeMaker(options, found.parts, choice.gives_way & ~options.bound)
    size = options.gpus[choice.option[list(jobs)]]
    for job in np.asarray(jobs, dtype=np.int64)[np.argsort(-size, kind="stable")].tolist():
        option = int(choice.option[job])
        pool, gpus, need = int(options.pool[option]), int(options.gpus[option]), options.needs[job]
        parts = found.room.one_node(pool, gpus, need)
        if parts is not None:
            found.room.take(parts, need)
            found.parts[job] = parts
        elif gpus > 1:
            made = maker.make(found.room, found.parts, job, option)
            if made is not None:
                found.room = made[0]
                found.parts.update(made[1])


def _lay(
    view: View, options: Options, choice: RoundChoice, found: PlacedJobs, jobs: Sequence[int]
) -> list[int]:
    """Place the jobs; those without a place come back."""
    failed = []
    size = options.gpus[choice.option[list(jobs)]]
    for job in np.asarray(jobs, dtype=np.int64)[np.argsort(-size, kind="stable")].tolist():
        if not _take(view, options, found, job, int(choice.option[job])):
            failed.append(job)
    return failed


def _take(view: View, options: Options, found: PlacedJobs, job: int, option: int) -> bool:
    pool, gpus = int(options.pool[option]), int(options.gpus[option])
    need, most = options.needs[job], int(view.jobs.max_nodes[job])
    parts = found.room.one_node(pool, gpus, need)
    if parts is None and most > 1:
        parts = found.room.several_nodes((pool,), gpus, need, most)
    if parts is None:
        return False
    found.room.take(parts, need)
    found.parts[job] = parts
    return True


def _next_best(view: View, options: Options, choice: RoundChoice, found: PlacedJobs) -> None:
    waiting = [job for job in range(len(choice.option)) if job not in found.parts]
    value = choice.value[waiting] / options.gpus
    rows, cols = np.nonzero(value > 0)
    order = np.argsort(-value[rows, cols], kind="stable")
    for row, col in _pairs(rows[order], cols[order]):
        job = waiting[row]
        if not any(n > 0 for n in found.room.left):
            return
        if job not in found.parts and found.room.left[options.pool[col]] >= options.gpus[col]:
            _take(view, options, found, job, col)


def _pairs(rows: Iterable[np.int64], cols: Iterable[np.int64]) -> list[tuple[int, int]]:
    return [(int(row), int(col)) for row, col in zip(rows, cols, strict=True)]
