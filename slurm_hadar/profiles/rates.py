"""Samples/s of a job on every GPU type and number of GPUs: measured, from a table, or estimated."""

import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.config import Config
from slurm_hadar.domain.view import BoolArray, FloatArray
from slurm_hadar.profiles import rate_origin
from slurm_hadar.profiles.bounded_shift import Point, Window, factors
from slurm_hadar.profiles.cpu_table import CpuTable
from slurm_hadar.profiles.cpu_table import load as load_cpus
from slurm_hadar.profiles.estimate import Estimator, ExpectedRate
from slurm_hadar.profiles.fitted_rates import RunFit, RunFits
from slurm_hadar.profiles.measured import MeasuredStore, RateSample
from slurm_hadar.profiles.measured_correction import Correction, Expected
from slurm_hadar.profiles.rate_origin import Place, RateOrigin
from slurm_hadar.profiles.recent_cache import Recent
from slurm_hadar.profiles.table import Table, load, model_key, shipped
from slurm_hadar.profiles.tiers import TierRates

OTHERS_MOST = 5.0
"""What other users measured moves a model of the table by this factor at most, as a whole: one user
who gives a model a wrong name, or writes nonsense, must not spoil it for all. The ratio between two
GPU types moves by :data:`~slurm_hadar.profiles.bounded_shift.RATIO_MOST` at most."""

_MOST_CACHED = 10_000
_OTHERS = -1
"""In place of a uid: a user who has measured nothing and trusts others with care."""
_SAME = 0.01
"""A rate as far from what others measured as this is theirs, not one within bounds."""
_NOTHING = Correction((), lambda *_: 0.0)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which rates are asked for. ``spread``: its GPUs lie on several nodes; ``alone``: without what
    other users measured."""

    types: tuple[str, ...]
    counts: tuple[int, ...]
    spread: bool = False
    alone: bool = False

    @property
    def infers(self) -> bool:
        """Whether a rate that was not measured may be inferred from the owner's runs."""
        return not (self.spread or self.alone)


@dataclass(frozen=True, slots=True)
class _Block:
    """All (R, C): samples/s; whether that was measured or stands in a table; standard deviation of
    its logarithm where the user's own runs measured it or it is inferred from them, else nan."""

    rate: FloatArray
    known: BoolArray
    error: FloatArray


@dataclass(frozen=True, slots=True)
class _Cell:
    """One of a :class:`_Block`."""

    rate: float
    known: bool
    sd: float = math.nan


@dataclass(frozen=True, slots=True)
class _Batch:
    """``declared``: a global batch; ``per_gpu``: what its user's trainings report, where none is
    declared, 0: nothing, so that a table's middle batch counts."""

    declared: int | None
    per_gpu: float = 0.0

    def on(self, gpus: int) -> int | None:
        """The global batch on this many GPUs; None: a table's middle one."""
        if self.declared is None and self.per_gpu > 0:
            return max(1, round(self.per_gpu * gpus))
        return self.declared


_EXACT = _Batch(0)
"""In place of a batch: each measurement is set against what is expected of its own batch."""
_Place = tuple[int | None, str, int | None, _Asked]
_Corrected = tuple[str, int | None, _Batch]
"""Model, user, and the batch that is expected."""


