"""Samples/s of a job on each GPU type and number of GPUs: measured, from a table, inferred or
estimated."""

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
from slurm_hadar.profiles.measured_correction import Correction
from slurm_hadar.profiles.rate_origin import Place, RateOrigin
from slurm_hadar.profiles.recent_cache import Recent
from slurm_hadar.profiles.table import Table, load, model_key, shipped
from slurm_hadar.profiles.tiers import TierRates
from slurm_hadar.profiles.user_corrections import OTHERS, ExpectedBatch, UserCorrections

_MOST_CACHED = 10_000
_SAME = 0.01
"""Relative difference up to which a rate counts as the one that other users measured."""


@dataclass(frozen=True, slots=True)
class _Query:
    """The rates that are requested. ``spread``: on several nodes; ``alone``: without measurements
    of other users."""

    types: tuple[str, ...]
    counts: tuple[int, ...]
    spread: bool = False
    alone: bool = False

    @property
    def infers(self) -> bool:
        """Whether an unmeasured rate may be inferred from the owner's runs."""
        return not (self.spread or self.alone)


@dataclass(frozen=True, slots=True)
class _Block:
    """All (R, C): samples/s; whether measured or from a table; standard deviation of the logarithm
    if the user's own runs measured the rate or it is inferred from them, else nan."""

    rate: FloatArray
    known: BoolArray
    error: FloatArray


@dataclass(frozen=True, slots=True)
class _Cell:
    """One entry of a :class:`_Block`."""

    rate: float
    known: bool
    sd: float = math.nan


_Place = tuple[int | None, str, int | None, _Query]
"""User, model, declared batch, and what is asked for."""


