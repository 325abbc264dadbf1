"""Samples/s of a job on several GPU types and numbers of GPUs at once: by the owner's own runs,
those of others within bounds, a table or an estimate."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray
from slurm_hadar.profiles.estimate import Estimator, ExpectedRate
from slurm_hadar.profiles.fitted_rates import RunFit, RunFits
from slurm_hadar.profiles.measured import MeasuredStore
from slurm_hadar.profiles.measured_correction import Correction, Point, Window, factors
from slurm_hadar.profiles.recent_cache import Recent
from slurm_hadar.profiles.table import model_key
from slurm_hadar.profiles.user_corrections import ExpectedBatch, UserCorrections

SAME = 0.01
"""Relative difference up to which a rate counts as the one that other users measured."""
_MOST_CACHED = 10_000

RatedJob = tuple[int | None, str, int | None]
"""Owner's uid (None: no user), model and declared global batch of a job."""


@dataclass(frozen=True, slots=True)
class RateQuery:
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
class RateBlock:
    """All (R, C): samples/s; whether measured or from a table; standard deviation of the logarithm
    if the user's own runs measured the rate or it is inferred from them, else nan."""

    rate: FloatArray
    known: BoolArray
    error: FloatArray


@dataclass(frozen=True, slots=True)
class _Cell:
    """One entry of a :class:`RateBlock`."""

    rate: float
    known: bool
    sd: float = math.nan


@dataclass(frozen=True, slots=True)
class Subject:
    """By what a job's rates are found. ``user``: see :class:`UserCorrections`; ``model``: its
    key."""

    user: int | None
    model: str
    size: ExpectedBatch


_Place = tuple[int | None, str, int | None, RateQuery]
"""User, model, declared batch, and what is asked for."""


