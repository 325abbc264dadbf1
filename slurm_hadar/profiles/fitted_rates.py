"""Speeds on GPUs where a model has not run, from those that its owner's runs measured elsewhere.

For models that no table knows and jobs that declare their global batch: the step-time model of
:mod:`~slurm_hadar.profiles.step_time` is fitted to the measurements of one user. Where a table
knows the model, or the batch on each GPU stays as it is, the estimate with its correction is the
better one (``python -m benchmarks.untried_speeds``).

A step is counted in what is expected of it on one GPU of its type, so that a type which is expected
to be twice as fast is taken to synchronize twice as fast: it has the faster links.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles.estimate import Estimator
from slurm_hadar.profiles.measured import MeasuredStore, Measurement
from slurm_hadar.profiles.measured_correction import SURE_S
from slurm_hadar.profiles.recent_cache import Recent
from slurm_hadar.profiles.step_time import (
    StepCells,
    StepTimeFit,
    StepTimes,
    fit_step_times,
    measured_sd,
)

UNTRIED_SD = 0.25
"""How far the speeds of places that were not tried are off besides what the fit says, logarithm:
true jobs scale with kinks that no model of this form has (``benchmarks.untried_speeds``)."""

_LEVEL_SD = 5.0
"""How far the expected speed may be off on all types alike, logarithm: nothing is known of it."""
_MOST_ROWS = 16
"""Measurements of one fit, those over the longest time."""
_LEAST, _MOST = 1e-9, 1e15
"""Samples/s of a speed that is inferred."""


@dataclass(frozen=True, slots=True)
class FitKey:
    """What one fit is for; ``batch`` is global."""

    user: int
    model: str
    batch: int


@dataclass(frozen=True, slots=True)
class InferredRate:
    """Samples/s of the whole job, the standard deviation of its logarithm, and the measurements
    that it follows from."""

    rate: float
    sd: float
    rows: tuple[Measurement, ...]


def usable(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Of one user's measurements of a model those that a fit can use, the longest first: their
    batch is known and they took longer than a busy moment after a start."""
    found = [row for row in rows if row.batch > 0 and row.weight_s >= SURE_S]
    found.sort(key=lambda row: (-row.weight_s, row.key))
    return tuple(found[:_MOST_ROWS])


_ExpectedAlone = Callable[[str, str, int], float]
"""(model, GPU type, batch) -> samples/s that are expected of one GPU."""


@dataclass(frozen=True, slots=True)
class RunFit:
    """The fit of one key. Its types are those that were measured and, after them, any other."""

    key: FitKey
    rows: tuple[Measurement, ...]
    kinds: tuple[str, ...]
    level: float
    """Logarithm of a measured step over an expected one, the mean; steps are counted in it."""
    fit: StepTimeFit
    expected: _ExpectedAlone
    cells: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    """(type, GPUs) -> a step over an expected one of the level, and the error of its logarithm."""
    alone: dict[str, float] = field(default_factory=dict)
    """GPU type -> samples/s that are expected of one."""

    def at(self, kind: str, gpus: int) -> InferredRate:
        """The speed on this many GPUs of a type."""
        column = self.kinds.index(kind) if kind in self.kinds else len(self.kinds)
        if (column, gpus) not in self.cells:
            self.keep((column,), (gpus,), *_predicted(self.fit, (column,), (gpus,)))
        step, sd = self.cells[column, gpus]
        alone = self.alone.get(kind)
        if alone is None:
            alone = self.expected(self.key.model, kind, self.key.batch)
            self.alone[kind] = alone
        rate = alone * math.exp(-self.level - math.log(step))
        return InferredRate(min(max(rate, _LEAST), _MOST), sd, self.rows)

    def keep(self, columns: Sequence[int], counts: Sequence[int], *found: FloatArray) -> None:
        """Keep predictions, two arrays (1, N) over types and within them counts."""
        places = [(column, gpus) for column in columns for gpus in counts]
        step, sd = (one[0].tolist() for one in found)
        self.cells.update(zip(places, zip(step, sd, strict=True), strict=True))


