"""Rates that a policy learns from the jobs' progress, where the simulation gives none away.

At first a policy knows each job's rate on the least count of each type, as from a short profile or
a table, and where the job cannot run. All other rates come from
:mod:`~slurm_hadar.profiles.step_time`, fitted to the progress that jobs report at each decision. A
job is taken to have the same batch on each of its GPUs; a fixed global batch looks like time for
synchronization.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.profiles.step_time import (
    MODEL_SD,
    REPORT_SD,
    StepCells,
    StepTimeFit,
    StepTimes,
    fit_step_times,
    measured_sd,
)
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.workload import Workload

_SLOTS = 16
"""Places of which a job's measurements are kept; the one measured for the shortest gives way."""
_COMMON_SD = 0.5
"""How far the first rates may be off, logarithm."""
_ENOUGH_S = 30.0
"""Seconds of training after which a rate counts as measured."""


@dataclass(frozen=True)
class ProgressReports:
    """K reports since the last decision, all (K,): the row of a job, its type of GPU, how many on
    how many nodes, work done and seconds of training."""

    job: IntArray
    kind: IntArray
    gpus: IntArray
    nodes: IntArray
    work: FloatArray
    seconds: FloatArray


class RateLearner:
    """What is known of the rates of J jobs so far."""

    def __init__(
        self, workload: Workload, cluster: VirtualCluster, rate: FloatArray, seed: int
    ) -> None:
        """``rate`` (J, R, C): only its least count of each type, and where it is 0, is used."""
        jobs, kinds, _ = rate.shape
        self._counts = np.asarray(workload.counts)
        able: BoolArray = rate > 0
        least = able.argmax(axis=2)
        first = np.take_along_axis(rate, least[:, :, None], axis=2)[:, :, 0]
        with np.errstate(divide="ignore"):
            self._expected_s: FloatArray = np.where(first > 0, self._counts[least] / first, np.nan)
        most = np.maximum(cluster.gpus.max(axis=0), 1)
        nodes: IntArray = -(-self._counts[None, :] // most[:, None])
        cells = np.broadcast_arrays(np.arange(kinds)[:, None], self._counts[None, :], nodes)
        kind, gpus, spread = (cell.reshape(1, -1) for cell in cells)
        self._cells = StepCells(kind, gpus, spread, np.ones((1, 1)))
        self._able = able
        self._rng = np.random.default_rng([seed, 21])
        self._slots: list[dict[tuple[int, int, int], int]] = [{} for _ in range(jobs)]
        self._place = np.ones((jobs, _SLOTS, 3), dtype=np.int64)
        self._work, self._seconds = np.zeros((jobs, _SLOTS)), np.zeros((jobs, _SLOTS))
        nothing = self._measured(np.arange(jobs))
        self._begin = fit_step_times(self._expected_s, nothing, _COMMON_SD).parameters
        self._changed: BoolArray = np.ones(jobs, dtype=bool)
        self.rate: FloatArray = np.where(able, rate, 0.0)
        """(J, R, C) as in ``JobArrays.rate``."""
        self.known: BoolArray = np.zeros(rate.shape, dtype=bool)
        """(J, R, C) whether that was measured."""
        self.error: FloatArray = np.full(rate.shape, np.nan)
        """(J, R, C) as in ``Prospects.rate_error``."""

    def observe(self, reports: ProgressReports) -> None:
        """Take in reports; those without work or time are passed over."""
        noisy = reports.work * np.exp(REPORT_SD * self._rng.standard_normal(len(reports.job)))
        rows = zip(
            reports.job.tolist(), reports.kind.tolist(), reports.gpus.tolist(),
            reports.nodes.tolist(), noisy.tolist(), reports.seconds.tolist(), strict=True,
        )  # fmt: skip
        for job, kind, gpus, nodes, work, seconds in rows:
            if work > 0.0 and seconds > 0.0:
                slot = self._slot(job, (kind, gpus, nodes))
                self._work[job, slot] += work
                self._seconds[job, slot] += seconds
                self._changed[job] = True

    def _slot(self, job: int, place: tuple[int, int, int]) -> int:
        slots = self._slots[job]
        if place in slots:
            return slots[place]
        slot = len(slots)
        if slot == _SLOTS:
            slot = int(self._seconds[job].argmin())
            slots.pop(next(old for old, at in slots.items() if at == slot))
        slots[place] = slot
        self._place[job, slot] = place
        self._work[job, slot] = self._seconds[job, slot] = 0.0
        return slot

    def learn(self, active: IntArray) -> None:
        """Bring :attr:`rate`, :attr:`known` and :attr:`error` of these jobs up to date."""
        rows = active[self._changed[active]]
        if not len(rows):
            return
        self._changed[rows] = False
        seen = self._measured(rows)
        found = fit_step_times(self._expected_s[rows], seen, _COMMON_SD, self._begin[rows])
        self._begin[rows] = found.parameters
        self._predict(rows, found)
        self._keep_measured(rows, seen)

    def _measured(self, rows: IntArray) -> StepTimes:
        kind, gpus, nodes = np.moveaxis(self._place[rows], 2, 0)
        work, seconds = self._work[rows], self._seconds[rows]
        there = seconds > 0
        step_s = np.where(there, gpus * seconds / np.where(there, work, 1.0), np.nan)
        cells = StepCells(kind, gpus, nodes, np.ones((1, 1)))
        return StepTimes(cells, step_s, measured_sd(seconds))

    def _predict(self, rows: IntArray, found: StepTimeFit) -> None:
        step_s, sd = found.predict(self._cells)
        shape = (len(rows), *self.rate.shape[1:])
        able = self._able[rows]
        rate = self._counts / step_s.reshape(shape)
        self.rate[rows] = np.where(able, rate, 0.0)
        error = np.hypot(sd, MODEL_SD).reshape(shape)
        self.error[rows] = np.where(able, error, np.nan)

    def _keep_measured(self, rows: IntArray, seen: StepTimes) -> None:
        """A place that was measured has its measured rate, as the model rounds off its kinks; of
        two on unlike numbers of nodes that on the fewest."""
        cells = seen.cells
        column = np.searchsorted(self._counts, cells.gpus)
        fits = (seen.step_s > 0) & (self._seconds[rows] >= _ENOUGH_S)
        fits &= column < len(self._counts)
        column = np.minimum(column, len(self._counts) - 1)
        fits &= self._counts[column] == cells.gpus
        at, slot = np.nonzero(fits)
        order = np.argsort(-cells.nodes[at, slot], kind="stable")
        at, slot = at[order], slot[order]
        place = (rows[at], cells.kind[at, slot], column[at, slot])
        self.rate[place] = cells.gpus[at, slot] / seen.step_s[at, slot]
        self.error[place] = seen.sd[at, slot]
        self.known[place] = True
