"""How long fits of the step-time model take for many jobs, and how far off they are.

``python -m benchmarks.step_time [--jobs 10000]``

True parameters are drawn around values other than the priors'; each job was measured at one, three
or eight places of one GPU type, with noise of 3%. Printed: seconds of a first fit, of one that
starts from the last parameters after all jobs reported again, and of the predictions for 12 places;
then per place the median error of the predicted time, and the root mean square of the errors in
units of the predicted standard deviation (1 would be exact).
"""

import argparse
import time

import numpy as np

from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles.step_time import (
    MODEL_SD,
    StepCells,
    StepTimeFit,
    StepTimes,
    fit_step_times,
)

NOISE, TYPES = 0.03, 3
PLACES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (16, 2), (1, 1), (4, 2))
LOCAL = (1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 2.0)
ASKED = ((0, 1, 1), (0, 4, 1), (0, 8, 1), (0, 32, 4), (1, 1, 1), (1, 8, 1), (2, 16, 2))
"""Type, GPUs, nodes."""


def truth(jobs: int, rng: np.random.Generator) -> tuple[StepTimeFit, FloatArray]:
    """True models, and (J, R) seconds that are expected of a step on one GPU."""
    expected = rng.uniform(0.05, 2.0, (jobs, 1)) * rng.uniform(0.5, 4.0, (jobs, TYPES))
    off = rng.normal(0.0, 0.5, (jobs, 1)) + rng.normal(0.0, 0.2, (jobs, TYPES))
    shared = np.array([-1.0, -2.5, -3.5, -2.0, -3.5, -2.0]) + rng.normal(0.0, 0.7, (jobs, 6))
    parameters = np.concatenate([np.log(expected) + off, shared], axis=1)
    size = parameters.shape[1]
    exact = StepTimeFit(
        parameters,
        np.zeros((jobs, size, size)),
        np.zeros((jobs, size)),
        parameters[:, :TYPES].mean(axis=1),
    )
    return exact, expected


def measured(exact: StepTimeFit, places: int, rng: np.random.Generator) -> StepTimes:
    """What the jobs reported of their first places, on the first type."""
    jobs = len(exact.scale)
    gpus, nodes = (np.tile(np.array(row)[:places], (jobs, 1)) for row in zip(*PLACES, strict=True))
    local = np.tile(np.array(LOCAL)[:places], (jobs, 1))
    cells = StepCells(np.zeros_like(gpus), gpus, nodes, local)
    seconds = exact.predict(cells)[0] * np.exp(rng.normal(0.0, NOISE, gpus.shape))
    return StepTimes(cells, seconds, np.full(gpus.shape, NOISE))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Fits of the step-time model.")
    parser.add_argument("--jobs", type=int, default=10_000)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    exact, expected = truth(given.jobs, rng)
    kind, gpus, nodes = (np.array([row]) for row in zip(*ASKED, strict=True))
    asked = StepCells(kind, gpus, nodes, np.ones((1, 1)))
    right = np.log(exact.predict(asked)[0])
    wide = [np.resize(row, (1, 12)) for row in (kind, gpus, nodes)]
    many = StepCells(wide[0], wide[1], wide[2], np.ones((1, 1)))
    print("| places seen | first fit s | again s | 12 predictions s | "
          + " | ".join(f"type {r}, {k} on {n}" for r, k, n in ASKED) + " |")  # fmt: skip
    print("|---" * (4 + len(ASKED)) + "|")
    for places in (1, 3, 8):
        seconds: list[float] = []
        began = time.perf_counter()
        found = fit_step_times(expected, measured(exact, places, rng))
        seconds.append(time.perf_counter() - began)
        seen = measured(exact, places, rng)
        began = time.perf_counter()
        found = fit_step_times(expected, seen, start=found.parameters)
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        found.predict(many)
        seconds.append(time.perf_counter() - began)
        log_s, sd = np.log(found.predict(asked)[0]), found.predict(asked)[1]
        error = log_s - right
        units = np.sqrt((error**2 / (sd**2 + MODEL_SD**2)).mean(axis=0))
        cells = " | ".join(
            f"{off:.1%}, {unit:.2f}"
            for off, unit in zip(np.median(np.abs(error), axis=0), units, strict=True)
        )
        print(f"| {places} | " + " | ".join(f"{one:.2f}" for one in seconds) + f" | {cells} |")


if __name__ == "__main__":
    main()