class RunFits:
    """The fits of many users' models, each kept until it was measured anew."""

    def __init__(self, estimator: Estimator, store: MeasuredStore, most: int) -> None:
        """``estimator``: what is expected of one GPU; ``most``: fits that are kept at least."""
        self._estimator, self._store = estimator, store
        self._fits: Recent[FitKey, RunFit] = Recent(most)

    def turn(self) -> None:
        """Drop the fits that were not asked for since the last turn."""
        self._fits.turn()

    def of(self, user: int | None, model: str, batch: int | None) -> RunFit | None:
        """The fit to a user's own measurements of a model (its key) for a global batch; None where
        what was not measured is estimated."""
        return self._found([(user, model, batch)], ())[0]

    def prepare(
        self, asked: Iterable[tuple[int | None, str, int | None]], counts: Sequence[int]
    ) -> None:
        """Make the fits of :meth:`of` that are new, in one call, with the speeds on ``counts`` GPUs
        computed at once as well."""
        self._found(asked, counts)

    def _found(
        self, asked: Iterable[tuple[int | None, str, int | None]], counts: Sequence[int]
    ) -> list[RunFit | None]:
        keys = [self._key(*one) for one in asked]
        found: dict[FitKey, RunFit] = {}
        anew: dict[FitKey, tuple[Measurement, ...]] = {}
        for key in keys:
            if key is None or key in found or key in anew:
                continue
            rows = usable([row for row in self._store.of(key.model) if row.uid == key.user])
            fit = self._fits.get(key)
            if fit is not None and fit.rows == rows:
                found[key] = fit
            elif rows:
                anew[key] = rows
        for fit in _fitted(anew, counts, self._expected):
            found[fit.key] = fit
            self._fits.put(fit.key, fit)
        return [found.get(key) if key else None for key in keys]

    def _key(self, user: int | None, model: str, batch: int | None) -> FitKey | None:
        if user is None or user < 0 or not batch or self._estimator.anchored(model):
            return None
        return FitKey(user, model, batch)

    def _expected(self, model: str, kind: str, batch: int) -> float:
        return self._estimator.cell(model, kind, 1, batch).rate


def _fitted(
    asked: Mapping[FitKey, tuple[Measurement, ...]], counts: Sequence[int], expected: _ExpectedAlone
) -> list[RunFit]:
    if not asked:
        return []
    kinds = [tuple(sorted({row.gpu_type for row in rows})) for rows in asked.values()]
    most = max(len(rows) for rows in asked.values())
    shape = (len(asked), most)
    kind, gpus = np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=np.int64)
    local, log_step = np.ones(shape), np.zeros(shape)
    seconds = np.zeros(shape)
    for at, (key, rows) in enumerate(asked.items()):
        for slot, row in enumerate(rows):
            alone = expected(key.model, row.gpu_type, key.batch)
            kind[at, slot], gpus[at, slot] = kinds[at].index(row.gpu_type), row.gpus
            local[at, slot] = row.batch / row.gpus / key.batch
            log_step[at, slot] = math.log(alone / row.samples_per_s) + math.log(
                row.batch / key.batch
            )
            seconds[at, slot] = row.weight_s
    there = seconds > 0
    level = np.where(there, log_step, 0.0).sum(axis=1) / there.sum(axis=1)
    step = np.where(there, np.exp(np.clip(log_step - level[:, None], -25.0, 25.0)), np.nan)
    # A column for each measured type, and one at least for any other.
    columns = max(len(names) for names in kinds) + 1
    seen = StepTimes(StepCells(kind, gpus, np.ones_like(gpus), local), step, measured_sd(seconds))
    fit = fit_step_times(np.ones((len(asked), columns)), seen, _LEVEL_SD)
    steps, sd = _predicted(fit, range(columns), counts)
    found = []
    for at, (key, rows) in enumerate(asked.items()):
        mine = slice(at, at + 1)
        one = RunFit(key, rows, kinds[at], float(level[at]), fit.take(np.array([at])), expected)
        one.keep(range(columns), counts, steps[mine], sd[mine])
        found.append(one)
    return found


def _predicted(
    fit: StepTimeFit, columns: Sequence[int], counts: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """(J, N) steps over expected ones, for each type and within it each count, and their errors."""
    kind, gpus = (
        one.reshape(1, -1)
        for one in np.meshgrid(np.array(columns, np.int64), np.array(counts, np.int64),
                               indexing="ij")
    )  # fmt: skip
    step, sd = fit.predict(StepCells(kind, gpus, np.ones_like(gpus), 1.0 / gpus))
    return np.clip(step, 1e-30, 1e30), np.hypot(sd, UNTRIED_SD)
