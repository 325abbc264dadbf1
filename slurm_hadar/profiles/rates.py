"""Samples/s of a job on each GPU type and number of GPUs: measured, from a table, inferred or
estimated."""

import math
import sqlite3
from collections.abc import Sequence

import numpy as np

from slurm_hadar.config import Config
from slurm_hadar.domain.view import BoolArray, FloatArray
from slurm_hadar.profiles import rate_origin
from slurm_hadar.profiles.cpu_table import CpuTable
from slurm_hadar.profiles.cpu_table import load as load_cpus
from slurm_hadar.profiles.estimate import Estimator
from slurm_hadar.profiles.measured import MeasuredStore, RateSample
from slurm_hadar.profiles.measured_correction import Correction
from slurm_hadar.profiles.network_tiers import TierRates
from slurm_hadar.profiles.rate_blocks import SAME, RateBlocks, RatedJob, RateQuery
from slurm_hadar.profiles.rate_origin import Place, RateOrigin
from slurm_hadar.profiles.table import Table, load, model_key, shipped
from slurm_hadar.profiles.user_corrections import OTHERS


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
        self._blocks = RateBlocks(self._estimator, self.store)

    def rates(
        self, job: RatedJob, types: Sequence[str], counts: Sequence[int], spread: bool = False
    ) -> tuple[FloatArray, BoolArray]:
        """(R, C) samples/s of the whole job on ``counts`` GPUs of each type, and (R, C) whether
        that is measured or from a table. 0 only where a table says that the job cannot run.
        ``spread``: its GPUs are on several nodes."""
        block = self._blocks.of(job, RateQuery(tuple(types), tuple(counts), spread))
        return block.rate.copy(), block.known.copy()

    def rates_for(
        self,
        jobs: Sequence[RatedJob],
        types: Sequence[str],
        counts: Sequence[int],
        spread: bool = False,
    ) -> tuple[FloatArray, BoolArray]:
        """:meth:`rates` for many jobs: (J, R, C) samples/s and (J, R, C) known."""
        found = self._blocks.of_all(jobs, RateQuery(tuple(types), tuple(counts), spread))
        return found.rate, found.known

    def own_rates_for(
        self,
        jobs: Sequence[RatedJob],
        types: Sequence[str],
        counts: Sequence[int],
    ) -> tuple[FloatArray, BoolArray, BoolArray]:
        """:meth:`rates_for` without reports of other users, and estimated instead of inferred where
        unmeasured: the rates that may exclude a job from a type.

        Also (J,) whether they are samples/s; otherwise only their ratios are meaningful.
        """
        found = self._blocks.of_all(jobs, RateQuery(tuple(types), tuple(counts), alone=True))
        timed = [
            self._estimator.anchored(model)
            or self._blocks.corrections.measured_by(model_key(model), uid) == uid
            for uid, model, _ in jobs
        ]
        return found.rate, found.known, np.array(timed, dtype=bool)

    def errors_for(
        self,
        jobs: Sequence[RatedJob],
        types: Sequence[str],
        counts: Sequence[int],
    ) -> FloatArray:
        """(J, R, C) standard deviation of the logarithm of :meth:`rates_for` where the owner's own
        runs measured the rate or it is inferred from them; nan: unknown."""
        return self._blocks.of_all(jobs, RateQuery(tuple(types), tuple(counts))).error

    def table_rates_for(
        self,
        jobs: Sequence[tuple[str, int | None]],
        types: Sequence[str],
        counts: Sequence[int],
    ) -> tuple[FloatArray, BoolArray]:
        """:meth:`rates_for` for many (model, batch), without any measurement."""
        query = RateQuery(tuple(types), tuple(counts), alone=True)
        found = self._blocks.of_all([(OTHERS, model, batch) for model, batch in jobs], query)
        return found.rate, found.known

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
            self._blocks.drop(model_key(sample.model))
        return taken

    def read_again(self) -> None:
        """Read what another process or thread has recorded in the same file."""
        self.store.read_again()
        self._blocks.clear()

    def forget_unused(self) -> None:
        """Drop the cached results that were not used since the last call, for long-running
        processes: a job without a declared model is known by its own name, so the number of models
        has no bound."""
        self._blocks.turn()

    def source(self, job: RatedJob, pair: tuple[str, int], spread: bool = False) -> str:
        """The origin of a rate as text."""
        return self.origin(job, pair, spread=spread).text

    def origin(
        self, job: RatedJob, pair: tuple[str, int], named: str = "", spread: bool = False
    ) -> RateOrigin:
        """The origin of the rate on a type and number of GPUs. ``named``: id of the job whose own
        measurements are named."""
        (gpu_type, gpus), (uid, _, batch) = pair, job
        subject = self._blocks.subject(job)
        user, key, size = subject.user, subject.model, subject.size
        own = self._blocks.corrections.own(key, user, size)
        others = self._blocks.corrections.others(key, user, size)
        fit = (
            None
            if spread or own.measured(*pair, batch)
            else self._blocks.fits.of(user, key, size.declared)
        )
        inferred = fit.at(*pair) if fit else None
        return rate_origin.origin(
            rate_origin.Evidence(
                self._estimator.cell(key, gpu_type, gpus, size.on(gpus), spread),
                own,
                others,
                inferred,
                in_full=lambda: self._counts_in_full(job, pair),
                shifted=lambda: (
                    inferred is not None
                    and not math.isclose(self._used(job, pair), inferred.rate, rel_tol=SAME)
                ),
            ),
            Place(gpu_type, gpus, batch, spread),
            uid,
            named,
        )

    def _counts_in_full(self, job: RatedJob, pair: tuple[str, int]) -> bool:
        """Whether the rate of a pair is the one that other users measured, not one within
        bounds."""
        _, model, batch = job
        rows = (r for r in self.store.of(model) if (r.gpu_type, r.gpus) == pair)
        whole = Correction(rows, lambda *_: 0.0).measured(*pair, batch)
        return whole is not None and math.isclose(self._used(job, pair), whole, rel_tol=SAME)

    def _used(self, job: RatedJob, pair: tuple[str, int]) -> float:
        kind, gpus = pair
        return float(self._blocks.of(job, RateQuery((kind,), (gpus,))).rate[0, 0])


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
