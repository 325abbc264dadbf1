"""The nodes of a choice: jobs that stay keep their GPUs, the others are packed into the rest, and a
node is emptied for a gang that fits on one, by moving smaller jobs to other nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.domain.view import BoolArray, IntArray, View
from slurm_hadar.policies.allocation import Allocation, FreeCapacity, ResourcePools
from slurm_hadar.policies.timetable.choice import RoundChoice
from slurm_hadar.policies.timetable.work import Options

_LARGEST_PART = 0.5
"""Other jobs that change nodes hold at most this fraction of the gang's GPUs."""
_NODES = 4
"""Most nodes that are tried for a gang."""
_TRIALS = 64
"""Most nodes that a round tries, to bound its time."""


@dataclass
class PlacedJobs:
    """``allocations``: of the placed jobs. ``unplaced``: why chosen jobs got no nodes.
    ``instead``: the option of jobs on GPUs that chosen jobs could not take. ``onto_idle``: the
    option of jobs that move onto GPUs that the choice does not use."""

    free_capacity: FreeCapacity
    allocations: dict[int, Allocation] = field(default_factory=dict)
    unplaced: dict[int, str] = field(default_factory=dict)
    instead: dict[int, int] = field(default_factory=dict)
    onto_idle: dict[int, int] = field(default_factory=dict)

    def options(self, chosen: IntArray) -> IntArray:
        """(J,) the options of the placed jobs; ``chosen`` (J,): those of the choice."""
        found = chosen.copy()
        found[list(self.instead)] = list(self.instead.values())
        return found


def place(
    view: View, pools: ResourcePools, options: Options, choice: RoundChoice, steady: bool = False
) -> PlacedJobs:
    """Place the chosen gangs, the largest first.

    ``steady``: a job that stays keeps its nodes even if jobs hold more on one of them than the view
    offers. If no set of nodes fits a gang although its pool has enough GPUs, the movable jobs of
    the pool are packed again, once. If it still does not fit, its GPUs go to the next best jobs
    that do.
    """
    found = PlacedJobs(FreeCapacity(view, pools))
    chosen = np.flatnonzero(choice.option != -1).tolist()
    stay = [job for job in chosen if choice.option[job] == options.now[job]]
    # Nodes may shrink, and the CPUs of running jobs are known only roughly: jobs that may not be
    # moved come first, whatever the view offers.
    for job in sorted(stay, key=lambda job: not options.bound[job]):
        allocation, need = options.held[job], options.needs[job]
        if steady or options.bound[job] or found.free_capacity.holds(allocation, need):
            found.allocations[job] = allocation
            found.free_capacity.take(allocation, need)
    new = [job for job in chosen if job not in found.allocations]
    tried = set(new)
    if choice.gives_way is not None:
        _place_on_one_node(options, choice, found, new)
    new = [job for job in new if job not in found.allocations]
    failed = _place_all(view, options, choice, found, new)
    if failed:
        crowded = {int(options.pool[choice.option[job]]) for job in failed}
        loose = [
            job
            for job in stay
            if job in found.allocations
            and job not in tried
            and not options.bound[job]
            and int(options.pool[choice.option[job]]) in crowded
        ]
        again = [job for job in new if int(options.pool[choice.option[job]]) in crowded]
        attempt = PlacedJobs(found.free_capacity.copy(), dict(found.allocations))
        for job in (*loose, *(job for job in again if job in found.allocations)):
            attempt.free_capacity.give(attempt.allocations.pop(job), options.needs[job])
        if not _place_all(view, options, choice, attempt, [*loose, *again]):
            found, failed = attempt, []
    for job in failed:
        pool = int(options.pool[choice.option[job]])
        found.unplaced[job] = found.free_capacity.shortage(
            [pool], int(options.gpus[choice.option[job]]), options.needs[job],
            int(view.jobs.max_nodes[job]),
        )  # fmt: skip
    if failed:
        _next_best(view, options, choice, found)
    return found


def _place_on_one_node(
    options: Options, choice: RoundChoice, found: PlacedJobs, jobs: Sequence[int]
) -> None:
    """Give each gang that fits on one node such a node, the largest first, even if other jobs must
    change nodes."""
    assert choice.gives_way is not None
    emptier = NodeEmptier(options, found.allocations, choice.gives_way & ~options.bound)
    size = options.gpus[choice.option[list(jobs)]]
    for job in np.asarray(jobs, dtype=np.int64)[np.argsort(-size, kind="stable")].tolist():
        option = int(choice.option[job])
        pool, gpus, need = int(options.pool[option]), int(options.gpus[option]), options.needs[job]
        allocation = found.free_capacity.one_node(pool, gpus, need)
        if allocation is not None:
            found.free_capacity.take(allocation, need)
            found.allocations[job] = allocation
        elif gpus > 1:
            made = emptier.empty_node_for(found.free_capacity, found.allocations, job, option)
            if made is not None:
                found.free_capacity = made[0]
                found.allocations.update(made[1])


