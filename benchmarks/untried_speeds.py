"""How far off the speeds of untried GPUs are: inferred by the step-time model, or estimated.

``python -m benchmarks.untried_speeds [--jobs 3000]``

The truth is the shipped table (Gavel's measurements). Part of it is hidden, a user measures some
places with noise of 3%, and the speeds of the other places are asked for twice: as the controller
gives them, and as it estimates them without a fit, by the table or ``gpus**0.8`` times a correction
(:meth:`Rates.own_rates_for`). Three cases of what is hidden, each with one global batch on all
numbers of GPUs, and the first one with the same batch on each GPU as well, where no job declares a
batch:

- the model: no table knows it;
- the type: the table has the model on other types only;
- the counts: the table has one GPU of each type only.

``fit``: by the fit even where the controller keeps the estimate, which shows why it does. Printed
per case: the median and the 90th percentile of the error of the logarithm; ``in sd``: the part of
the fit's errors that are within the standard deviation that it says. Last the seconds that speeds
of so many jobs take, see :func:`seconds`.
"""

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.profiles.estimate import Estimator
from slurm_hadar.profiles.fitted_rates import RunFits
from slurm_hadar.profiles.measured import MeasuredStore, RateSample
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.profiles.table import Table, model_key, shipped

TYPES, COUNTS = ("k80", "p100", "v100"), (1, 2, 4, 8)
NOISE, SECONDS, USER = 0.03, 600.0, 1
RUNS = {
    "1 GPU": ((0, 1),),
    "1, 2": ((0, 1), (0, 2)),
    "1, 2, 4": ((0, 1), (0, 2), (0, 4)),
    "1, 2 and 1 of another type": ((0, 1), (0, 2), (1, 1)),
}
"""Where a user measured: the number of the type among :data:`TYPES` in some order, GPUs."""


class _Always(Estimator):
    """Of which nothing counts as known, so that the fit is asked for models of a table too."""

    def anchored(self, model: str) -> bool:
        return False


@dataclass(frozen=True)
class Hidden:
    """What is hidden, and whether the batch on each GPU is the same (the global one otherwise)."""

    what: str
    weak: bool = False

    def table(self, model: str, kind: str) -> Table:
        """The table without it."""

        def hides(row: Sequence[object]) -> bool:
            if self.what == "counts":
                return row[2] != 1
            same = model_key(str(row[0])) == model
            return same and (self.what == "model" or row[1] == kind)

        return Table([row for row in shipped().rows if not hides(row)], "part of Gavel")


@dataclass(frozen=True)
class Error:
    """Errors of the logarithm at one place: of what the controller says, of the estimate and of the
    fit, and the fit's standard deviation. ``place``: whether a run was on its type."""

    place: str
    now: float
    estimate: float
    fit: float
    sd: float


def truth(model: str, kind: str, gpus: int, each: float) -> float:
    """Samples/s with a batch on each GPU; 0 where that was not measured, or cannot run."""
    found = shipped().curves(model)[kind].at(gpus, each * gpus)
    return found.rate if found.within else 0.0


def errors(
    hidden: Hidden, runs: Sequence[tuple[int, int]], rng: np.random.Generator
) -> list[Error]:
    """Of all models of the table with several counts, their batches, and orders of the types."""
    found = []
    for model, batch, order in _cases():
        used = {place for place, _ in runs}
        if len(used) == 1 and order[1] > order[2]:
            continue
        each = {n: float(batch) if hidden.weak else batch / n for n in COUNTS}
        real = {(r, n): truth(model, kind, n, each[n])
                for r, kind in enumerate(TYPES) for n in COUNTS}  # fmt: skip
        seen = [(order[place], n) for place, n in runs]
        if any(not real[place] for place in seen):
            continue
        table = hidden.table(model, TYPES[order[0]])
        rates = Rates(table)
        for r, n in seen:
            rate = real[r, n] * math.exp(rng.normal(0.0, NOISE))
            size = round(each[n] * n)
            rates.record(RateSample(model, TYPES[r], n, size, rate, SECONDS, uid=USER))
        found += _asked(rates, table, (model, batch), real, seen, hidden)
    return found


def _cases() -> Iterator[tuple[str, int, tuple[int, ...]]]:
    for model in dict.fromkeys(model_key(str(row[0])) for row in shipped().rows):
        curve = shipped().curves(model)["v100"]
        if len({gpus for gpus, _ in curve.cells}) > 1:
            for batch in sorted({batch for _, batch in curve.cells}):
                for order in itertools.permutations(range(len(TYPES))):
                    yield model, batch, order


