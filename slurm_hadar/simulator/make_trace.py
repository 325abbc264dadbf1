"""Makes traces of our own in the native format, seeded.

``python -m slurm_hadar.simulator.make_trace --jobs 60 --seed 1 > mixed_60.csv``

Models and batches of the shipped table, GPU counts 1, 2, 4, 8 at 70, 12, 12 and 6%, work of
10^1.5 .. 10^4 minutes on the job's best type with exponents uniform, Poisson arrivals.
"""

import argparse
import sys

import numpy as np

from slurm_hadar.profiles.rates import Rates
from slurm_hadar.profiles.table import shipped

_COUNTS, _PARTS = (1, 2, 4, 8), (0.70, 0.12, 0.12, 0.06)


def text(jobs: int, seed: int, gap_s: float = 0.0, longest_minutes: float = 1e4) -> str:
    """A trace; ``gap_s``: mean time between two arrivals, 0: all at once."""
    rng = np.random.default_rng([seed, 11])
    cells = sorted({(str(row[0]), int(row[3]), int(row[2])) for row in shipped().rows})
    rates = Rates()
    lines = [
        f"# made by slurm_hadar.simulator.make_trace --jobs {jobs} --seed {seed}"
        f" --gap {gap_s:g} --longest {longest_minutes:g}",
        "job_id,arrival_s,gpus,model,batch,samples",
    ]
    types = sorted({str(row[1]) for row in shipped().rows})
    arrival = 0.0
    for job in range(jobs):
        gpus = int(rng.choice(_COUNTS, p=_PARTS))
        fitting = [(model, batch) for model, batch, count in cells if count == gpus]
        model, batch = fitting[int(rng.integers(len(fitting)))]
        minutes = 10 ** rng.uniform(1.5, np.log10(longest_minutes))
        best = float(rates.rates((None, model, batch * gpus), types, (gpus,))[0].max())
        samples = max(1, round(best * minutes * 60))
        lines.append(f"{job},{arrival:.0f},{gpus},{model},{batch * gpus},{samples}")
        arrival += float(rng.exponential(gap_s)) if gap_s else 0.0
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print a trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gap", type=float, default=0.0, help="mean s between arrivals")
    parser.add_argument("--longest", type=float, default=1e4, help="minutes on the best type")
    given = parser.parse_args()
    sys.stdout.write(text(given.jobs, given.seed, given.gap, given.longest))


if __name__ == "__main__":
    main()
