"""Rates of the jobs of a synthetic cluster as a step-time model fits them to reports, for
``benchmarks.decide``."""

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray, JobArrays
from slurm_hadar.profiles.step_time import StepCells, StepTimes, fit_step_times

_OFF_SD, _NOISE_SD = 0.3, 0.03
"""Logarithm: of the speed that is expected of a job on one GPU, and of what it reports."""
_PLACES = 3
"""Types and numbers of GPUs, at random, of which a job has reported a speed."""


class FittedRates:
    """The fits of all jobs so far, by their ids, which are 1, 2, 3, ..."""

    def __init__(self, counts: tuple[int, ...], types: int, per_node: int, seed: int) -> None:
        """``counts``: numbers of GPUs that jobs may have; ``per_node``: GPUs of a node."""
        self._random = np.random.default_rng([seed, 31])
        self._counts = np.array(counts)
        kind, gpus = np.meshgrid(np.arange(types), self._counts, indexing="ij")
        nodes = -(-gpus // per_node)
        self._cells = StepCells(
            kind.reshape(1, -1), gpus.reshape(1, -1), nodes.reshape(1, -1), np.ones((1, 1))
        )
        self._expected = np.zeros((0, types))
        self._begin: FloatArray | None = None
        self._rate = np.zeros((0, types, len(counts)))

    def meet(self, jobs: JobArrays) -> None:
        """Make room for new jobs, and draw what is expected of them. Not to be timed."""
        rows = _rows(jobs)
        new = rows >= len(self._expected)
        first = (jobs.rate > 0).argmax(axis=2)
        rate = np.take_along_axis(jobs.rate, first[:, :, None], axis=2)[:, :, 0]
        seconds = self._counts[first] / rate
        off = self._random.normal(0.0, _OFF_SD, (len(rows), 1))
        drawn = (seconds * np.exp(off))[new]
        self._expected = np.concatenate([self._expected, drawn])
        self._rate = np.concatenate([self._rate, np.zeros((len(drawn), *self._rate.shape[1:]))])
        nothing = self._nothing(len(drawn))
        begin = fit_step_times(drawn, nothing).parameters
        old = begin[:0] if self._begin is None else self._begin
        self._begin = np.concatenate([old, begin])

    def reports(self, jobs: JobArrays, at: IntArray) -> StepTimes:
        """What the jobs ``at`` (J',) report anew. Not to be timed."""
        rate = jobs.rate[at].reshape(len(at), -1)
        drawn = self._random.random(rate.shape) * (rate > 0)
        places = np.argsort(-drawn, axis=1)[:, :_PLACES]
        there = np.take_along_axis(rate, places, axis=1)
        kind, gpus, nodes = (
            one[0][places] for one in (self._cells.kind, self._cells.gpus, self._cells.nodes)
        )
        noise = np.exp(self._random.normal(0.0, _NOISE_SD, there.shape))
        seconds = np.where(there > 0, gpus / np.where(there > 0, there, 1.0) * noise, np.nan)
        sd = np.where(there > 0, _NOISE_SD, np.inf)
        return StepTimes(StepCells(kind, gpus, nodes, np.ones((1, 1))), seconds, sd)

    def fit(self, jobs: JobArrays, at: IntArray, seen: StepTimes) -> None:
        """Fit the jobs ``at`` to what they reported, from their last fit on."""
        rows = _rows(jobs)[at]
        assert self._begin is not None
        found = fit_step_times(self._expected[rows], seen, start=self._begin[rows])
        self._begin[rows] = found.parameters
        step_s, _ = found.predict(self._cells)
        rate = self._cells.gpus / step_s
        self._rate[rows] = rate.reshape(len(rows), *self._rate.shape[1:])

    def of(self, jobs: JobArrays) -> FloatArray:
        """(J, R, C) samples/s; 0 where the job cannot run."""
        return np.where(jobs.rate > 0, self._rate[_rows(jobs)], 0.0)

    def _nothing(self, number: int) -> StepTimes:
        ones = np.ones((number, 1), dtype=np.int64)
        return StepTimes(
            StepCells(ones * 0, ones, ones, np.ones((1, 1))),
            np.full((number, 1), np.nan),
            np.full((number, 1), np.inf),
        )


def _rows(jobs: JobArrays) -> IntArray:
    return np.array(jobs.ids, dtype=np.int64) - 1
