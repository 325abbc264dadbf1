"""What the controller expects of the simulated queue, by what it sees: when GPUs are released,
and when jobs that wait would start and end."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.scheduling import narrowing, twin
from slurm_hadar.scheduling.twin import LIMIT_SHARE, Served
from slurm_hadar.simulator.queue.requests import Requests

Pools = Sequence[Sequence[float]]
"""Of each of R types when each of its GPUs is released, s from now, rising."""


@dataclass(frozen=True)
class RunningJobs:
    """Arrays over J' jobs that run: ``jobs``, their numbers; ``ran_s`` since when they started;
    ``begins_s`` until they train; ``done``: samples; ``speed``: samples per s; ``on``: (J', R)
    GPUs."""

    jobs: IntArray
    ran_s: FloatArray
    begins_s: FloatArray
    done: FloatArray
    speed: FloatArray
    on: IntArray


@dataclass(frozen=True)
class Foresight:
    """Arrays over J jobs and R types: ``request``, (J,) GPUs; ``rate``: (J, R) samples per s and
    ``total``: (J,) samples, both as declared or estimated. Used for managed jobs; of the others
    only limits are known."""

    asked: Requests
    request: IntArray
    rate: FloatArray
    total: FloatArray

    def released(self, free: IntArray, running: RunningJobs) -> Pools:
        """``free``: (R,) GPUs that no job has."""
        jobs, ran = running.jobs, running.ran_s
        limit, work = self.asked.limit_s[jobs], self.total[jobs] - running.done
        # One that ran for longer already ends any time until its limit.
        by_limit = np.maximum(LIMIT_SHARE * limit - ran, np.minimum(limit - ran, ran) / 2)
        by_work = running.begins_s + work / running.speed
        known = self.asked.managed[jobs] & (work > 0)
        left = np.where(known, by_work, np.maximum(by_limit, 0.0))
        pools = [[0.0] * int(n) for n in free]
        for end, row in zip(left.tolist(), running.on.tolist(), strict=True):
            for pool, count in zip(pools, row, strict=True):
                pool += [end] * count
        return [sorted(pool) for pool in pools]

    def times(self, line: IntArray, done: FloatArray) -> FloatArray:
        """(W, R) s that jobs of the queue run on each type; inf: not there. ``done``: (J,)
        samples."""
        left = np.maximum(self.total[line] - done[line], 1.0)
        with np.errstate(divide="ignore"):
            by_work = left[:, None] / self.rate[line]
        by_limit = LIMIT_SHARE * self.asked.limit_s[line, None]
        found = np.where(self.asked.managed[line, None], by_work, by_limit)
        return np.where(self.asked.types[line], found, inf)

    def ends(self, line: IntArray, times: FloatArray, pools: Pools) -> FloatArray:
        """(W,) s from now until each job of the queue would end in this order."""
        return twin.ends(pools, self.request[line], times)

    def narrowed(
        self,
        line: IntArray,
        times: FloatArray,
        pools: Pools,
        lists: Sequence[Sequence[int]],
        longest_s: FloatArray,
    ) -> list[tuple[int, ...]]:
        """The types of each job of the queue without those that are not worth taking
        (:mod:`slurm_hadar.scheduling.narrowing`). ``lists``: of all W; ``longest_s``: (W,) s for
        which each may wait for a type, 0 or less: not at all. Unmanaged jobs keep theirs."""
        managed = self.asked.managed[line]
        listed = np.zeros(times.shape, dtype=np.bool_)
        for at, kinds in enumerate(lists):
            listed[at, list(kinds)] = True
        # A managed job is not expected on a type that its list leaves out.
        open_to_it = np.where(listed | ~managed[:, None], times, inf)
        served: Served = twin.served(pools, self.request[line], open_to_it, managed)
        theirs = self.asked.types[line] & ~managed[:, None]
        behind = np.logical_or.accumulate(theirs[::-1], axis=0)[::-1]
        found = []
        for at, (kinds, own) in enumerate(zip(lists, managed.tolist(), strict=True)):
            longest = float(longest_s[at])
            if own and longest > 0:
                starts, runs = served.starts[at].tolist(), times[at].tolist()
                waits, run = {k: starts[k] for k in kinds}, {k: runs[k] for k in kinds}
                others = behind[at].tolist().__getitem__
                kinds = narrowing.without_slower_types(kinds, waits, run, longest, others)
            found.append(tuple(kinds))
        return found