class RateBlocks:
    """Computes blocks, and caches them until a measurement of their model comes."""

    def __init__(self, estimator: Estimator, store: MeasuredStore) -> None:
        self._estimator = estimator
        self._blocks: Recent[_Place, RateBlock] = Recent(_MOST_CACHED)
        self.corrections = UserCorrections(estimator, store, _MOST_CACHED)
        self.fits = RunFits(estimator, store, _MOST_CACHED)

    def drop(self, model: str) -> None:
        """Discard what depends on the measurements of a model, by its key."""
        self.corrections.drop(model)
        self._blocks.drop(lambda place: place[1] == model)

    def clear(self) -> None:
        """Discard all."""
        self.corrections.clear()
        self._blocks.drop(lambda _: True)

    def turn(self) -> None:
        """Drop what was not used since the last call."""
        for cache in (self._blocks, self.corrections, self.fits):
            cache.turn()

    def subject(self, job: RatedJob) -> Subject:
        """By what the rates of a job are found."""
        uid, model, batch = job
        key = model_key(model)
        user = self.corrections.measured_by(key, uid)
        return Subject(user, key, self.corrections.batch(key, user, batch))

    def of(self, job: RatedJob, query: RateQuery) -> RateBlock:
        """The block of one job."""
        place = self._place(job, query)
        block = self._blocks.get(place)
        if block is None:
            subject = self.subject(job)
            block = self._without_others(subject, query)
            if not query.alone and self._others(subject):
                block = self._with_others(subject, query, block)
            self._blocks.put(place, block)
        return block

    def _place(self, job: RatedJob, query: RateQuery) -> _Place:
        uid, model, batch = job
        key = model_key(model)
        return self.corrections.measured_by(key, uid), key, batch, query

    def of_all(self, jobs: Sequence[RatedJob], query: RateQuery) -> RateBlock:
        """The blocks of these jobs, (J, R, C)."""
        places: dict[RatedJob, int] = {}
        rows = np.array([places.setdefault(job, len(places)) for job in jobs], dtype=np.intp)
        if not places:
            shape = (0, len(query.types), len(query.counts))
            return RateBlock(np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(shape))
        if query.infers:
            self._fit_all(places, query)
        blocks = [self.of(job, query) for job in places]
        return RateBlock(
            np.stack([block.rate for block in blocks])[rows],
            np.stack([block.known for block in blocks])[rows],
            np.stack([block.error for block in blocks])[rows],
        )

    def _fit_all(self, jobs: Iterable[RatedJob], query: RateQuery) -> None:
        """Fit all runs without a cached block at once."""
        places = [self._place(job, query) for job in jobs]
        wanted = [place[:3] for place in places if self._blocks.get(place) is None]
        self.fits.prepare(wanted, query.counts)

    def _without_others(self, subject: Subject, query: RateQuery) -> RateBlock:
        fit = self._fit(subject, query)
        cells = [
            self._cell(subject, (kind, n), query.spread, fit)
            for kind in query.types
            for n in query.counts
        ]
        shape = (len(query.types), len(query.counts))
        return RateBlock(
            np.array([cell.rate for cell in cells], np.float64).reshape(shape),
            np.array([cell.known for cell in cells], np.bool_).reshape(shape),
            np.array([cell.sd for cell in cells], np.float64).reshape(shape),
        )

    def _with_others(self, subject: Subject, query: RateQuery, alone: RateBlock) -> RateBlock:
        """``alone`` shifted by the measurements of other users. What was measured on one node
        shifts rates on several nodes too."""
        size = subject.size
        others = self._others(subject)
        own = self._own(subject).types()
        levels = others.levels(size.declared)
        seen = others.types(but=subject.user)
        levels = {kind: level for kind, level in levels.items() if kind in seen}
        if not levels:
            return alone
        window, rate, known = Window.of(levels, own), alone.rate.copy(), alone.known
        fit = self._fit(subject, query)

        def point(kind: str, n: int) -> Point | None:
            alone = self._cell(subject, (kind, n), query.spread, fit).rate
            if alone <= 0 or kind in own:
                return Point(alone, stands=True) if alone > 0 else None
            cell = self._estimator.cell(subject.model, kind, n, size.on(n))
            by = _corrected(cell, others, (kind, n, size.declared))
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
            known = known | ((found > 0) & np.isclose(rate, found, rtol=SAME))
        error = np.where(known & ~alone.known, np.nan, alone.error)
        return RateBlock(rate, known, error)

    def _cell(
        self, subject: Subject, pair: tuple[str, int], spread: bool, fit: RunFit | None
    ) -> _Cell:
        """Without measurements of other users. ``pair``: GPU type, GPUs."""
        kind, gpus = pair
        by, batch = self._own(subject), subject.size.declared
        if by and not spread:
            measured = by.measured(kind, gpus, batch)
            if measured is not None:
                return _Cell(measured, True, by.error(kind, gpus, batch))
            if fit is not None:
                inferred = fit.at(kind, gpus)
                return _Cell(inferred.rate, False, inferred.sd)
        cell = self._estimator.cell(subject.model, kind, gpus, subject.size.on(gpus), spread)
        found = _corrected(cell, by, (kind, gpus, batch), spread)
        return _Cell(found.rate, found.known)

    def _fit(self, subject: Subject, query: RateQuery) -> RunFit | None:
        if not query.infers:
            return None
        return self.fits.of(subject.user, subject.model, subject.size.declared)

    def _own(self, subject: Subject) -> Correction:
        return self.corrections.own(subject.model, subject.user, subject.size)

    def _others(self, subject: Subject) -> Correction:
        return self.corrections.others(subject.model, subject.user, subject.size)


def _corrected(
    cell: ExpectedRate, by: Correction, at: tuple[str, int, int | None], spread: bool = False
) -> ExpectedRate:
    """``at``: GPU type, GPUs, declared batch; ``spread``: on several nodes, which no measurement
    on one is."""
    if not by:
        return cell
    measured = None if spread else by.measured(*at)
    if measured is not None:
        return ExpectedRate(measured, True, "")
    return ExpectedRate(cell.rate * by.factor(*at), cell.known, "")