class Rates:
    """The rates of a table, corrected by measurements.

    A user's own measurements count in full. Those of other users under the same model name correct,
    within bounds, what the user has not measured, and reverse no order of two types. No other
    assumption is made: a type need not be faster than another, and scaling need not be monotone.
    """

    def __init__(
        self,
        table: Table | None = None,
        estimator: Estimator | None = None,
        store: MeasuredStore | None = None,
        cpus: CpuTable | None = None,
        tiers: TierRates | None = None,
    ) -> None:
        """``table``: default: the shipped one. ``estimator``: with the site's own types. ``cpus``:
        the site's measurements by CPUs and memory."""
        self.cpus = cpus or CpuTable((), "")
        self.tiers = tiers or TierRates()
        """The slowdown of models on several nodes or racks."""
        self._estimator = estimator or Estimator(table or shipped())
        self.store = store or MeasuredStore()
        self._blocks: Recent[_Place, _Block] = Recent(_MOST_CACHED)
        self._corrections = UserCorrections(self._estimator, self.store, _MOST_CACHED)
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
        """(R, C) samples/s of the whole job with a global ``batch`` on ``counts`` GPUs of each
        type, and (R, C) whether that is measured or from a table. 0 only where a table says that
        the job cannot run. ``uid``: owner of the job; ``spread``: its GPUs are on several nodes."""
        block = self._block(uid, model, batch, _Query(tuple(types), tuple(counts), spread))
        return block.rate.copy(), block.known.copy()

    def rates_for(
        self,
        jobs: Sequence[tuple[int | None, str, int | None]],
        types: Sequence[str],
        counts: Sequence[int],
        spread: bool = False,
    ) -> tuple[FloatArray, BoolArray]:
        """:meth:`rates` for many (uid, model, batch): (J, R, C) samples/s and (J, R, C) known."""
        found = self._of_all(jobs, _Query(tuple(types), tuple(counts), spread))
        return found.rate, found.known

    def own_rates_for(
        self,
        jobs: Sequence[tuple[int | None, str, int | None]],
        types: Sequence[str],
        counts: Sequence[int],
    ) -> tuple[FloatArray, BoolArray, BoolArray]:
        """:meth:`rates_for` without reports of other users, and estimated instead of inferred where
        unmeasured: the rates that may exclude a job from a type.

        Also (J,) whether they are samples/s; otherwise only their ratios are meaningful.
        """
        found = self._of_all(jobs, _Query(tuple(types), tuple(counts), alone=True))
        timed = [
            self._estimator.anchored(model)
            or self._corrections.measured_by(model_key(model), uid) == uid
            for uid, model, _ in jobs
        ]
        return found.rate, found.known, np.array(timed, dtype=bool)

    def errors_for(
        self,
        jobs: Sequence[tuple[int | None, str, int | None]],
        types: Sequence[str],
        counts: Sequence[int],
    ) -> FloatArray:
        """(J, R, C) standard deviation of the logarithm of :meth:`rates_for` where the owner's own
        runs measured the rate or it is inferred from them; nan: unknown."""
        return self._of_all(jobs, _Query(tuple(types), tuple(counts))).error

    def table_rates_for(
        self,
        jobs: Sequence[tuple[str, int | None]],
        types: Sequence[str],
        counts: Sequence[int],
    ) -> tuple[FloatArray, BoolArray]:
        """:meth:`rates_for` for many (model, batch), without any measurement."""
        query = _Query(tuple(types), tuple(counts), alone=True)
        found = self._of_all([(OTHERS, model, batch) for model, batch in jobs], query)
        return found.rate, found.known

    def _of_all(self, jobs: Sequence[tuple[int | None, str, int | None]], query: _Query) -> _Block:
        """The blocks of these jobs, (J, R, C)."""
        places: dict[tuple[int | None, str, int | None], int] = {}
        rows = np.array([places.setdefault(job, len(places)) for job in jobs], dtype=np.intp)
        if not places:
            shape = (0, len(query.types), len(query.counts))
            return _Block(np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(shape))
        if query.infers:
            self._fit_all(places, query)
        blocks = [self._block(*job, query) for job in places]
        return _Block(
            np.stack([block.rate for block in blocks])[rows],
            np.stack([block.known for block in blocks])[rows],
            np.stack([block.error for block in blocks])[rows],
        )

    def _fit_all(self, jobs: Iterable[tuple[int | None, str, int | None]], query: _Query) -> None:
        """Fit all runs without a cached block at once."""
        wanted = []
        for uid, model, batch in jobs:
            key = model_key(model)
            user = self._corrections.measured_by(key, uid)
            if self._blocks.get((user, key, batch, query)) is None:
                wanted.append((user, key, batch))
        self._fits.prepare(wanted, query.counts)

    def table_rates(self, model: str, gpu_type: str) -> dict[int, float]:
        """See :meth:`Estimator.table_rates`."""
        return self._estimator.table_rates(model, gpu_type)

    def anchored(self, model: str) -> bool:
        """Whether the rates of a model are samples/s; otherwise only their ratios are meaningful.

        False for a model that is in no table and unmeasured: no run time can be computed.
        """
        return self._estimator.anchored(model) or next(self.store.of(model), None) is not None

    def record(self, sample: RateSample) -> bool:
        """Add a measurement, see :meth:`MeasuredStore.record`; False if it is invalid."""
        taken = self.store.record(sample)
        if taken:
            key = model_key(sample.model)
            self._corrections.drop(key)
            self._blocks.drop(lambda place: place[1] == key)
        return taken

    def read_again(self) -> None:
        """Read what another process or thread has recorded in the same file."""
        self.store.read_again()
        self._corrections.clear()
        self._blocks.drop(lambda _: True)

    def forget_unused(self) -> None:
        """Drop the cached results that were not used since the last call, for long-running
        processes: a job without a declared model is known by its own name, so the number of models
        has no bound."""
        for cache in (self._blocks, self._corrections, self._fits):
            cache.turn()

    def source(
        self,
        model: str,
        gpu_type: str,
        gpus: int,
        batch: int | None,
        uid: int | None = None,
        spread: bool = False,
    ) -> str:
        """The origin of a rate as text."""
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
        """The origin of the rate on a type and number of GPUs. ``job``: id of the job whose own
        measurements are named."""
        key = model_key(model)
        gpu_type, gpus = pair
        user = self._corrections.measured_by(key, uid)
        size = self._corrections.batch(key, user, batch)
        cell = self._estimator.cell(key, gpu_type, gpus, size.on(gpus), spread)
        own = self._corrections.own(key, user, size)
        others = self._corrections.others(key, user, size)
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
                others,
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
        """Whether the rate of a pair is the one that other users measured, not one within
        bounds."""
        kind, gpus = pair
        used = self._used(uid, model, batch, pair)
        rows = (r for r in self.store.of(model) if (r.gpu_type, r.gpus) == pair)
        whole = Correction(rows, lambda *_: 0.0).measured(kind, gpus, batch)
        return whole is not None and math.isclose(used, whole, rel_tol=_SAME)

    def _used(self, uid: int | None, model: str, batch: int | None, pair: tuple[str, int]) -> float:
        kind, gpus = pair
        return float(self._block(uid, model, batch, _Query((kind,), (gpus,))).rate[0, 0])

    def _block(
        self,
        uid: int | None,
        model: str,
        batch: int | None,
        query: _Query,
    ) -> _Block:
        key = model_key(model)
        user = self._corrections.measured_by(key, uid)
        place = (user, key, batch, query)
        block = self._blocks.get(place)
        if block is None:
            size = self._corrections.batch(key, user, batch)
            block = self._without_others(user, key, size, query)
            if not query.alone and self._corrections.others(key, user, size):
                block = self._with_others(user, key, size, query, block)
            self._blocks.put(place, block)
        return block

    def _without_others(
        self, user: int | None, model: str, size: ExpectedBatch, query: _Query
    ) -> _Block:
        fit = self._fits.of(user, model, size.declared) if query.infers else None
        cells = [
            self._cell(user, model, (kind, n, size), query.spread, fit)
            for kind in query.types
            for n in query.counts
        ]
        shape = (len(query.types), len(query.counts))
        return _Block(
            np.array([cell.rate for cell in cells], np.float64).reshape(shape),
            np.array([cell.known for cell in cells], np.bool_).reshape(shape),
            np.array([cell.sd for cell in cells], np.float64).reshape(shape),
        )

    def _with_others(
        self,
        user: int | None,
        model: str,
        size: ExpectedBatch,
        query: _Query,
        alone: _Block,
    ) -> _Block:
        """``alone`` shifted by the measurements of other users. What was measured on one node
        shifts rates on several nodes too."""
        others = self._corrections.others(model, user, size)
        own = self._corrections.own(model, user, size).types()
        levels = others.levels(size.declared)
        seen = others.types(but=user)
        levels = {kind: level for kind, level in levels.items() if kind in seen}
        if not levels:
            return alone
        window, rate, known = Window.of(levels, own), alone.rate.copy(), alone.known
        fit = self._fits.of(user, model, size.declared) if query.infers else None

        def point(kind: str, n: int) -> Point | None:
            alone = self._cell(user, model, (kind, n, size), query.spread, fit).rate
            if alone <= 0 or kind in own:
                return Point(alone, stands=True) if alone > 0 else None
            cell = self._estimator.cell(model, kind, n, size.on(n))
            by = _corrected(cell, others, kind, n, size.declared, False)
            return Point(alone, window.clipped(math.log(by.rate / cell.rate)))

        for column, n in enumerate(query.counts):
            points = [one for kind in sorted(own | levels.keys()) if (one := point(kind, n))]
            rate[:, column] *= factors(points, window, rate[:, column])
        if not query.spread:
            measured = [
                [others.measured(kind, n, size.declared) or 0.0 for n in query.counts]
                for kind in query.types
            ]
            found = np.array(measured, np.float64).reshape(rate.shape)
            known = known | ((found > 0) & np.isclose(rate, found, rtol=_SAME))
        error = np.where(known & ~alone.known, np.nan, alone.error)
        return _Block(rate, known, error)

    def _cell(
        self,
        user: int | None,
        model: str,
        pair: tuple[str, int, ExpectedBatch],
        spread: bool,
        fit: RunFit | None,
    ) -> _Cell:
        """Without measurements of other users. ``pair``: type, GPUs, batch."""
        kind, gpus, size = pair
        by = self._corrections.own(model, user, size)
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
    """The rates of a site: its tables over the shipped one, its GPU types, its measurements.

    Raises UsageError if one of the site's tables cannot be read.
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
