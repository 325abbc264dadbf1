"""Rates that a policy corrects by what jobs report, as the controller does: of one model a user's
own measurements count most, and those of others correct what the user has not measured."""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, JobArrays
from slurm_hadar.profiles.estimate import Estimator, ExpectedRate
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.profiles.table import shipped
from slurm_hadar.simulator.job_owners import owners
from slurm_hadar.simulator.queue.setting import SimulationSetting
from slurm_hadar.simulator.workload import Workload


class _AsExpected(Estimator):
    """A table that says 1 of everything: what is measured against it are factors."""

    def cell(
        self, model: str, gpu_type: str, gpus: int, batch: int | None, spread: bool = False
    ) -> ExpectedRate:
        return ExpectedRate(1.0, True, "")

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
        owner = owners(work, seed).users
        users = {name: at for at, name in enumerate(dict.fromkeys(owner))}
        names = zip(work.ids, work.models, owner, strict=True)
        self._keys: list[tuple[int | None, str, int | None]] = [
            (users[user], model or id_, None) for id_, model, user in names
        ]
        self._types, self._counts = work.types, work.counts
        self._column = np.searchsorted(np.asarray(work.counts), work.request)
        able: BoolArray = (expected > 0) & (reports > 0)
        self._ratio: FloatArray = np.divide(
            work.rate, expected, out=np.zeros_like(expected), where=able
        )
        self._until: FloatArray = np.zeros(len(work.ids))
        self._rates = Rates(estimator=_AsExpected(shipped()))

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
                    float(self._ratio[job, kind, column]),
                    seconds,
                    uid=uid or 0,
                    run=f"{job}.{since}",
                )
            )

    def factors(self, jobs: IntArray) -> FloatArray:
        """(J', R, C) by which the expected rates of these jobs are to be multiplied."""
        keys = [self._keys[job] for job in jobs.tolist()]
        return self._rates.rates_for(keys, self._types, self._counts)[0]

    def corrected(self, shown: JobArrays, jobs: IntArray) -> JobArrays:
        """``shown``, which is of these jobs, with what is reported."""
        return replace(shown, rate=shown.rate * self.factors(jobs))

    def own_factors(self, jobs: IntArray) -> FloatArray:
        """The same without what other users reported: what may exclude a job from a type."""
        keys = [self._keys[job] for job in jobs.tolist()]
        return self._rates.own_rates_for(keys, self._types, self._counts)[0]
