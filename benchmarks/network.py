"""Waiting for near GPUs, weighed, against always and never waiting, on a congested network.

``python -m benchmarks.network [--policies NAME,...] [--json]``

256 V100, 4 a node, 8 nodes a rack, cards of 25 Gbit/s, uplinks with 2, 5 and 10 times less than a
rack's cards; trainings of six models on 1 to 32 GPUs that arrive at 0.6, 0.9 and 1.2 times what the
GPUs could do, and all at once. A restart costs 30 s and a save 10 s. The contention model is
that of docs/network.md. ``network``, ``network_consolidate`` and ``network_never_wait`` take the
jobs in the same order; ``fifo``, ``tiresias`` and ``hadar`` know nothing of racks. The grid, the
mix and the seed below were written down before the first run and have not been changed since.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from slurm_hadar import policies
from slurm_hadar.profiles.sizes import gradient_bytes
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.contention import Contention, Fabric, networked
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.workload import Workload

LOADS = (0.6, 0.9, 1.2, float("inf"))
"""GPU-hours that arrive, alone on one machine, over those that there are; inf: all at once."""
OVERSUBSCRIPTIONS = (2.0, 5.0, 10.0)
JOBS, SEED, ROUND_S = 400, 1, 180.0
GPUS, PER_NODE, PER_RACK, NIC_GBPS = 256, 4, 8, 25.0
COSTS = Costs(restart_s=30.0, checkpoint_s=10.0)
COUNTS, PARTS = (1, 2, 4, 8, 16, 32), (0.35, 0.10, 0.20, 0.20, 0.10, 0.05)
MEDIAN_S, SIGMA, SHORTEST_S, LONGEST_S = 3600.0, 1.2, 600.0, 86400.0
"""Run time on one machine: log-normal, cut."""
STEP_S = {
    "ResNet-50": 0.23,
    "VGG-16": 0.29,
    "BERT-base": 0.32,
    "BERT-large": 0.45,
    "GPT-2": 0.40,
    "LM": 0.06,
}
"""Seconds of a step on V100s, whatever their number: rough figures of our own, all as frequent."""
OURS, BASELINES = "network", ("network_consolidate", "network_never_wait")
AGNOSTIC = ("fifo", "tiresias", "hadar")


@dataclass(frozen=True, slots=True)
class Case:
    """One policy in one cell."""

    load: float
    oversubscription: float
    policy: str
    avg_jct_h: float
    makespan_h: float
    communication_share: float
    moves: int
    unfinished: int
    decide_s_mean: float


def trainings(load: float, seed: int = SEED) -> Workload:
    """The jobs of a load; the same ones at every load, but for their arrivals."""
    rng = np.random.default_rng([seed, 31])
    request = rng.choice(COUNTS, size=JOBS, p=PARTS).astype(np.int64)
    models = tuple(list(STEP_S)[at] for at in rng.integers(len(STEP_S), size=JOBS))
    seconds = np.clip(rng.lognormal(np.log(MEDIAN_S), SIGMA, JOBS), SHORTEST_S, LONGEST_S)
    each = np.array([1.0 / STEP_S[model] for model in models])
    rate = np.zeros((JOBS, 1, len(COUNTS)))
    rate[np.arange(JOBS), 0, np.searchsorted(COUNTS, request)] = each
    gaps = rng.exponential(1.0, JOBS)
    span = float((request * seconds).sum()) / GPUS / load
    arrival = np.concatenate([[0.0], gaps[1:].cumsum()]) * span / gaps[1:].sum()
    return Workload(
        name="trainings",
        types=("v100",),
        counts=COUNTS,
        ids=tuple(str(row) for row in range(JOBS)),
        arrival_s=arrival,
        request=request,
        total=np.maximum(1.0, np.round(seconds * each)),
        rate=rate,
        weight=np.ones(JOBS),
        models=models,
        max_nodes=np.full(JOBS, GPUS, dtype=np.int64),
        cpus_per_gpu=np.zeros(JOBS),
        mem_per_gpu_mb=np.zeros(JOBS),
        gradients=np.array([gradient_bytes(model) for model in models]),
    )


def run(load: float, oversubscription: float, policy: str) -> Case:
    """Simulate one policy in one cell."""
    built = cluster.build({"v100": GPUS}, PER_NODE, PER_RACK)
    fabric = Fabric(NIC_GBPS, oversubscription)
    work = networked(trainings(load), built, fabric)
    out = simulate(
        work,
        built,
        policies.get(policy),
        RoundSetting(
            costs=COSTS, clock=Clock(ROUND_S), seed=SEED, links=Contention(work, built, fabric)
        ),
        policy=policy,
    )
    return Case(
        load=load,
        oversubscription=oversubscription,
        policy=policy,
        avg_jct_h=out.avg_jct_s / 3600,
        makespan_h=out.makespan_s / 3600,
        communication_share=out.communication_share,
        moves=int(out.moves.sum()),
        unfinished=len(out.unfinished),
        decide_s_mean=float(out.decide_s.mean()),
    )


def cells() -> list[tuple[float, float]]:
    """(load, oversubscription) of the grid."""
    return [(load, over) for load in LOADS for over in OVERSUBSCRIPTIONS]


def _row(case: Case, own: Case | None) -> str:
    change = ""
    if own is not None and own is not case:
        change = "  " + " ".join(f"{_less(new, old):>5}" for new, old in _pairs(own, case))
    left = f"  {case.unfinished} unfinished" if case.unfinished else ""
    return (
        f"{_load(case.load):>4} {case.oversubscription:5g}  {case.policy:20}"
        f"{case.avg_jct_h:8.2f}{case.makespan_h:9.1f}{case.communication_share:8.1%}"
        f"{case.moves:7d}{case.decide_s_mean:10.4f}{change}{left}"
    )


def _pairs(new: Case, old: Case) -> list[tuple[float, float]]:
    return [
        (new.avg_jct_h, old.avg_jct_h),
        (new.makespan_h, old.makespan_h),
        (new.communication_share, old.communication_share),
    ]


def _less(new: float, old: float) -> str:
    return f"{new / old - 1:+.0%}" if old > 0 else "-"


def _load(load: float) -> str:
    return "once" if np.isinf(load) else f"{load:g}"


def summary(cases: Sequence[Case]) -> list[str]:
    """What the grid says: the best cells, and the worst one against the better baseline."""
    by = {(c.load, c.oversubscription, c.policy): c for c in cases}
    lines = []
    for rivals in (BASELINES, AGNOSTIC):
        for name in rivals:
            pairs = [(by[*at, OURS], by[*at, name]) for at in cells() if (*at, name) in by]
            if pairs:
                best = [
                    min(new / old - 1 for new, old in of if old > 0)
                    for of in zip(*(_pairs(*pair) for pair in pairs), strict=True)
                ]
                lines.append(
                    f"best cells against {name}: average JCT {best[0]:+.0%}, "
                    f"makespan {best[1]:+.0%}, communication {best[2]:+.0%}"
                )
    full = [at for at in cells() if all((*at, name) in by for name in BASELINES)]
    if full:
        for what in ("avg_jct_h", "makespan_h"):
            over = [
                getattr(by[*at, OURS], what) / min(getattr(by[*at, n], what) for n in BASELINES)
                for at in full
            ]
            lines.append(
                f"{what} over the better of the two baselines: median {np.median(over):.3f}, "
                f"worst {max(over):.3f}"
            )
    return lines


def measure(names: Iterable[str]) -> Iterable[Case]:
    """All cells in turn, our policy first in each."""
    wanted = [OURS, *(name for name in names if name != OURS)]
    for load, over in cells():
        for name in wanted:
            yield run(load, over, name)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default=",".join((OURS, *BASELINES, *AGNOSTIC)))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found: list[Case] = []
    if not args.json:
        print(
            "load  over  policy               JCT h makespan   comm.  moves  decide s   network's"
        )
        print(" " * 73 + "JCT  span comm.")
    for case in measure(args.policies.split(",")):
        found.append(case)
        if not args.json:
            own = next(c for c in reversed(found) if c.policy == OURS)
            print(_row(case, own), flush=True)
    if args.json:
        result = [asdict(replace(c, load=-1.0) if np.isinf(c.load) else c) for c in found]
        print(json.dumps({"version": 1, "command": "benchmarks.network", "result": result}))
        return
    print("\n".join(summary(found)))


if __name__ == "__main__":
    main()
