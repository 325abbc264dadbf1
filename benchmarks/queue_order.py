"""How much of a free order's gain is left within Slurm's queue, and what it costs whom.

``python -m benchmarks.queue_order [--trace loaded] [--unmanaged 0,0.3,0.7] [--policy hadar]
[--wrong] [--wait HOURS] [--rows TEXT,...] [--runs N]``

20 V100, 20 P100 and 20 K80, a restart costs 30 s, ticks of 60 s. ``loaded``: trace_480_poisson with
its arrivals times 0.4916, a load of about 1.1; or any trace. Each run's jobs are up to 3% longer or
shorter than the trace says, drawn anew for each run. All delays are of a job's end in a run of a
row, against its end in each of as many other runs of plain Slurm; so the row ``plain`` is plain
Slurm against itself, the noise. Of several runs: most is the mean over the pairs of runs, all else
of all pairs together. Late: by more than 0.1 h and 5% of the job's time.
``--wrong``: speeds off by 20% and work by a factor of 2. ``--wait``: managed jobs leave out types
on which they would end later, for so long (``queue.max_wait_s``). Whatever comes out is printed.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.domain.view import BoolArray, FloatArray
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.scheduling.exchange_rule import ExchangeLevel
from slurm_hadar.simulator import cluster as clusters
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, RoundSetting
from slurm_hadar.simulator.engine import simulate as in_own_order
from slurm_hadar.simulator.estimates import Estimates, estimate
from slurm_hadar.simulator.outcome import Outcome
from slurm_hadar.simulator.queue.engine import simulate
from slurm_hadar.simulator.queue.requests import Drawn, requests
from slurm_hadar.simulator.queue.setting import SimulationSetting, SteeringSetting
from slurm_hadar.simulator.traces import open_trace
from slurm_hadar.simulator.workload import Workload

LOADED = "loaded"
LOADED_GAPS = 0.4916
"""Part of the time between two arrivals of trace_480_poisson that the loaded trace keeps."""
NOISE = 0.03
COSTS = Costs(restart_s=30.0)
HOUR = 3600.0
_HEAD = (
    f"{'unmanaged':9}  {'row':20} {'JCT h':>6} {'share':>5} {'p99':>5} {'makespan':>8}"
    f"  {'managed: mean, p50, p95, most, late':>40}  {'unmanaged: the same':>40}"
)


@dataclass(frozen=True)
class Row:
    """One way to run the jobs. ``steering`` None: plain Slurm."""

    name: str
    steering: SteeringSetting | None = None
    typed: bool = False
    free: bool = False


ROWS = (
    Row("plain, typed", typed=True),
    Row("plain"),
    Row("hints", SteeringSetting(moves=False)),
    Row("moves", SteeringSetting()),
    Row("exchange association", SteeringSetting(exchange=ExchangeLevel.ASSOCIATION)),
    Row("exchange account", SteeringSetting(exchange=ExchangeLevel.ACCOUNT)),
    Row("exchange all", SteeringSetting(exchange=ExchangeLevel.ALL)),
    Row("preempt association", SteeringSetting(exchange=ExchangeLevel.ASSOCIATION, preempt=True)),
    Row("preempt all", SteeringSetting(exchange=ExchangeLevel.ALL, preempt=True)),
    Row("the policy's order", free=True),
)


@dataclass(frozen=True)
class Runs:
    """N runs of J jobs. ``finish_s``, ``jct_s``: (N, J); the others are means over them, h."""

    finish_s: FloatArray
    jct_s: FloatArray
    p99_h: float
    makespan_h: float

    @classmethod
    def of(cls, runs: Iterable[Outcome]) -> "Runs":
        """N runs of the same jobs."""
        all_of_them = list(runs)
        arrived = min(run.workload.arrival_s.min() for run in all_of_them)
        return cls(
            np.stack([run.finish_s for run in all_of_them]),
            np.stack([run.jct_s for run in all_of_them]),
            float(np.mean([np.percentile(run.jct_s, 99) for run in all_of_them])) / HOUR,
            float(np.mean([run.finish_s.max() - arrived for run in all_of_them])) / HOUR,
        )

    @property
    def jct_h(self) -> float:
        """The mean over all jobs and runs."""
        return float(self.jct_s.mean()) / HOUR


@dataclass(frozen=True)
class Bench:
    """One trace on one cluster. ``estimates``: what the policy knows of it."""

    work: Workload
    cluster: VirtualCluster
    estimates: Estimates
    policy: str
    wait_h: float = 0.0

    def run(self, row: Row, unmanaged: float, seed: int) -> Outcome:
        """``seed``: of the jobs' true lengths."""
        longer = np.random.default_rng([seed, 3]).uniform(1 - NOISE, 1 + NOISE, len(self.work.ids))
        true = replace(self.work, total=self.work.total * longer)
        decide = policies.get(self.policy)
        if row.free:
            rounds = RoundSetting(costs=COSTS, clock=Clock(360.0), seen=self.estimates)
            return in_own_order(true, self.cluster, decide, rounds)
        if row.steering is None:
            drawn = Drawn(1.0, typed=row.typed)
            return simulate(SimulationSetting(true, self.cluster, drawn, costs=COSTS), None)
        setting = SimulationSetting(
            true,
            self.cluster,
            Drawn(unmanaged),
            costs=COSTS,
            steering=replace(row.steering, max_wait_s=self.wait_h * HOUR),
            seen=self.estimates,
        )
        return simulate(setting, decide, row.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", default=LOADED)
    parser.add_argument("--unmanaged", default="0,0.3,0.7")
    parser.add_argument("--policy", default="hadar")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--wait", type=float, default=0.0, metavar="HOURS")
    parser.add_argument("--rows", default="", help="names, or parts of them")
    parser.add_argument("--runs", type=int, default=1, help="of each row")
    args = parser.parse_args(argv)
    cluster = clusters.parse("v100=20,p100=20,k80=20", "4", 0)
    work = _work(args.trace, cluster)
    estimates = estimate(work, 0.2, 2.0) if args.wrong else estimate(work)
    bench = Bench(work, cluster, estimates, args.policy, args.wait)
    plain = next(row for row in ROWS if row.name == "plain")
    seeds = range(args.runs, 2 * args.runs)
    floor = Runs.of(bench.run(plain, 1.0, seed) for seed in range(args.runs))
    free = Runs.of(bench.run(ROWS[-1], 0.0, seed) for seed in seeds)
    ends = Runs.of(bench.run(plain, 1.0, seed) for seed in seeds)
    rows = [row for row in ROWS if any(part in row.name for part in args.rows.split(","))]
    errors = ", with wrong estimates" if args.wrong else ""
    waiting = f", waits of up to {args.wait:g} h" if args.wait else ""
    print(f"{args.trace}, policy {args.policy}{errors}{waiting}")
    print(_HEAD, flush=True)
    for share in [float(word) for word in args.unmanaged.split(",")]:
        managed = requests(work, cluster, Drawn(share)).managed
        for row in rows:
            runs = (bench.run(row, share, seed) for seed in seeds)
            found = free if row.free else ends if row is plain else Runs.of(runs)
            part = (ends.jct_h - found.jct_h) / (ends.jct_h - free.jct_h)
            late = "  ".join(_delays(found, floor, who) for who in (managed, ~managed))
            print(
                f"{share:9.0%}  {row.name:20} {found.jct_h:6.1f} {part:5.0%}"
                f" {found.p99_h:5.0f} {found.makespan_h:8.0f}  {late}",
                flush=True,
            )
    return 0


def _work(trace: str, cluster: VirtualCluster) -> Workload:
    name = "trace_480_poisson" if trace == LOADED else trace
    work = open_trace(name, cluster.types, open_rates(Config()))
    return replace(work, arrival_s=work.arrival_s * LOADED_GAPS) if trace == LOADED else work


def _delays(found: Runs, plain: Runs, who: BoolArray) -> str:
    """Of the ends of some jobs, h: mean, 50%, 95%, most, and the share that is late."""
    if not who.any():
        return f"{'-':>40}"
    # (N, N, jobs): each run of the row against each of plain Slurm.
    delay = (found.finish_s[:, None] - plain.finish_s)[:, :, who] / HOUR
    late = delay > np.maximum(0.1, 0.05 * plain.jct_s[:, who] / HOUR)
    half, high = np.percentile(delay, [50, 95])
    most = delay.max(axis=2).mean()
    return f"{delay.mean():8.1f}{half:8.1f}{high:8.1f}{most:8.0f}{late.mean():8.0%}"


if __name__ == "__main__":
    raise SystemExit(main())
