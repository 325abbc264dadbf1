"""The progress of a job as a distribution: ONES's Beta model (arXiv 2108.03645, recalled)."""

import numpy as np

from slurm_hadar.domain.view import FloatArray

EPOCHS = 10
"""A tenth of the declared work counts as an epoch, since a view has no epochs."""


def beta_of(done: FloatArray, left: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(J,) and (J,) parameters of rho ~ Beta(max(1, epochs done), epochs left), the fraction of its
    work that a job has done. ``done`` and ``left`` in samples."""
    epoch = np.maximum((done + left) / EPOCHS, 1e-9)
    return np.maximum(done / epoch, 1.0), np.maximum(left / epoch, 1.0)


def factors(
    done: FloatArray, left: FloatArray, rng: np.random.Generator, number: int
) -> FloatArray:
    """(number, J) draws of (samples left) / (samples left as declared).

    Samples left are done x (1 / rho - 1), here divided by the value at the mean of rho, which
    equals the declaration once an epoch is done. So the ratio is defined from the first sample on.
    """
    a, b = beta_of(done, left)
    rho = np.clip(rng.beta(a, b, size=(number, len(a))), 1e-3, 1.0 - 1e-6)
    drawn: FloatArray = (1.0 / rho - 1.0) * (a / b)
    return np.maximum(drawn, 1e-6)
