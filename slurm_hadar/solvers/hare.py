"""Hare's offline algorithm: a relaxation that orders the tasks, and list schedules in this order.

**The relaxation**: when each round of each job would end if all GPUs were one fluid machine. Chen
et al., HPDC 2022 and IEEE TCC 12(4) 2024: minimise sum w_j C_j over jobs with consecutive
rounds of K equal tasks each; Queyranne's load inequalities in place of the GPUs; tasks in the order
of their midpoints (recalled). For tasks of different lengths on different GPUs (ours): give each
GPU m any price s_m >= 0 and each task i the size q_i = min_m s_m p_im. No task takes less than q_i
/ s_m on GPU m, so Queyranne's inequality for the tasks of that GPU, summed over GPUs
(Cauchy-Schwarz), gives for every set S of tasks

    sum_S q_i C_i >= (sum_S q_i)^2 / (2 sum_m s_m) + sum_S q_i^2 / (2 max_m s_m)

and the same counted from any time r for tasks of jobs that arrive at r or later. With s_m = 1 it is
the inequality for M identical machines (Hall, Schulz, Shmoys and Wein 1997, recalled), and q_i the
shortest length of the task. Prices that reflect the scarcity of a type make it much tighter:
without them slow GPUs that suit some job count in full for all. There are exponentially many sets;
the most violated ones are prefixes in the order of midpoints, so they are found by sorting and
added until none is left.

**The list schedules** append the tasks, in one order, to a GPU each. Two rules choose the GPU.
``available``: the one that is free first, whatever its speed. This is the rule of the paper (HPDC
2022, verified), and its bound holds for it: if the times of a task differ by a factor of at most
alpha over the GPUs, the weighted sum of completion times is at most alpha (2 + alpha) times the
minimum, in the order of :func:`paper_order`. ``finish``: the one that ends the task first (ours);
without a proven bound.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.solvers.highs import INFINITY, new_solver
from slurm_hadar.solvers.prices import scarcity

_MOST_GROUPS = 800
"""Rounds are merged into at most this many groups, to bound the size of the programme."""
_MOST_PASSES = 60
_CUTS_PER_PASS = 12
_STARTS = 12
_TOLERANCE = 1e-4
_EARLY = 0.01
"""Weight of the earlier rounds of a job (ours): without it, rounds that the objective does not
determine may be planned just in time, which gives a poor order."""
Rule = Literal["available", "finish"]
"""Which GPU gets a task: the one that is free first, or the one that ends it first."""


@dataclass(frozen=True)
class RoundJobs:
    """J jobs. ``arrival_s``, ``weight`` (J,); ``rounds`` (J,) left; ``tasks`` (J,) per round;
    ``task_s`` (J, R) length of a task, inf if it cannot run; ``sync_s`` (J,) between two rounds."""

    arrival_s: FloatArray
    weight: FloatArray
    rounds: IntArray
    tasks: IntArray
    task_s: FloatArray
    sync_s: FloatArray

    @property
    def shortest_s(self) -> FloatArray:
        """(J,) length of a task on its fastest type."""
        found: FloatArray = self.task_s.min(axis=1)
        return found


@dataclass(frozen=True)
class Relaxed:
    """``midpoint``: per job (its rounds,), when the middle of each round's tasks would be, s.
    ``bound``: no schedule has a smaller sum of w_j C_j. ``cuts``: number of inequalities added."""

    midpoint: tuple[FloatArray, ...]
    bound: float
    cuts: int


@dataclass(frozen=True)
class _Load:
    """One choice of prices. ``size`` (J,): q of a job's tasks; ``all`` and ``top``: the sum and the
    maximum of the prices over the GPUs."""

    size: FloatArray
    all: float
    top: float


def relax(jobs: RoundJobs, gpus: IntArray) -> Relaxed:
    """Solve the relaxation. Each job must be able to run on one of the ``gpus`` (R,)."""
    groups = _Groups(jobs)
    loads = _loads(jobs, gpus)
    starts = np.unique(np.quantile(jobs.arrival_s, np.linspace(0, 1, _STARTS), method="lower"))
    programme = _Programme(jobs, groups)
    cuts = 0
    for _ in range(_MOST_PASSES):
        done = programme.solve()
        found = [
            cut for load in loads for since in starts for cut in groups.violated(done, load, since)
        ]
        if not found:
            break
        cuts += len(found)
        programme.add(found)
    else:
        done = programme.solve()
    programme.weigh(0.0)
    # A group ends with its last task; a job with the exchange after it.
    bound = float(jobs.weight @ (programme.solve()[groups.last] + jobs.sync_s))
    return Relaxed(groups.midpoints(done), bound, cuts)


def paper_order(jobs: RoundJobs, relaxed: Relaxed, gpus: IntArray) -> tuple[FloatArray, ...]:
    """Hare's order of tasks, H = max over GPUs m of (x + T_m / 2), per job (its rounds,), s.

    HPDC 2022, verified. x is when the relaxation starts the round's tasks: their midpoint less half
    of the time on the fastest type. The relaxation is ours, so x is not the paper's own.
    """
    there = np.where((gpus > 0) & np.isfinite(jobs.task_s), jobs.task_s, 0.0)
    later = (there.max(axis=1) - jobs.shortest_s) / 2.0
    return tuple(row + behind for row, behind in zip(relaxed.midpoint, later.tolist(), strict=True))


def _loads(jobs: RoundJobs, gpus: IntArray) -> list[_Load]:
    length = np.where(gpus > 0, jobs.task_s, np.inf)
    scarce = scarcity(length * (jobs.rounds * jobs.tasks)[:, None], gpus).price
    found = []
    for price in (np.ones(len(gpus)), scarce):
        with np.errstate(invalid="ignore"):
            size = np.nan_to_num(price * length, nan=np.inf).min(axis=1)
        top = float(price[gpus > 0].max())
        found.append(_Load(size / top, float((price * gpus).sum()) / top, 1.0))
    return found


class _Groups:
    """Consecutive rounds of a job as one variable: the end of the last of them."""

    def __init__(self, jobs: RoundJobs) -> None:
        size = np.maximum(jobs.rounds, 1)
        per_job = np.maximum(1, np.minimum(size, _share(size)))
        self.first = np.concatenate([[0], np.cumsum(per_job)[:-1]]).astype(np.int64)
        self.last = self.first + per_job - 1
        self.job = np.repeat(np.arange(len(size)), per_job)
        at = np.arange(len(self.job)) - self.first[self.job]
        edges = [(at + step) * size[self.job] // per_job[self.job] for step in (0, 1)]
        self.rounds = (edges[1] - edges[0]).astype(np.float64)
        self.task_s = jobs.shortest_s[self.job]
        self.step_s = (jobs.shortest_s + jobs.sync_s)[self.job]
        # A round i of L is done (L - 1 - i) steps before the group at the latest.
        self._mean_back = self.step_s * (self.rounds - 1.0) / 2.0
        self._arrival = jobs.arrival_s[self.job]
        self._tasks = self.rounds * jobs.tasks[self.job]

    def violated(
        self, done: FloatArray, load: _Load, since: float
    ) -> list[tuple[IntArray, FloatArray, float]]:
        """Load inequalities that ``done`` breaks, of the jobs that arrive at ``since`` or later:
        groups, their coefficients, right side."""
        size = load.size[self.job]
        middle = done - self._mean_back - size / (2.0 * load.top)
        order = np.argsort(middle, kind="stable")
        order = order[self._arrival[order] >= since]
        work = (self._tasks * size)[order]
        # In terms of the groups' ends: the distance to the rounds' means is on the right side.
        right = (
            np.cumsum(work) ** 2 / (2.0 * load.all)
            + np.cumsum(work * size[order]) / (2.0 * load.top)
            + np.cumsum(work * (self._mean_back[order] + since))
        )
        left = np.cumsum(work * done[order])
        short = (right - left) / np.maximum(right, 1e-12)
        wrong = np.flatnonzero(short > _TOLERANCE)
        if len(wrong) > _CUTS_PER_PASS:
            spread = np.linspace(0, len(wrong) - 1, _CUTS_PER_PASS // 2).astype(np.int64)
            most = np.argsort(-short[wrong], kind="stable")[: _CUTS_PER_PASS // 2]
            wrong = wrong[np.unique(np.concatenate([spread, most]))]
        return [(order[: at + 1], work[: at + 1], float(right[at])) for at in wrong.tolist()]

    def midpoints(self, done: FloatArray) -> tuple[FloatArray, ...]:
        """Midpoints of the rounds, spread evenly up to the end of their group."""
        found = []
        for first, last in zip(self.first.tolist(), self.last.tolist(), strict=True):
            ends: list[FloatArray] = []
            for group in range(first, last + 1):
                number, step = int(self.rounds[group]), float(self.step_s[group])
                if group > first:
                    step = max(step, (done[group] - done[group - 1]) / number)
                ends.append(done[group] - step * np.arange(number - 1, -1, -1.0))
            found.append(np.concatenate(ends) - self.task_s[first] / 2.0)
        return tuple(found)


def _share(rounds: IntArray) -> IntArray:
    """Groups per job, so that there are about :data:`_MOST_GROUPS`."""
    if rounds.sum() <= _MOST_GROUPS:
        return rounds
    return np.full(len(rounds), max(1, _MOST_GROUPS // len(rounds)), dtype=np.int64)


class _Programme:
    """min sum w_j C_j over the ends of the groups, in units of their typical size."""

    def __init__(self, jobs: RoundJobs, groups: _Groups) -> None:
        number = len(groups.job)
        least = groups.rounds * groups.step_s
        start = np.zeros(number)
        start[groups.first] = jobs.arrival_s - jobs.sync_s
        low = start.copy()
        low[groups.first] += least[groups.first]
        self._unit = float(np.maximum(least.sum() / len(jobs.rounds), 1e-9))
        self._solver = new_solver()
        self._jobs, self._groups = jobs, groups
        lower = np.where(np.isin(np.arange(number), groups.first), low / self._unit, -INFINITY)
        for at in range(number):
            self._solver.addVar(float(lower[at]), INFINITY)
        for at in range(1, number):
            if groups.job[at] == groups.job[at - 1]:
                index, value = np.array([at, at - 1], np.int32), np.array([1.0, -1.0])
                self._solver.addRow(float(least[at] / self._unit), INFINITY, 2, index, value)
        self.weigh(_EARLY)

    def weigh(self, early: float) -> None:
        """Give all earlier rounds together this fraction of a job's weight."""
        jobs, groups = self._jobs, self._groups
        per_job = (groups.last - groups.first + 1).astype(np.float64)
        cost = early * (jobs.weight / per_job)[groups.job]
        cost[groups.last] += jobs.weight
        for at, value in enumerate(cost.tolist()):
            self._solver.changeColCost(at, value)

    def add(self, cuts: list[tuple[IntArray, FloatArray, float]]) -> None:
        for members, work, right in cuts:
            scale = float(work.sum())
            self._solver.addRow(
                right / scale / self._unit,
                INFINITY,
                len(members),
                members.astype(np.int32),
                work / scale,
            )

    def solve(self) -> FloatArray:
        """(G,) ends of the groups, s."""
        self._solver.run()
        found: FloatArray = np.array(self._solver.getSolution().col_value) * self._unit
        return found


