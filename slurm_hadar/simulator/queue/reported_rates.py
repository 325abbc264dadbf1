"""Rates that a policy corrects by what jobs report, as the controller does: of one model a user's
own measurements count most, and those of others correct what the user has not measured."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, JobArrays
from slurm_hadar.profiles.estimate import Estimator, ExpectedRate
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.profiles.table import model_key, shipped
from slurm_hadar.simulator.job_owners import owners
from slurm_hadar.simulator.queue.setting import SimulationSetting
from slurm_hadar.simulator.workload import Workload


class _AsExpected(Estimator):
    """A table of what is expected of the models of a workload. What jobs report is set against it,
    since other users' reports reverse no order of its types."""

    def __init__(self, work: Workload, names: Sequence[str], expected: FloatArray) -> None:
        """``names``: (J,) models; ``expected``: (J, R, C) samples per s."""
        super().__init__(shipped())
        self._at = {kind: at for at, kind in enumerate(work.types)}
        self._column = {count: at for at, count in enumerate(work.counts)}
        most: dict[str, FloatArray] = {}
        for name, rate in zip(names, expected, strict=True):
            key = model_key(name)
            # Of jobs of one model that may use other types, each says its own.
            most[key] = np.maximum(rate, most.get(key, 0.0))
        self._rate: dict[str, FloatArray] = {
            key: np.where(rate > 0, rate / max(float(rate.max()), 1e-300), 1.0)
            for key, rate in most.items()
        }

    def of(self, model: str) -> FloatArray:
        """(R, C) of a model, in parts of the most of them; 1 where nothing is expected."""
        return self._rate[model_key(model)]

    def cell(
        self, model: str, gpu_type: str, gpus: int, batch: int | None, spread: bool = False
    ) -> ExpectedRate:
        rate = self._rate[model][self._at[gpu_type], self._column[gpus]]
        return ExpectedRate(float(rate), True, "")

    def anchored(self, model: str) -> bool:
        return True


class ReportedRates:
    """By which factors the rates of J jobs differ from the expected ones, as far as that was
    reported."""

    def __init__(
        self, work: Workload, expected: FloatArray, reports: FloatArray, seed: int
    ) -> None:
        """``expected``, ``reports``: (J, R, C) samples per s, what is expected and what the jobs
        report; ``seed``: of the owners that the trace does not name. A job without a model is a
        model of its own."""
        models = [model or id_ for id_, model in zip(work.ids, work.models, strict=True)]
        self._table = _AsExpected(work, models, expected)
        owner = owners(work, seed).users
        users = {name: at for at, name in enumerate(dict.fromkeys(owner))}
        self._keys: list[tuple[int | None, str, int | None]] = [
            (users[user], model, None) for model, user in zip(models, owner, strict=True)
        ]
        self._types, self._counts = work.types, work.counts
        self._column = np.searchsorted(np.asarray(work.counts), work.request)
        able: BoolArray = (expected > 0) & (reports > 0)
        self._ratio: FloatArray = np.divide(
            work.rate, expected, out=np.zeros_like(expected), where=able
        )
        self._until: FloatArray = np.zeros(len(work.ids))
        self._rates = Rates(estimator=self._table)

    @classmethod
    def of(cls, setting: SimulationSetting, expected: FloatArray) -> "ReportedRates | None":
        """Of a simulation in which jobs report their rates; None of another one."""
        if setting.reports is None:
            return None
        return cls(setting.workload, expected, setting.reports, setting.drawn.seed)

    def report(self, jobs: IntArray, on: IntArray, begun: FloatArray, now: float) -> None:
        """What (J',) jobs report that run on GPUs ``on`` (J', R) and train since ``begun`` (J',):
        their speed since the last report."""
        for job, row, since in zip(jobs.tolist(), on, begun.tolist(), strict=True):
            kinds = np.flatnonzero(row)
            seconds = now - max(since, float(self._until[job]))
            if len(kinds) != 1 or seconds <= 0:
                continue
            kind, column = int(kinds[0]), int(self._column[job])
            self._until[job] = now
            uid, model, _ = self._keys[job]
            self._rates.record(
                RateSample(
                    model,
                    self._types[kind],
                    self._counts[column],
                    None,
                    float(self._ratio[job, kind, column] * self._table.of(model)[kind, column]),
                    seconds,
                    uid=uid or 0,
                    run=f"{job}.{since}",
                )
            )

    def factors(self, jobs: IntArray) -> FloatArray:
        """(J', R, C) by which the expected rates of these jobs are to be multiplied."""
        keys = [self._keys[job] for job in jobs.tolist()]
        found = self._rates.rates_for(keys, self._types, self._counts)[0]
        return self._over_expected(keys, found)

    def corrected(self, shown: JobArrays, jobs: IntArray) -> JobArrays:
        """``shown``, which is of these jobs, with what is reported."""
        return replace(shown, rate=shown.rate * self.factors(jobs))

    def own_factors(self, jobs: IntArray) -> FloatArray:
        """The same without what other users reported: what may exclude a job from a type."""
        keys = [self._keys[job] for job in jobs.tolist()]
        found = self._rates.own_rates_for(keys, self._types, self._counts)[0]
        return self._over_expected(keys, found)

    def _over_expected(
        self, keys: Sequence[tuple[int | None, str, int | None]], found: FloatArray
    ) -> FloatArray:
        if not keys:
            return found
        factors: FloatArray = found / np.stack([self._table.of(model) for _, model, _ in keys])
        return factors