def _place_all(
    view: View, options: Options, choice: RoundChoice, found: PlacedJobs, jobs: Sequence[int]
) -> list[int]:
    """Place the jobs; returns those that do not fit."""
    failed = []
    size = options.gpus[choice.option[list(jobs)]]
    for job in np.asarray(jobs, dtype=np.int64)[np.argsort(-size, kind="stable")].tolist():
        if not _place_one(view, options, found, job, int(choice.option[job])):
            failed.append(job)
    return failed


def _place_one(view: View, options: Options, found: PlacedJobs, job: int, option: int) -> bool:
    pool, gpus = int(options.pool[option]), int(options.gpus[option])
    need, most = options.needs[job], int(view.jobs.max_nodes[job])
    allocation = found.free_capacity.one_node(pool, gpus, need)
    if allocation is None and most > 1:
        allocation = found.free_capacity.several_nodes((pool,), gpus, need, most)
    if allocation is None:
        return False
    found.free_capacity.take(allocation, need)
    found.allocations[job] = allocation
    return True


def _next_best(view: View, options: Options, choice: RoundChoice, found: PlacedJobs) -> None:
    waiting = [job for job in range(len(choice.option)) if job not in found.allocations]
    value = choice.value[waiting] / options.gpus
    rows, cols = np.nonzero(value > 0)
    order = np.argsort(-value[rows, cols], kind="stable")
    for row, col in _pairs(rows[order], cols[order]):
        job = waiting[row]
        if not any(n > 0 for n in found.free_capacity.left):
            return
        if (
            job not in found.allocations
            and found.free_capacity.left[options.pool[col]] >= options.gpus[col]
            and _place_one(view, options, found, job, col)
        ):
            found.instead[job] = col


def _pairs(rows: Iterable[np.int64], cols: Iterable[np.int64]) -> list[tuple[int, int]]:
    return [(int(row), int(col)) for row, col in zip(rows, cols, strict=True)]


class NodeEmptier:
    """Empties nodes for gangs within one round. Jobs that change nodes keep their number of GPUs,
    each on one other node of the pool."""

    def __init__(
        self, options: Options, allocations: Mapping[int, Allocation], gives_way: BoolArray
    ) -> None:
        """``allocations``: of the jobs that stay; ``gives_way`` (J,): which of them may be
        moved."""
        self._options, self._trials = options, _TRIALS
        self._on: dict[int, list[int]] = {}
        for job, where in allocations.items():
            if gives_way[job] and len(where) == 1:
                self._on.setdefault(where[0][0], []).append(job)

    def empty_node_for(
        self,
        free_capacity: FreeCapacity,
        allocations: Mapping[int, Allocation],
        job: int,
        option: int,
    ) -> tuple[FreeCapacity, dict[int, Allocation]] | None:
        """The free capacity and the changed allocations after the job gets this option on one node,
        that on which the fewest GPUs must be given up; None if no node can be emptied for it."""
        pool, gpus = int(self._options.pool[option]), int(self._options.gpus[option])
        first, end = free_capacity.pools.spans[pool]
        missing = gpus - free_capacity.free[first:end]
        near = np.flatnonzero((missing > 0) & (missing <= _LARGEST_PART * gpus))
        for at in near[np.argsort(missing[near], kind="stable")][:_NODES].tolist():
            leave = self._leave(first + at, allocations, int(missing[at]))
            if not leave or self._trials <= 0:
                continue
            self._trials -= 1
            found = self._moved(free_capacity, allocations, leave, (job, ((first + at, gpus),)))
            if found is not None:
                self._on[first + at] = [o for o in self._on[first + at] if o not in leave]
                return found
        return None

    def _leave(self, slot: int, allocations: Mapping[int, Allocation], lacks: int) -> list[int]:
        """Few jobs of a node that together hold at least ``lacks`` GPUs, and little more; empty if
        there are none."""
        others = self._on.get(slot, [])
        sizes = [allocations[other][0][1] for other in others]
        order = sorted(range(len(others)), key=lambda at: -sizes[at])
        leave: list[int] = []
        for at in order:
            if 0 < sizes[at] <= lacks:
                leave.append(others[at])
                lacks -= sizes[at]
        for at in reversed(order):
            if lacks > 0 and others[at] not in leave:
                leave.append(others[at])
                lacks -= sizes[at]
        return leave if lacks <= 0 else []

    def _moved(
        self,
        free_capacity: FreeCapacity,
        allocations: Mapping[int, Allocation],
        leave: Sequence[int],
        gang: tuple[int, Allocation],
    ) -> tuple[FreeCapacity, dict[int, Allocation]] | None:
        job, here = gang
        needs, after = self._options.needs, free_capacity.copy()
        for other in leave:
            after.give(allocations[other], needs[other])
        if not after.holds(here, needs[job]):
            return None
        after.take(here, needs[job])
        new: dict[int, Allocation] = {job: here}
        for other in sorted(leave, key=lambda one: -allocations[one][0][1]):
            ((slot, count),) = allocations[other]
            place = after.one_node(int(free_capacity.pools.pool[slot]), count, needs[other])
            if place is None:
                return None
            after.take(place, needs[other])
            new[other] = place
        return after, new
