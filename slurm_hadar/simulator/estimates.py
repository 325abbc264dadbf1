"""What a policy sees in place of the truth: estimated throughputs, steps declared wrongly."""

from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.traits import BatchTrait, CpuTrait, NetworkTrait
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.simulator.workload import Workload


@dataclass(frozen=True)
class Estimates:
    """What the policy sees of a workload."""

    rate: FloatArray
    """(J, R, C)"""
    total: FloatArray
    """(J,)"""
    known: bool
    """Whether the rates are the true ones."""
    learned: bool = False
    """Whether a policy knows of ``rate`` only the least count of each type, and learns the others
    from the jobs' progress."""
    cpu_sensitivity: CpuTrait | None = None
    batches: BatchTrait | None = None
    network: NetworkTrait | None = None


def estimate(
    workload: Workload, noise: float = 0.0, steps_error: float = 1.0, seed: int = 0
) -> Estimates:
    """``noise`` x: each throughput is off by its own factor, uniform in [1 - x, 1 + x].

    ``steps_error`` f: half of the jobs, drawn at random, declare their work f times too large or
    too small, with equal chance. The same seed gives the same errors, whatever the policy.
    Raises UsageError for values without meaning.
    """
    if not 0.0 <= noise < 1.0:
        raise UsageError(f"--noise {noise:g}: it must be at least 0 and below 1")
    if not 1.0 <= steps_error <= 1e6:
        raise UsageError(f"--steps-error {steps_error:g}: it must be a factor of 1 or more")
    rate, total, batches = workload.rate, workload.total, workload.batches
    if noise > 0.0:
        factors = np.random.default_rng([seed, 1]).uniform(1.0 - noise, 1.0 + noise, rate.shape)
        rate = rate * factors
        if batches is not None:
            batches = replace(batches, rate=batches.rate * factors[..., None])
    if steps_error > 1.0:
        rng, jobs = np.random.default_rng([seed, 2]), len(workload.ids)
        wrong = rng.permutation(jobs)[: jobs // 2]
        total = total.copy()
        total[wrong] *= np.where(rng.random(len(wrong)) < 0.5, steps_error, 1.0 / steps_error)
    return Estimates(
        rate,
        total,
        noise == 0.0,
        cpu_sensitivity=workload.cpu_sensitivity,
        batches=batches,
        network=workload.network,
    )
