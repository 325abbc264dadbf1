"""Every policy on every kind of workload, all costs on: is our own policy good on each?

``python -m benchmarks.together [--grounds cpu,mixed] [--policies timetable,ones] [--seeds 0 1]``

Written down before the first run:

| ground | workload | what is at stake |
|---|---|---|
| types | trace_120 on 20 v100 + 20 p100 + 20 k80 | GPU types |
| cpu | ``benchmarks.synergy``, 80% CPU-hungry, load 1.1 | CPUs and memory |
| batch | ``benchmarks.ones``, seed 0, three types | batch and count |
| tasks | ``benchmarks.hare``, 8+8+8, load 1.1, seed 0 | rounds dealt over unequal GPUs |
| network | ``benchmarks.network``, load 0.9, oversubscription 5 | nodes, racks, traffic of others |
| mixed | all of it at once, see :func:`mixed` | everything |

A restart costs 30 s and a save 10 s on all of them. ``own`` is ``timetable``; ties are within 2% of
average job time.

Seed 0 is the ground as its own benchmark has it. Each further seed draws other jobs, for ``types``
from those of the trace. The verdict is on the means of the seeds.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np

from benchmarks import hare, network, ones_workload, synergy
from slurm_hadar import policies
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.profiles.cpu_table import cpu_trait_of
from slurm_hadar.profiles.cpu_table import shipped as shipped_cpus
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.contention import Contention, Fabric, networked
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, Links, RoundSetting, simulate
from slurm_hadar.simulator.estimates import estimate
from slurm_hadar.simulator.traces import open_trace
from slurm_hadar.simulator.workload import Workload, resampled

OWN = "timetable"
POLICIES = (
    "timetable", "fifo", "srtf", "tiresias", "gavel_las", "hadar", "hadare", "synergy_tune",
    "ones", "hare", "network",
)  # fmt: skip
COSTS = Costs(restart_s=30.0, checkpoint_s=10.0)
TIE = 1.02
HEADER = "ground   policy         JCT h   span h  used   moves  never  seeds: JCT, makespan, h"
JOBS, LOAD = 160, 1.0
SEEDS = (0, 1, 2)
CPUS, MEM_GB = 3, 62
"""Beside each GPU of the mixed ground, as on Synergy's servers."""
FABRIC = Fabric(25.0, 5.0)
MEGABYTES = (100.0, 400.0, 1300.0)
"""Gradients of a step on the mixed ground, each as frequent."""


@dataclass(frozen=True)
class Ground:
    """One kind of workload. ``options`` are the policies'."""

    work: Workload
    site: VirtualCluster
    round_s: float
    links: Links | None = None


def types(seed: int) -> Ground:
    """GPU types alone."""
    site = cluster.build({"v100": 20, "p100": 20, "k80": 20}, 4)
    from slurm_hadar.config import Config
    from slurm_hadar.profiles.rates import open_rates

    work = open_trace("trace_120", site.types, open_rates(Config()))
    if seed:
        work = resampled(work, len(work.ids), seed)
    return Ground(work, site, 360.0)


def cpu(seed: int) -> Ground:
    """Synergy's."""
    work = synergy.workload(0.8, 1.1, seed=synergy.SEED + seed)
    return Ground(work, synergy.servers(), 300.0)


def batch(seed: int) -> Ground:
    """ONES's."""
    gpus = ones_workload.CLUSTERS["mixed"]
    return Ground(ones_workload.workload(seed, gpus), cluster.build(gpus, 4), 360.0)


def tasks(seed: int) -> Ground:
    """Hare's."""
    cell = hare.Cell("8+8+8", 1.1, seed)
    work = hare.ordinary(hare.jobs_of(cell), elastic=True)
    gpus = dict(zip(hare.TYPES, hare.MIXES[cell.mix], strict=True))
    return Ground(work, cluster.build(gpus, 4), 60.0)


def racks(seed: int) -> Ground:
    """The network's."""
    site = cluster.build({"v100": network.GPUS}, network.PER_NODE, network.PER_RACK)
    fabric = Fabric(network.NIC_GBPS, 5.0)
    work = networked(network.trainings(0.9, network.SEED + seed), site, fabric)
    return Ground(work, site, 180.0, Contention(work, site, fabric))


def mixed(seed: int) -> Ground:
    """ONES's jobs at a load of 1.0 with everything else: half of them want more CPUs than their
    share, by Synergy's profiles; steps exchange 100, 400 or 1,300 MB over racks of four nodes; a
    third of those that ask for several GPUs may have their rounds dealt over up to 4 nodes."""
    gpus = ones_workload.CLUSTERS["mixed"]
    site = replace(cluster.build(gpus, 4, 4), cpus_per_gpu=CPUS, mem_per_gpu_mb=MEM_GB * 1024)
    work = ones_workload.workload(seed, gpus, LOAD, JOBS)
    rng = np.random.default_rng([seed, 41])
    hungry = rng.random(JOBS) < 0.5
    names = [
        str(rng.choice(synergy.HUNGRY if wants else synergy.OTHERS)) for wants in hungry.tolist()
    ]
    cpus, mem = np.full(JOBS, float(CPUS)), np.full(JOBS, MEM_GB * 1024.0)
    grids = [shipped_cpus().grid(name, int(n)) for name, n in zip(names, work.request, strict=True)]
    most = (np.full(JOBS, 12.0), np.full(JOBS, MEM_GB * 1024.0 * 2))
    assert work.batches is not None
    step = rng.choice(MEGABYTES, JOBS) * 1e6
    dealt = (rng.random(JOBS) < 1 / 3) & (work.request > 1)
    whole = replace(
        work,
        name="mixed",
        cpus_per_gpu=cpus,
        mem_per_gpu_mb=mem,
        cpu_sensitivity=cpu_trait_of(
            grids, (cpus, mem), (np.ones(JOBS), np.full(JOBS, 1024.0)), most
        ),
        gradients=step / work.batches.base,
        copies=np.where(dealt, 4, 1),
        tasks=np.where(dealt, work.request, 1),
    )
    whole = networked(whole, site, FABRIC)
    return Ground(whole, site, 360.0, Contention(whole, site, FABRIC))


