"""Elastic jobs: traces whose jobs may run with several GPU counts and batches.

- 64 GPUs on 16 nodes of four, as in the paper: of one type (``one``), or 24 v100 + 24 p100 + 16 k80
  (``mixed``; relative speeds 1, 0.5, 0.25, times a job's own factor, lognormal with sigma 0.2);
- 240 jobs that arrive by a Poisson process. Asked for: 1, 2, 4, 8 GPUs (50, 25, 20, 5%), 16, 32, 64
  or 128 samples per GPU, hours on that at v100 lognormal (median 1, sigma 1, 0.05 to 10). The
  arrivals are such that this is 1.2 times what the cluster has while they come (``LOAD``);
- a job may run on 1, 2 and 4 times what it asked for (16 at most), on up to 4 nodes, with 1 to 16
  times its batch;
- a step of b samples per GPU takes alpha + beta b on one GPU, per pass of at most 4 times the
  declared b (memory; more is accumulated), and sync x log2(n) more on n GPUs. The declared batch
  keeps the GPU busy for beta b / (alpha + beta b) = 40 to 90% of a step; sync is 2 to 25% of it;
- the gradient noise scale is log-uniform from 30 to 100,000 samples: a sample at batch b is worth
  (noise + base) / (noise + b) of one at the declared batch.
"""

from collections.abc import Mapping

import numpy as np

from slurm_hadar.domain.traits import BatchTrait
from slurm_hadar.simulator.workload import Workload

CLUSTERS: Mapping[str, Mapping[str, int]] = {
    "one": {"v100": 64},
    "mixed": {"v100": 24, "p100": 24, "k80": 16},
}
SPEEDS = {"v100": 1.0, "p100": 0.5, "k80": 0.25}
JOBS = 240
LOAD = 1.2
COUNTS = (1, 2, 4, 8, 16)
SIZES = (1, 2, 4, 8, 16)
"""Batches, in declared ones."""


def workload(seed: int, gpus: Mapping[str, int], load: float = LOAD, jobs: int = JOBS) -> Workload:
    """One trace; the same seed gives the same jobs on either cluster."""
    rng = np.random.default_rng([seed, 17])
    asked = rng.choice([1, 2, 4, 8], jobs, p=[0.5, 0.25, 0.2, 0.05])
    each = rng.choice([16, 32, 64, 128], jobs)
    hours = np.clip(np.exp(rng.normal(0.0, 1.0, jobs)), 0.05, 10.0)
    busy = rng.uniform(0.4, 0.9, jobs)
    sync = rng.uniform(0.02, 0.25, jobs)
    noise = 10 ** rng.uniform(np.log10(30.0), 5.0, jobs)
    own = {kind: np.exp(rng.normal(0.0, 0.2, jobs)) for kind in SPEEDS}
    gaps = rng.exponential(1.0, jobs)
    types = tuple(gpus)
    base = asked * each
    sizes = base[:, None] * np.array(SIZES)
    # Seconds of a step on one v100, with 1 s for a declared one.
    own["v100"] = np.ones(jobs)
    speed = np.stack([SPEEDS[kind] * own[kind] for kind in types], axis=1)
    n = np.array(COUNTS)
    local = sizes[:, None, :] / n[None, :, None]
    part = local / each[:, None, None]
    passes = np.ceil(part / 4.0)
    step = passes * (1.0 - busy)[:, None, None] + busy[:, None, None] * part
    exchange = sync[:, None, None] * np.log2(n)[None, :, None]
    seconds = step[:, None] / speed[:, :, None, None] + exchange[:, None]
    allowed = (n[None, :] >= asked[:, None]) & (n[None, :] <= np.minimum(4 * asked, 16)[:, None])
    rate = np.where(allowed[:, None, :, None], sizes[:, None, None, :] / seconds, 0.0)
    at = np.searchsorted(n, asked)
    rows = np.arange(jobs)
    v100 = base / (1.0 + sync * np.log2(asked))
    total = np.maximum(np.round(v100 * hours * 3600.0), 1.0)
    fair = (rate[rows, :, at, 0] / v100[:, None]).mean(axis=0)
    capacity = float(sum(fair[types.index(kind)] * number for kind, number in gpus.items()))
    span = float((asked * hours * 3600.0).sum()) / (load * capacity)
    arrival = np.cumsum(gaps) / gaps.sum() * span
    return Workload(
        name=f"elastic {seed}",
        types=types,
        counts=COUNTS,
        ids=tuple(str(row) for row in range(jobs)),
        arrival_s=arrival - arrival[0],
        request=asked,
        total=total,
        rate=rate[:, :, :, 0],
        weight=np.ones(jobs),
        models=("",) * jobs,
        max_nodes=np.full(jobs, 4),
        cpus_per_gpu=np.zeros(jobs),
        mem_per_gpu_mb=np.zeros(jobs),
        batches=BatchTrait(
            sizes=sizes,
            rate=rate,
            noise=noise,
            base=base.astype(float),
            present=np.zeros(jobs, dtype=np.int64),
        ),
    )