def _asked(
    rates: Rates,
    table: Table,
    job: tuple[str, int],
    real: dict[tuple[int, int], float],
    seen: Sequence[tuple[int, int]],
    hidden: Hidden,
) -> list[Error]:
    model, batch = job
    asked = [(USER, model, None if hidden.weak else batch)]
    now = rates.rates_for(asked, TYPES, COUNTS)[0][0]
    estimate, known, _ = (one[0] for one in rates.own_rates_for(asked, TYPES, COUNTS))
    fit = _fit(table, rates.store, job, hidden.weak)
    found = []
    for (r, n), rate in real.items():
        column = COUNTS.index(n)
        if not rate or known[r, column] or not estimate[r, column]:
            continue
        step, sd = fit[r, n]
        place = "its type" if any(kind == r for kind, _ in seen) else "other types"
        off = [math.log(value / rate) for value in (now[r, column], estimate[r, column], step)]
        found.append(Error(place, off[0], off[1], off[2], sd))
    return found


def _fit(
    table: Table, store: MeasuredStore, job: tuple[str, int], weak: bool
) -> dict[tuple[int, int], tuple[float, float]]:
    """By type and GPUs samples/s and their error, from the same measurements.

    With the same batch on each GPU there is a fit for each number of GPUs, to that many times the
    batch.
    """
    (model, batch), same = job, MeasuredStore()
    for row in store.of(model):
        size = batch * row.gpus if weak else row.batch
        same.record(RateSample(model, row.gpu_type, row.gpus, size, row.samples_per_s,
                               row.seconds, uid=USER))  # fmt: skip
    fits = RunFits(_Always(table), same, 100)
    found = {}
    for n in COUNTS:
        fit = fits.of(USER, model, batch * n if weak else batch)
        assert fit is not None
        for r, kind in enumerate(TYPES):
            at = fit.at(kind, n)
            found[r, n] = (at.rate, at.sd)
    return found


def seconds(jobs: int) -> list[float]:
    """Processor's seconds for the speeds of that many jobs, each of a model of its own that was
    measured on one or two numbers of GPUs: at first, when all were measured anew, when none was,
    and, without any fit, of the estimates at first."""
    rng, found = np.random.default_rng(0), []
    rates, estimates = Rates(), Rates()
    asked = [(job % 50, f"own{job}", 64) for job in range(jobs)]

    def measured(gpus: int, *these: Rates) -> None:
        for uid, model, batch in asked:
            rate = float(rng.uniform(20.0, 200.0))
            for one in these:
                one.store.record(RateSample(model, "v100", gpus, batch, rate, 60.0, uid=uid))

    def timed(ask: Callable[[], object]) -> None:
        began = time.process_time()
        ask()
        found.append(time.process_time() - began)

    measured(1, rates, estimates)
    timed(lambda: rates.rates_for(asked, TYPES, COUNTS))
    measured(2, rates)
    rates.read_again()
    timed(lambda: rates.rates_for(asked, TYPES, COUNTS))
    timed(lambda: rates.rates_for(asked, TYPES, COUNTS))
    timed(lambda: estimates.own_rates_for(asked, TYPES, COUNTS))
    return found


def main() -> None:
    """Print the table, and the seconds."""
    parser = argparse.ArgumentParser(description="Speeds of untried GPUs.")
    parser.add_argument("--jobs", type=int, default=3000)
    jobs = parser.parse_args().jobs
    rng = np.random.default_rng(0)
    columns = (
        "hidden | batch | measured on | asked of | places | controller | estimate | fit | in sd"
    )
    print(f"| {columns} |")
    print("|---" * 9 + "|")
    cases = [Hidden("model"), Hidden("model", weak=True), Hidden("type"), Hidden("counts")]
    for hidden, (name, runs) in itertools.product(cases, RUNS.items()):
        if hidden.what != "model" and len({place for place, _ in runs}) > 1:
            continue
        all_ = errors(hidden, runs, rng)
        for place in ("its type", "other types"):
            rows = [error for error in all_ if error.place == place]
            if not rows:
                continue
            off = np.abs([[row.now, row.estimate, row.fit] for row in rows])
            cells = [
                f"{median:.2f}, {most:.2f}"
                for median, most in zip(np.median(off, axis=0), np.quantile(off, 0.9, axis=0),
                                        strict=True)
            ]  # fmt: skip
            within = np.mean([abs(row.fit) <= row.sd for row in rows])
            batch = "per GPU" if hidden.weak else "global"
            print(f"| {hidden.what} | {batch} | {name} | {place} | {len(rows)} | "
                  + " | ".join(cells) + f" | {within:.0%} |", flush=True)  # fmt: skip
    parts = [f"{part:.2f}" for part in seconds(jobs)]
    print(f"{jobs:,} jobs, processor's s: "
          + "first {}, all anew {}, unchanged {}; estimates alone {}".format(*parts))  # fmt: skip


if __name__ == "__main__":
    main()
