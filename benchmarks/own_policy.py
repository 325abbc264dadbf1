"""How close the timetable policy comes to what no schedule can beat, on traces it was not made for.

``python -m benchmarks.own_policy [--traces FILE ...] [--parts given,bootstrap,noise,elastic]``

Restart cost 10 s, rounds of 360 s, one setting for everything. ``given``: the traces as they are,
on 20 V100 + 20 P100 + 20 K80. ``bootstrap``: jobs drawn anew from them, other numbers of jobs,
other arrivals, other clusters; figures over their own lower bounds. ``noise``: the same traces with
throughputs estimated within 20% and half of the jobs' steps declared off by 2. ``elastic``: any of
1, 2, 4, 8 GPUs that the table has, at most 4 times the request. Any policy can be named.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from slurm_hadar import policies
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.estimates import estimate
from slurm_hadar.simulator.traces import gavel
from slurm_hadar.simulator.workload import Workload, doable, resampled
from slurm_hadar.solvers.lower_bounds import Bounds, bounds
from slurm_hadar.solvers.time_indexed import TimeIndexedWork

_TYPES = ("v100", "p100", "k80")
_EVEN = (20, 20, 20)
_MIXES = (_EVEN, (8, 24, 28), (32, 20, 8), (12, 12, 36))
_SIZES = (480, 240, 120, 360)
_SPREADS = (0.0, 0.5, 0.0, 0.9)
"""Arrivals: all at once, or evenly at random over this part of the bound of the makespan."""
_NOISES = ((0.2, 1.0), (0.0, 2.0), (0.2, 2.0))
_SHIPPED = Path(__file__).resolve().parents[1] / "slurm_hadar" / "simulator" / "data"


@dataclass(frozen=True)
class Case:
    """One simulation. Bounds are 0 where they were not asked for."""

    part: str
    trace: str
    jobs: int
    cluster: str
    noise: float
    steps_error: float
    avg_jct_h: float
    makespan_h: float
    jct_bound_h: float
    makespan_bound_h: float
    moves_per_job: float
    unfinished: int
    decide_s_mean: float
    decide_s_max: float


def run(
    part: str,
    work: Workload,
    gpus: Sequence[int],
    policy: str,
    options: dict[str, object],
    noise: float = 0.0,
    steps_error: float = 1.0,
    seed: int = 0,
    bound: Bounds | None = None,
) -> Case:
    """Simulate one case."""
    built = cluster.build(dict(zip(_TYPES, gpus, strict=True)), per_node=4)
    out = simulate(
        work,
        built,
        policies.get(policy),
        RoundSetting(
            costs=Costs(restart_s=10.0),
            clock=Clock(360.0),
            seed=seed,
            options=options,
            seen=estimate(work, noise=noise, steps_error=steps_error, seed=seed),
        ),
        policy=policy,
    )
    return Case(
        part=part,
        trace=work.name,
        jobs=len(work.ids),
        cluster="+".join(str(n) for n in gpus),
        noise=noise,
        steps_error=steps_error,
        avg_jct_h=out.avg_jct_s / 3600,
        makespan_h=out.makespan_s / 3600,
        jct_bound_h=bound.jct_s / 3600 if bound else 0.0,
        makespan_bound_h=bound.makespan_s / 3600 if bound else 0.0,
        moves_per_job=float(out.moves.mean()),
        unfinished=len(out.unfinished),
        decide_s_mean=float(out.decide_s.mean()),
        decide_s_max=float(out.decide_s.max()),
    )


def bounds_of(work: Workload, gpus: Sequence[int]) -> Bounds:
    """Lower bounds of a workload on so many GPUs per type."""
    built = cluster.build(dict(zip(_TYPES, gpus, strict=True)), per_node=4)
    rate = np.where(doable(work, built), work.rate, 0.0).reshape(len(work.ids), -1)
    seconds = np.where(rate > 0, work.total[:, None] / np.where(rate > 0, rate, 1.0), np.inf)
    counts = np.asarray(work.counts, dtype=np.int64)
    return bounds(
        TimeIndexedWork(
            seconds=seconds,
            gpus=np.tile(counts, len(_TYPES)),
            pool=np.repeat(np.arange(len(_TYPES)), len(counts)),
            capacity=np.asarray(gpus, dtype=np.int64),
            number=np.ones(len(work.ids)),
            weight=np.ones(len(work.ids)),
        ),
        work.arrival_s - float(work.arrival_s.min()),
    )


def bootstrapped(sources: Sequence[Workload], number: int) -> list[tuple[Workload, Sequence[int]]]:
    """Workloads and clusters; the same number gives the same ones."""
    found: list[tuple[Workload, Sequence[int]]] = []
    for seed in range(number):
        source = sources[seed % len(sources)]
        drawn = resampled(source, _SIZES[seed % len(_SIZES)], seed)
        gpus = _MIXES[(seed // 2) % len(_MIXES)]
        at_once = replace(drawn, arrival_s=np.zeros(len(drawn.ids)))
        spread = _SPREADS[(seed // 3) % len(_SPREADS)] * bounds_of(at_once, gpus).makespan_s
        random = np.random.default_rng([seed, 11])
        arrivals = np.sort(random.uniform(0.0, spread, len(drawn.ids)))
        arrivals[0] = 0.0
        found.append((replace(at_once, arrival_s=arrivals), gpus))
    return found


def measure(
    files: Sequence[Path],
    parts: Sequence[str],
    number: int,
    policy: str,
    options: dict[str, object],
) -> list[Case]:
    """All cases of the parts, printed to nobody."""
    texts = {file.stem: file.read_text() for file in files}
    works = [gavel.read(text, name, _TYPES) for name, text in texts.items()]
    cases = []
    for work in works:
        if "given" in parts:
            cases.append(run("given", work, _EVEN, policy, options, bound=bounds_of(work, _EVEN)))
        if "noise" in parts:
            for noise, error in _NOISES:
                cases.append(run("noise", work, _EVEN, policy, options, noise, error))
    if "bootstrap" in parts:
        for seed, (work, gpus) in enumerate(bootstrapped(works, number)):
            bound = bounds_of(work, gpus)
            cases.append(run("bootstrap", work, gpus, policy, options, seed=seed, bound=bound))
    if "elastic" in parts:
        for name, text in texts.items():
            work = gavel.read(text, name, _TYPES, elastic=True)
            cases.append(run("elastic", work, _EVEN, policy, options, bound=bounds_of(work, _EVEN)))
    return cases


def line(case: Case) -> str:
    """One row of the table."""
    over = ""
    if case.jct_bound_h:
        over = (
            f"  over bounds {case.avg_jct_h / case.jct_bound_h:.3f} / "
            f"{case.makespan_h / case.makespan_bound_h:.3f}"
        )
    return (
        f"{case.part:9} {case.trace:36} {case.jobs:4d} jobs {case.cluster:9} "
        f"noise {case.noise:.1f} steps x{case.steps_error:g}: "
        f"{case.avg_jct_h:6.2f} h / {case.makespan_h:6.1f} h"
        f"{over}  moves {case.moves_per_job:.1f}, decide {case.decide_s_mean:.3f} s"
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, nargs="+", help="CSV files as Gavel's traces")
    parser.add_argument("--parts", default="given,bootstrap,noise,elastic")
    parser.add_argument("--number", type=int, default=12, help="bootstrapped traces")
    parser.add_argument("--policy", default="timetable", choices=policies.names())
    parser.add_argument("--options", type=json.loads, default={}, help="the policy's, as JSON")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    files = args.traces or [_SHIPPED / "trace_120.csv", _SHIPPED / "trace_480.csv"]
    cases = measure(files, args.parts.split(","), args.number, args.policy, args.options)
    if args.json:
        found = [asdict(case) for case in cases]
        print(json.dumps({"version": 1, "command": "benchmarks.own_policy", "result": found}))
        return
    for case in cases:
        print(line(case))
    drawn = [case for case in cases if case.part == "bootstrap"]
    if drawn:
        jct = [case.avg_jct_h / case.jct_bound_h for case in drawn]
        span = [case.makespan_h / case.makespan_bound_h for case in drawn]
        print(
            f"{len(drawn)} bootstrapped traces, over their lower bounds: average JCT median "
            f"{statistics.median(jct):.3f}, worst {max(jct):.3f}; makespan median "
            f"{statistics.median(span):.3f}, worst {max(span):.3f}"
        )


if __name__ == "__main__":
    main()