class Rates:
    """A table, corrected by what was measured.

    A user's own measurements count in full. What other users measured under the same name of a
    model corrects, within bounds, what the user has not measured, and reverses no order of two
    types. Nothing else is assumed about one type being faster than another, nor about scaling being
    monotone.
    """

    def __init__(
        self,
        table: Table | None = None,
        estimator: Estimator | None = None,
        store: MeasuredStore | None = None,
        cpus: CpuTable | None = None,
        tiers: TierRates | None = None,
    ) -> None:
        """``table``: the shipped one by default. ``estimator``: with a site's own types. ``cpus``:
        what the site measured by CPUs and memory."""
        self.cpus = cpus or CpuTable((), "")
        self.tiers = tiers or TierRates()
        """What models lose when their GPUs are apart."""
        self._estimator = estimator or Estimator(table or shipped())
        self.store = store or MeasuredStore()
        self._blocks: Recent[_Place, _Block] = Recent(_MOST_CACHED)
        self._corrections: Recent[_Corrected, Correction] = Recent(_MOST_CACHED)
        self._users: Recent[str, frozenset[int]] = Recent(_MOST_CACHED)
        self._fits = RunFits(self._estimator, self.store, _MOST_CACHED)

    def rates(
        self,
        model: str,
        batch: int | None,
        types: Sequence[str],
        counts: Sequence[int],
        uid: int | None = None,
        spread: bool = False,
    ) -> tuple[FloatArray, BoolArray]:
        """Samples/s (R, C) of the whole job with a global ``batch`` on ``counts`` GPUs of a type.

        Also (R, C) whether that was measured or stands in a table. 0 only where a table says that
        the job cannot run so. ``uid``: whose job; ``spread``: its GPUs lie on several nodes.
        """
        block = self._block(uid, model, batch, _Asked(tuple(types), tuple(counts), spread))
        return block.rate.copy(), block.known.copy()

    def rates_for(
        self,
        jobs: Sequence[tuple[int | None, str, int | None]],
        types: Sequence[str],
        counts: Sequence[int],
        spread: bool = False,
    ) -> tuple[FloatArray, BoolArray]:
        """:meth:`rates` of many (uid, model, batch): (J, R, C) samples/s and (J, R, C) known."""
        found = self._of_all(jobs, _Asked(tuple(types), tuple(counts), spread))
        return found.rate, found.known

    def own_rates_for(
        self,
        jobs: Sequence[tuple[int | None, str, int | None]],
        types: Sequence[str],
        counts: Sequence[int],
    ) -> tuple[FloatArray, BoolArray, BoolArray]:
        """:meth:`rates_for` without what other users reported, and estimated instead of inferred
        where nothing was measured: what may exclude a job from a type.

        Also (J,) whether these are samples/s at all: else only their ratios mean something.
        """
        found = self._of_all(jobs, _Asked(tuple(types), tuple(counts), alone=True))
        timed = [self._estimator.anchored(model) or self._user(model_key(model), uid) == uid
                 for uid, model, _ in jobs]  # fmt: skip
        return found.rate, found.known, np.array(timed, dtype=bool)

    def errors_for(
        self,
        jobs: Sequence[tuple[int | None, str, int | None]],
        types: Sequence[str],
        counts: Sequence[int],
    ) -> FloatArray:
        """(J, R, C) standard deviation of the logarithm of :meth:`rates_for`, where the owner's own
        runs measured the rate or it is inferred from them; nan: not known."""
        return self._of_all(jobs, _Asked(tuple(types), tuple(counts))).error

    def table_rates_for(
        self,
        jobs: Sequence[tuple[str, int | None]],
        types: Sequence[str],
        counts: Sequence[int],
    ) -> tuple[FloatArray, BoolArray]:
        """:meth:`rates_for` of many (model, batch) as if nothing had been measured."""
        asked = _Asked(tuple(types), tuple(counts), alone=True)
        found = self._of_all([(_OTHERS, model, batch) for model, batch in jobs], asked)
        return found.rate, found.known

    def _of_all(self, jobs: Sequence[tuple[int | None, str, int | None]], asked: _Asked) -> _Block:
        """The blocks of these jobs, (J, R, C)."""
        places: dict[tuple[int | None, str, int | None], int] = {}
        rows = np.array([places.setdefault(job, len(places)) for job in jobs], dtype=np.intp)
        if not places:
            shape = (0, len(asked.types), len(asked.counts))
            return _Block(np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(shape))
        if asked.infers:
            self._fit_all(places, asked)
        blocks = [self._block(*job, asked) for job in places]
        return _Block(
            np.stack([block.rate for block in blocks])[rows],
            np.stack([block.known for block in blocks])[rows],
            np.stack([block.error for block in blocks])[rows],
        )

    def _fit_all(self, jobs: Iterable[tuple[int | None, str, int | None]], asked: _Asked) -> None:
        """Fit those of which no block is kept, together."""
        wanted = []
        for uid, model, batch in jobs:
            key = model_key(model)
            user = self._user(key, uid)
            if self._blocks.get((user, key, batch, asked)) is None:
                wanted.append((user, key, batch))
        self._fits.prepare(wanted, asked.counts)

    def table_rates(self, model: str, gpu_type: str) -> dict[int, float]:
        """See :meth:`Estimator.table_rates`."""
        return self._estimator.table_rates(model, gpu_type)

    def anchored(self, model: str) -> bool:
        """Whether a model's rates are samples/s; else only their ratios mean something.

        False for a model that is in no table and unmeasured: no time can be given.
        """
        return self._estimator.anchored(model) or next(self.store.of(model), None) is not None

    def record(self, sample: RateSample) -> bool:
        """Take in a measurement, see :meth:`MeasuredStore.record`; False where it cannot be."""
        taken = self.store.record(sample)
        if taken:
            key = model_key(sample.model)
            self._corrections.drop(lambda place: place[0] == key)
            self._blocks.drop(lambda place: place[1] == key)
            self._users.drop(lambda model: model == key)
        return taken

    def read_again(self) -> None:
        """Take in what another process or thread has recorded in the same file since."""
        self.store.read_again()
        for cache in (self._blocks, self._corrections, self._users):
            cache.drop(lambda _: True)

    def forget_unused(self) -> None:
        """Drop the results for models that were not asked for since the last call.

        For who goes on for weeks: a job without a declared model goes by its own name, so there is
        no end of models.
        """
        for cache in (self._blocks, self._corrections, self._users):
            cache.turn()
        self._fits.turn()

    def source(
        self,
        model: str,
        gpu_type: str,
        gpus: int,
        batch: int | None,
        uid: int | None = None,
        spread: bool = False,
    ) -> str:
        """Where a rate comes from, as text for a person."""
        return self.origin(model, (gpu_type, gpus), batch, uid, spread=spread).text

    def origin(
        self,
        model: str,
        pair: tuple[str, int],
        batch: int | None,
        uid: int | None = None,
        job: str = "",
        spread: bool = False,
    ) -> RateOrigin:
        """Where the rate on a type and number of GPUs comes from. ``job``: the id of the one that
        is asked for, whose own measurements are named."""
        key = model_key(model)
        gpu_type, gpus = pair
        user = self._user(key, uid)
        size = self._batch(key, user, batch)
        cell = self._estimator.cell(key, gpu_type, gpus, size.on(gpus), spread)
        own, theirs = self._correction(key, user, size), self._theirs(key, user, size)
        fit = (
            None
            if spread or own.measured(*pair, batch)
            else self._fits.of(user, key, size.declared)
        )
        inferred = fit.at(*pair) if fit else None
        place = Place(gpu_type, gpus, batch, spread)
        return rate_origin.origin(
            rate_origin.Evidence(
                cell,
                own,
                theirs,
                inferred,
                in_full=lambda: self._counts_in_full(uid, model, batch, pair),
                shifted=lambda: (
                    inferred is not None
                    and not math.isclose(
                        self._used(uid, model, batch, pair), inferred.rate, rel_tol=_SAME
                    )
                ),
            ),
            place,
            uid,
            job,
        )

    def _counts_in_full(
        self, uid: int | None, model: str, batch: int | None, pair: tuple[str, int]
    ) -> bool:
        """Whether a pair's rate is the one that other users measured, not one within bounds."""
        kind, gpus = pair
        used = self._used(uid, model, batch, pair)
        rows = (r for r in self.store.of(model) if (r.gpu_type, r.gpus) == pair)
        whole = Correction(rows, lambda *_: 0.0).measured(kind, gpus, batch)
        return whole is not None and math.isclose(used, whole, rel_tol=_SAME)

    def _used(self, uid: int | None, model: str, batch: int | None, pair: tuple[str, int]) -> float:
        kind, gpus = pair
        return float(self._block(uid, model, batch, _Asked((kind,), (gpus,))).rate[0, 0])

    def _block(
        self,
        uid: int | None,
        model: str,
        batch: int | None,
        asked: _Asked,
    ) -> _Block:
        key = model_key(model)
        user = self._user(key, uid)
        place = (user, key, batch, asked)
        block = self._blocks.get(place)
        if block is None:
            size = self._batch(key, user, batch)
            block = self._without_others(user, key, size, asked)
            if not asked.alone and self._theirs(key, user, size):
                block = self._with_others(user, key, size, asked, block)
            self._blocks.put(place, block)
        return block

    def _without_others(self, user: int | None, model: str, size: _Batch, asked: _Asked) -> _Block:
        fit = self._fits.of(user, model, size.declared) if asked.infers else None
        cells = [
            self._cell(user, model, (kind, n, size), asked.spread, fit)
            for kind in asked.types
            for n in asked.counts
        ]
        shape = (len(asked.types), len(asked.counts))
        return _Block(
            np.array([cell.rate for cell in cells], np.float64).reshape(shape),
            np.array([cell.known for cell in cells], np.bool_).reshape(shape),
            np.array([cell.sd for cell in cells], np.float64).reshape(shape),
        )

    def _with_others(
        self,
        user: int | None,
        model: str,
        size: _Batch,
        asked: _Asked,
        alone: _Block,
    ) -> _Block:
        """``alone`` as what other users measured shifts it. What was measured on one node shifts
        GPUs on several nodes too."""
        theirs = self._theirs(model, user, size)
        own = self._correction(model, user, size).types()
        levels = theirs.levels(size.declared)
        seen = theirs.types(but=user)
        levels = {kind: level for kind, level in levels.items() if kind in seen}
        if not levels:
            return alone
        window, rate, known = Window.of(levels, own), alone.rate.copy(), alone.known
        fit = self._fits.of(user, model, size.declared) if asked.infers else None

        def point(kind: str, n: int) -> Point | None:
            alone = self._cell(user, model, (kind, n, size), asked.spread, fit).rate
            if alone <= 0 or kind in own:
                return Point(alone, stands=True) if alone > 0 else None
            cell = self._estimator.cell(model, kind, n, size.on(n))
            by = _corrected(cell, theirs, kind, n, size.declared, False)
            return Point(alone, window.clipped(math.log(by.rate / cell.rate)))

        for column, n in enumerate(asked.counts):
            points = [one for kind in sorted(own | levels.keys()) if (one := point(kind, n))]
            rate[:, column] *= factors(points, window, rate[:, column])
        if not asked.spread:
            measured = [
                [theirs.measured(kind, n, size.declared) or 0.0 for n in asked.counts]
                for kind in asked.types
            ]
            found = np.array(measured, np.float64).reshape(rate.shape)
            known = known | ((found > 0) & np.isclose(rate, found, rtol=_SAME))
        error = np.where(known & ~alone.known, np.nan, alone.error)
        return _Block(rate, known, error)

    def _cell(
        self,
        user: int | None,
        model: str,
        pair: tuple[str, int, _Batch],
        spread: bool,
        fit: RunFit | None,
    ) -> _Cell:
        """Without what others measured. ``pair``: type, GPUs, batch."""
        kind, gpus, size = pair
        by = self._correction(model, user, size)
        if by and not spread:
            measured = by.measured(kind, gpus, size.declared)
            if measured is not None:
                return _Cell(measured, True, by.error(kind, gpus, size.declared))
            if fit is not None:
                inferred = fit.at(kind, gpus)
                return _Cell(inferred.rate, False, inferred.sd)
        cell = self._estimator.cell(model, kind, gpus, size.on(gpus), spread)
        found = _corrected(cell, by, kind, gpus, size.declared, spread)
        return _Cell(found.rate, found.known)

    def _batch(self, model: str, user: int | None, declared: int | None) -> _Batch:
        """Without a declared one: what most of the user's own measured time had. A batch that
        others report, which may be any number, is not taken for the user's."""
        if declared is not None or user in (None, _OTHERS):
            return _Batch(declared)
        seconds: dict[float, float] = {}
        for found in self.store.of(model):
            if found.uid == user:
                size = found.batch / found.gpus
                seconds[size] = seconds.get(size, 0.0) + found.weight_s
        return _Batch(None, max(seconds, key=lambda size: seconds[size], default=0.0))

    def _user(self, model: str, uid: int | None) -> int | None:
        """The user where he measured this model himself, else :data:`_OTHERS`; None for nobody."""
        if uid is None:
            return None
        users = self._users.get(model)
        if users is None:
            users = frozenset(found.uid for found in self.store.of(model))
            self._users.put(model, users)
        return uid if uid in users else _OTHERS

    def _correction(self, model: str, user: int | None, size: _Batch) -> Correction:
        """By one user's measurements, by those of all where ``user`` is None. Where no batch is
        declared, whatever was measured is set against the batch that is expected of other types,
        so that a table which errs in that batch errs on both sides."""
        return self._against_expected(model, user, size) if user != _OTHERS else _NOTHING

    def _theirs(self, model: str, user: int | None, size: _Batch) -> Correction:
        """By the measurements of all users, as far as one who has none believes them."""
        return self._against_expected(model, _OTHERS, size) if user is not None else _NOTHING

    def _against_expected(self, model: str, user: int | None, size: _Batch) -> Correction:
        size = size if size.declared is None else _EXACT
        place = (model, user, size)
        correction = self._corrections.get(place)
        if correction is None:
            everybody = user is None or user == _OTHERS
            rows = [found for found in self.store.of(model) if everybody or found.uid == user]
            careful = user == _OTHERS and self._estimator.anchored(model)
            correction = Correction(
                rows, self._expected(place), OTHERS_MOST if careful else math.inf
            )
            self._corrections.put(place, correction)
        return correction

    def _expected(self, place: _Corrected) -> Expected:
        model, _, size = place

        def of(kind: str, gpus: int, batch: int | None) -> float:
            asked = _Batch(batch) if size is _EXACT else size
            return self._estimator.cell(model, kind, gpus, asked.on(gpus)).rate

        return of


def _corrected(
    cell: ExpectedRate, by: Correction, kind: str, gpus: int, batch: int | None, spread: bool
) -> ExpectedRate:
    if not by:
        return cell
    measured = None if spread else by.measured(kind, gpus, batch)
    if measured is not None:
        return ExpectedRate(measured, True, "")
    return ExpectedRate(cell.rate * by.factor(kind, gpus, batch), cell.known, "")


def open_rates(config: Config, connection: sqlite3.Connection | None = None) -> Rates:
    """Rates for a site: its tables over the shipped one, its GPU types, its measurements.

    Raises UsageError when one of the site's tables cannot be read.
    """
    table = shipped()
    for path in config.profiles.tables:
        table = load(path).over(table)
    estimator = Estimator(
        table,
        tflops={name: gpu.tflops for name, gpu in config.gpu_types.items()},
        profile={name: gpu.profile for name, gpu in config.gpu_types.items()},
    )
    cpus = CpuTable((), "")
    for path in config.profiles.cpu_tables:
        cpus = load_cpus(path).over(cpus)
    return Rates(
        estimator=estimator,
        store=MeasuredStore(connection),
        cpus=cpus,
        tiers=TierRates(connection),
    )