@dataclass(frozen=True)
class TaskSchedule:
    """``finish_s`` (J,) ends of the jobs; ``starts``: per job and round, (type, start s, end s) of
    each task; ``switches``: how often a GPU changes to another job."""

    finish_s: FloatArray
    starts: tuple[tuple[tuple[tuple[int, float, float], ...], ...], ...]
    switches: int = 0


def alpha(task_s: FloatArray) -> float:
    """The largest ratio, over all jobs, of the longest to the shortest time of a task over the
    types that it can run on; (J, R)."""
    finite = np.isfinite(task_s)
    most = np.where(finite, task_s, 0.0).max(axis=1, initial=0.0)
    least = np.where(finite, task_s, np.inf).min(axis=1, initial=np.inf)
    return float((most / least).max(initial=1.0))


def list_schedule(
    order: Sequence[FloatArray],
    jobs: RoundJobs,
    gpus: IntArray,
    rule: Rule = "finish",
    switch_s: float = 0.0,
) -> TaskSchedule:
    """Append each task, smallest ``order`` first, to a GPU.

    ``order``: per job (its rounds,), ascending; ``gpus`` (R,); ``switch_s``: seconds that a GPU is
    idle before a task of another job. Types on which a job cannot run are skipped by both rules.
    """
    first = sorted(
        (float(place), job, number)
        for job, row in enumerate(order)
        for number, place in enumerate(row.tolist())
    )
    # Per type, ascending: when each GPU is free, and its last job.
    free: list[list[tuple[float, int]]] = [[(0.0, -1)] * count for count in gpus.tolist()]
    ready = jobs.arrival_s.tolist()
    sync = jobs.sync_s.tolist()
    made: list[list[tuple[tuple[int, float, float], ...]]] = [[] for _ in order]
    switches = 0
    for _, job, _ in first:
        ends: list[tuple[int, float, float]] = []
        lengths = jobs.task_s[job].tolist()
        kinds = [kind for kind, row in enumerate(free) if row and lengths[kind] < np.inf]
        for _ in range(int(jobs.tasks[job])):
            if rule == "available":
                kind = min(kinds, key=lambda kind: free[kind][0][0])
                at = 0
            else:
                kind = min(
                    kinds, key=lambda kind: max(free[kind][0][0], ready[job]) + lengths[kind]
                )
                # Of GPUs that would wait for the task, the one that waits least.
                at = max(0, bisect_right(free[kind], (ready[job], len(made))) - 1)
            since, before = free[kind].pop(at)
            other = before not in (-1, job)
            switches += other
            start = max(since + (switch_s if before != job else 0.0), ready[job])
            insort(free[kind], (start + lengths[kind], job))
            ends.append((kind, start, start + lengths[kind]))
        made[job].append(tuple(ends))
        ready[job] = max(end for _, _, end in ends) + sync[job]
    return TaskSchedule(np.array(ready), tuple(tuple(rows) for rows in made), switches)
