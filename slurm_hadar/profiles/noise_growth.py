"""A gradient noise scale that grows as a training goes on, for all jobs at once.

The noise scale says what a sample of a larger batch is worth (``domain.traits.worth``), and rises
as the loss falls (McCandlish et al., arXiv 1812.06162; Pollux, OSDI 2021; recalled). The form is
ours: noise(s) = n (1 + s / s0)^k after s samples, k >= 0, so that k = 0 is a constant one.
"""

from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray

_SD = 0.2
"""Of a reported noise scale, logarithm."""
_GROWTH_SD = 0.5
"""k is taken to be small until reports say otherwise."""
_MOST_GROWTH = 4.0
_LEAST, _MOST = 1e-9, 1e12
_MOST_SAMPLES = 1e18


@dataclass(frozen=True)
class NoiseGrowth:
    """Of J jobs: ``start`` (J,) noise scale at the beginning, samples, nan where none was reported;
    ``growth`` (J,) k; ``unit`` (J,) s0, samples."""

    start: FloatArray
    growth: FloatArray
    unit: FloatArray

    def at(self, samples: FloatArray) -> FloatArray:
        """Noise scale after ``samples``, (J,) or (J, N); never falls with them."""
        wide = (slice(None),) + (None,) * (samples.ndim - 1)
        done = np.log1p(np.clip(samples, 0.0, _MOST_SAMPLES) / self.unit[wide])
        with np.errstate(over="ignore"):
            grown = self.start[wide] * np.exp(self.growth[wide] * done)
        found: FloatArray = np.where(np.isnan(grown), np.nan, np.minimum(grown, _MOST))
        return found


def fit_noise(samples: FloatArray, noise: FloatArray, unit: FloatArray) -> NoiseGrowth:
    """From up to N reports of each job: ``samples`` (J, N) done, ``noise`` (J, N) the noise scale
    then, nan where there is no report; ``unit`` (J,) s0, say a hundredth of the whole work.

    Least squares on logarithms with a prior on k, in closed form. Reports that cannot be (not
    finite or not above 0) are left out; it never raises for them.
    """
    s0 = np.clip(np.where(np.isfinite(unit) & (unit > 0.0), unit, 1.0), 1e-3, _MOST_SAMPLES)
    with np.errstate(invalid="ignore"):
        there = np.isfinite(samples) & (samples >= 0.0) & np.isfinite(noise) & (noise > 0.0)
    x = np.log1p(np.where(there, np.minimum(samples, _MOST_SAMPLES), 0.0) / s0[:, None])
    y = np.log(np.clip(np.where(there, noise, 1.0), _LEAST, _MOST))
    number = there.sum(axis=1)
    some = np.maximum(number, 1)
    mean_x, mean_y = ((there * value).sum(axis=1) / some for value in (x, y))
    off_x, off_y = (there * (v - m[:, None]) for v, m in ((x, mean_x), (y, mean_y)))
    ridge = (_SD / _GROWTH_SD) ** 2
    growth = (off_x * off_y).sum(axis=1) / ((off_x**2).sum(axis=1) + ridge)
    growth = np.clip(growth, 0.0, _MOST_GROWTH)
    start = np.where(number > 0, np.exp(mean_y - growth * mean_x), np.nan)
    return NoiseGrowth(start, growth, s0)
