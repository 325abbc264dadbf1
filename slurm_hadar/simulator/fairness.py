"""How fair a simulated run was to jobs, users and accounts.

**Finish-time fairness** rho = T / T_fair (Themis, NSDI 2020; as in Gavel, OSDI 2020): T is a job's
JCT, and T_fair what it would be on its fair part of the cluster alone. Above 1 the job was worse
off by sharing. The part is 1 / N of the GPUs of every type, N being the contention averaged over
the job's own life. A job of g GPUs runs c_r / (N g) of the time on each type r of c_r GPUs, scaled
to at most all of the time, as in Gavel's code (verified), so at sum_r X_r c_r / (N g). N is for

- jobs: the jobs that are there;
- users: the users that have jobs there, times the jobs of the job's user; accounts alike. So each
  user has an equal part, divided among the user's jobs.

A user's rho is the sum of T over the sum of T_fair (ours: one long job counts for what it is).
**Jain's index** (Jain, Chiu and Hawe, DEC TR-301, 1984) of x_u = 1 / rho_u over U users is
(sum x)^2 / (U sum x^2): 1 where all gain or lose alike by sharing, 1 / U where one has all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.simulator.job_owners import JobOwners
from slurm_hadar.simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class GroupFairness:
    """Of jobs, users or accounts; nan where none finished a job."""

    mean_rho: float
    worst_rho: float
    jain: float

    @classmethod
    def of(cls, rho: FloatArray) -> "GroupFairness":
        """``rho`` (N,), above 0."""
        if not len(rho):
            return cls(float("nan"), float("nan"), float("nan"))
        return cls(float(rho.mean()), float(rho.max()), jain(1.0 / rho))


@dataclass(frozen=True, slots=True)
class RunFairness:
    """Of one run, over what finished."""

    jobs: GroupFairness
    users: GroupFairness
    accounts: GroupFairness

    def summary(self) -> dict[str, float | None]:
        """By name, as the command prints them; None where nothing finished."""
        return {
            f"{name}_{key}": value if np.isfinite(value) else None
            for name, group in (("job", self.jobs), ("user", self.users),
                                ("account", self.accounts))
            for key, value in (("mean_rho", group.mean_rho), ("worst_rho", group.worst_rho),
                               ("jain", group.jain))
        }  # fmt: skip


def jain(share: FloatArray) -> float:
    """Jain's index of ``share`` (N,), at least 0 and N above 0; 1 where all are 0."""
    most = float(share.max())
    if most <= 0.0:
        return 1.0
    # In units of the largest: squares of very small shares would vanish.
    unit = share / most
    return float(unit.sum() ** 2 / (len(unit) * (unit**2).sum()))


def fairness(
    workload: Workload, capacity: IntArray, finish_s: FloatArray, owners: JobOwners
) -> RunFairness:
    """``capacity`` (R,) GPUs by type; ``finish_s`` (J,), nan where a job never finished: it counts
    as there to the end of the run, and has no rho. A job without a rate at the GPUs that it asks
    for counts with the least count at which it has one."""
    last = float(np.nanmax(finish_s, initial=0.0)) if np.isfinite(finish_s).any() else 0.0
    end = np.where(np.isnan(finish_s), max(last, float(workload.arrival_s.max())), finish_s)
    span = np.maximum(end - workload.arrival_s, 0.0)
    rows = np.flatnonzero(~np.isnan(finish_s) & (span > 0.0))
    alone, most = _equal_part(workload, capacity)
    presence = _Presence(workload.arrival_s, end)
    every = np.zeros(len(end), dtype=np.int64)

    def rho(groups: IntArray) -> tuple[FloatArray, FloatArray]:
        contention = presence.contention(groups)[rows]
        speed = alone[rows] / np.maximum(contention, most[rows])
        return span[rows], workload.total[rows] / speed

    shared, fair = rho(every)
    found = [GroupFairness.of(shared / fair)]
    for names in (owners.users, owners.accounts):
        groups = _numbered(names)
        shared, fair = rho(groups)
        some, at = np.unique(groups[rows], return_inverse=True)
        sums = [np.bincount(at, weights=w, minlength=len(some)) for w in (shared, fair)]
        found.append(GroupFairness.of(sums[0] / sums[1]))
    return RunFairness(*found)


def _numbered(names: Sequence[str]) -> IntArray:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def _equal_part(workload: Workload, capacity: IntArray) -> tuple[FloatArray, FloatArray]:
    """(J,) rate on a whole cluster of one's own, were a job able to use more than all of the time;
    and (J,) over how many equal parts that has to be divided at least, so that it is not."""
    counts = np.asarray(workload.counts)
    able: BoolArray = np.asarray((workload.rate > 0) & (counts <= capacity[:, None]))
    asked = np.searchsorted(counts, workload.request)
    each = np.arange(len(workload.ids))
    there: BoolArray = np.asarray(able.any(axis=1))
    column = np.where(there[each, asked], asked, there.argmax(axis=1))
    rate = np.where(able, workload.rate, 0.0)[each, :, column]
    gpus = counts[column]
    part = capacity[None, :] / gpus[:, None]
    return (rate * part).sum(axis=1), np.maximum(part.sum(axis=1), 1.0)


class _Presence:
    """Which jobs are there when: ``start_s`` and ``end_s`` (J,), and means over a job's life."""

    def __init__(self, start_s: FloatArray, end_s: FloatArray) -> None:
        times, at = np.unique(np.concatenate([start_s, end_s]), return_inverse=True)
        self._step = np.diff(times)
        self._first, self._until = at[: len(start_s)], at[len(start_s) :]
        self._span = end_s - start_s

    def contention(self, groups: IntArray) -> FloatArray:
        """(J,) mean of (groups there) x (jobs there of the job's group) over the job's life; at
        least 1."""
        there = np.zeros(len(self._step))
        rows = [np.flatnonzero(groups == group) for group in range(int(groups.max()) + 1)]
        for row in rows:
            there += self._number(row) > 0
        mean = np.ones(len(groups))
        for row in rows:
            total = np.concatenate([[0.0], np.cumsum(there * self._number(row) * self._step)])
            over = total[self._until[row]] - total[self._first[row]]
            span = self._span[row]
            mean[row] = np.divide(over, span, out=np.ones(len(row)), where=span > 0)
        found: FloatArray = np.maximum(mean, 1.0)
        return found

    def _number(self, row: IntArray) -> FloatArray:
        """(steps,) how many of these jobs are there in each step of time."""
        size = len(self._step) + 1
        come = np.bincount(self._first[row], minlength=size)
        gone = np.bincount(self._until[row], minlength=size)
        found: FloatArray = np.cumsum(come - gone)[:-1].astype(np.float64)
        return found