GROUNDS: Mapping[str, Callable[[int], Ground]] = {
    "types": types, "cpu": cpu, "batch": batch, "tasks": tasks, "network": racks, "mixed": mixed,
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One policy on one ground with one seed. Times in hours."""

    ground: str
    policy: str
    seed: int
    avg_jct_h: float
    makespan_h: float
    utilization: float
    moves: int
    unfinished: int
    wall_s: float
    error: str = ""


def run(name: str, policy: str, seed: int) -> Cell:
    """Simulate one policy on one ground; a plan that cannot be carried out is an entry too."""
    ground = GROUNDS[name](seed)
    try:
        out = simulate(
            ground.work,
            ground.site,
            policies.get(policy),
            RoundSetting(
                costs=COSTS,
                clock=Clock(ground.round_s),
                seed=seed,
                seen=estimate(ground.work),
                links=ground.links,
            ),
            policy=policy,
        )
    except HadarError as error:
        return Cell(name, policy, seed, *(4 * (float("nan"),))[:3], 0, 0, 0.0, str(error))
    return Cell(
        ground=name,
        policy=policy,
        seed=seed,
        avg_jct_h=out.avg_jct_s / 3600,
        makespan_h=out.makespan_s / 3600,
        utilization=out.utilization,
        moves=int(out.moves.sum()),
        unfinished=len(out.unfinished),
        wall_s=out.wall_s,
    )


@dataclass(frozen=True)
class Means:
    """Of one policy on one ground, over the seeds, in hours."""

    ground: str
    policy: str
    avg_jct_h: float
    makespan_h: float


def means(cells: Sequence[Cell]) -> list[Means]:
    """Of each policy and ground where it could carry out every seed and ended all jobs."""
    found = []
    for (ground, policy), rows in _by_policy(cells).items():
        if not any(cell.error or cell.unfinished for cell in rows):
            jct, makespan = (
                float(np.mean([getattr(cell, name) for cell in rows]))
                for name in ("avg_jct_h", "makespan_h")
            )
            found.append(Means(ground, policy, jct, makespan))
    return found


def _by_policy(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Cell]]:
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.ground, cell.policy), []).append(cell)
    return found


def line(cells: Sequence[Cell]) -> str:
    """One row of the table, of one policy on one ground."""
    start = f"{cells[0].ground:8s} {cells[0].policy:12s}"
    errors = [cell for cell in cells if cell.error]
    if errors:
        return f"{start}  seed {errors[0].seed} cannot: {errors[0].error}"
    jct, makespan = [cell.avg_jct_h for cell in cells], [cell.makespan_h for cell in cells]
    return (
        f"{start} {np.mean(jct):7.2f} {np.mean(makespan):8.1f} "
        f"{np.mean([cell.utilization for cell in cells]):5.0%} "
        f"{np.mean([cell.moves for cell in cells]):7.0f} "
        f"{sum(cell.unfinished for cell in cells):6d} "
        f"{' '.join(f'{one:6.2f}' for one in jct)}  {' '.join(f'{one:6.1f}' for one in makespan)}"
    )


def verdict(cells: Sequence[Cell]) -> list[str]:
    """Per ground: our own beside the best of the others, by the means over the seeds."""
    words = []
    for name in dict.fromkeys(cell.ground for cell in cells):
        here = [c for c in means(cells) if c.ground == name]
        own = next((c for c in here if c.policy == OWN), None)
        others = [c for c in here if c.policy != OWN]
        if own is None or not others:
            continue
        best = min(others, key=lambda c: c.avg_jct_h)
        soonest = min(others, key=lambda c: c.makespan_h)
        ratio = best.avg_jct_h / own.avg_jct_h
        word = "wins" if ratio > TIE else "ties" if ratio * TIE >= 1 else "LOSES"
        words.append(
            f"{name}: {OWN} {word}: {own.avg_jct_h:.2f} h beside {best.policy}'s "
            f"{best.avg_jct_h:.2f} h ({ratio:.2f} times); makespan {own.makespan_h:.1f} beside "
            f"{soonest.policy}'s {soonest.makespan_h:.1f} h "
            f"({soonest.makespan_h / own.makespan_h:.2f} times)"
        )
    return words


def main() -> None:
    """Run the grid and print a row for each ground and policy."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--grounds", default=",".join(GROUNDS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cells: list[Cell] = []
    if not args.json:
        print(HEADER)
    for name, policy in product(args.grounds.split(","), args.policies.split(",")):
        cells += [run(name, policy, seed) for seed in args.seeds]
        if not args.json:
            print(line(cells[-len(args.seeds) :]))
            sys.stdout.flush()
    if args.json:
        print(json.dumps([asdict(cell) for cell in cells]))
    else:
        print("\n".join(verdict(cells)))


if __name__ == "__main__":
    main()
