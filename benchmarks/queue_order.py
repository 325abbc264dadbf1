"""How much of a free order's gain is left within Slurm's queue, and what it costs whom.

``python -m benchmarks.queue_order [--trace loaded] [--unmanaged 0,0.3,0.7] [--policy hadar]
[--wrong] [--rows TEXT,...]``

20 V100, 20 P100 and 20 K80, a restart costs 30 s, ticks of 60 s. ``loaded``: the jobs of trace_480,
one in 1,755 s (Poisson), a load of about 1.1; or any trace. Each run's jobs are up to 3% longer or
shorter than the trace says, drawn anew for each of two seeds. All delays are of a job's end,
against plain Slurm with the other seed; so the row ``plain`` is plain Slurm against itself, the
noise. Late: by more than 0.1 h and 5% of the job's time. ``--wrong``: speeds off by 20% and work by
a factor of 2. Whatever comes out is printed.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.domain.view import BoolArray
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.scheduling.exchange import ExchangeLevel
from slurm_hadar.simulator import cluster as clusters
from slurm_hadar.simulator.cluster import Cluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock
from slurm_hadar.simulator.engine import simulate as in_own_order
from slurm_hadar.simulator.estimates import Estimates, estimate
from slurm_hadar.simulator.outcome import Outcome
from slurm_hadar.simulator.queue.engine import Setting, Steering, simulate
from slurm_hadar.simulator.queue.requests import Drawn, requests
from slurm_hadar.simulator.traces import open_trace
from slurm_hadar.simulator.workload import Workload

LOADED = "loaded"
BETWEEN_S = 1755.0
"""Mean time between two arrivals of the loaded trace."""
NOISE = 0.03
COSTS = Costs(restart_s=30.0)
HOUR = 3600.0
_HEAD = (
    f"{'unmanaged':9}  {'row':20} {'JCT h':>6} {'share':>5} {'p99':>5} {'makespan':>8}"
    f"  {'managed: mean, p95, most, late':>32}  {'unmanaged: the same':>32}"
)


@dataclass(frozen=True)
class Row:
    """One way to run the jobs. ``steering`` None: plain Slurm."""

    name: str
    steering: Steering | None = None
    typed: bool = False
    free: bool = False


ROWS = (
    Row("plain, typed", typed=True),
    Row("plain"),
    Row("hints", Steering(moves=False)),
    Row("moves", Steering()),
    Row("exchange association", Steering(exchange=ExchangeLevel.ASSOCIATION)),
    Row("exchange account", Steering(exchange=ExchangeLevel.ACCOUNT)),
    Row("exchange all", Steering(exchange=ExchangeLevel.ALL)),
    Row("preempt association", Steering(exchange=ExchangeLevel.ASSOCIATION, preempt=True)),
    Row("preempt all", Steering(exchange=ExchangeLevel.ALL, preempt=True)),
    Row("the policy's order", free=True),
)


@dataclass(frozen=True)
class Bench:
    """One trace on one cluster. ``told``: what the policy is told of it."""

    work: Workload
    cluster: Cluster
    told: Estimates
    policy: str

    def run(self, row: Row, unmanaged: float, seed: int) -> Outcome:
        """``seed``: of the jobs' true lengths."""
        longer = np.random.default_rng([seed, 3]).uniform(1 - NOISE, 1 + NOISE, len(self.work.ids))
        true = replace(self.work, total=self.work.total * longer)
        decide = policies.get(self.policy)
        if row.free:
            return in_own_order(
                true, self.cluster, decide, costs=COSTS, clock=Clock(360.0), seen=self.told
            )
        if row.steering is None:
            drawn = Drawn(1.0, typed=row.typed)
            return simulate(Setting(true, self.cluster, drawn, costs=COSTS), None)
        setting = Setting(
            true,
            self.cluster,
            Drawn(unmanaged),
            costs=COSTS,
            steering=row.steering,
            seen=self.told,
        )
        return simulate(setting, decide, row.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", default=LOADED)
    parser.add_argument("--unmanaged", default="0,0.3,0.7")
    parser.add_argument("--policy", default="hadar")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--rows", default="", help="names, or parts of them")
    args = parser.parse_args(argv)
    cluster = clusters.parse("v100=20,p100=20,k80=20", "4", 0)
    work = _work(args.trace, cluster)
    told = estimate(work, 0.2, 2.0) if args.wrong else estimate(work)
    bench = Bench(work, cluster, told, args.policy)
    plain = next(row for row in ROWS if row.name == "plain")
    floor, free = bench.run(plain, 1.0, 1), bench.run(ROWS[-1], 0.0, 2)
    ends = bench.run(plain, 1.0, 2)
    gain = ends.jct_s.mean() - free.jct_s.mean()
    rows = [row for row in ROWS if any(part in row.name for part in args.rows.split(","))]
    print(f"{args.trace}, policy {args.policy}{', told wrongly' if args.wrong else ''}")
    print(_HEAD, flush=True)
    for share in [float(word) for word in args.unmanaged.split(",")]:
        managed = requests(work, cluster, Drawn(share)).managed
        for row in rows:
            found = free if row.free else bench.run(row, share, 2)
            part = (ends.jct_s.mean() - found.jct_s.mean()) / gain
            late = "  ".join(_delays(found, floor, who) for who in (managed, ~managed))
            print(
                f"{share:9.0%}  {row.name:20} {found.jct_s.mean() / HOUR:6.1f} {part:5.0%}"
                f" {np.percentile(found.jct_s, 99) / HOUR:5.0f}"
                f" {(found.finish_s.max() - work.arrival_s.min()) / HOUR:8.0f}  {late}",
                flush=True,
            )
    return 0


def _work(trace: str, cluster: Cluster) -> Workload:
    name = "trace_480" if trace == LOADED else trace
    work = open_trace(name, cluster.types, open_rates(Config()))
    if trace != LOADED:
        return work
    gaps = np.random.default_rng(0).exponential(BETWEEN_S, len(work.ids))
    return replace(work, arrival_s=np.cumsum(gaps) - gaps[0])


def _delays(found: Outcome, plain: Outcome, who: BoolArray) -> str:
    """Of the ends of some jobs, h: mean, 95%, most, and the share that is late."""
    if not who.any():
        return f"{'-':>32}"
    delay = (found.finish_s - plain.finish_s)[who] / HOUR
    late = delay > np.maximum(0.1, 0.05 * plain.jct_s[who] / HOUR)
    return f"{delay.mean():8.1f}{np.percentile(delay, 95):8.1f}{delay.max():8.0f}{late.mean():8.0%}"


if __name__ == "__main__":
    raise SystemExit(main())
