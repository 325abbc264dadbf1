"""Hare against gangs on whole types: weighted average JCT on heterogeneous mixes.

``python -m benchmarks.hare [--paper] [--ordinary] [--costs] [--json]``

Fixed before the first run, and not changed since:

- three mixes of GPUs: 8 of each type; few fast ones (4, 8, 12); many fast ones (8, 4, 4), near the
  paper's testbed of 8 V100 beside a few slower ones (recalled);
- seven models with their speeds on one GPU of each type from the shipped table (Gavel's
  measurements), equally likely; V100 is up to 11 times as fast as K80, and the slowest of all for
  Recommendation;
- a round has 1, 2, 4 or 8 tasks, equally likely; a task is what the fastest type trains in 4 to
  12 s, uniform; a round's exchange takes 0.2 s, a GPU's switch to another job 0.1 s;
- a gang on its fastest type would need 10^U(1.5, 3) minutes, one job in five 10^U(3, 4), as in
  Gavel's generator, all divided by 20 to keep the number of tasks bounded; weights 1 to 5;
- 60 jobs a cell, Poisson arrivals over a span such that all GPUs together could do the work in
  0.5, 0.8 or 1.1 of it (by the linear programme's bound), or all at once; seeds 0 and 1.

Changed after the first run: the dispatch lets tasks with time to spare leave fast GPUs to others
(0 to 5% less); ``hare_plain`` is ``hare`` without that, as in the first run. ``gang_las_move`` was
added, as ``gang_las`` keeps a job on a slow type for long: it moves gangs without loss whenever one
decides, more than any system could, and is no part of the aim.

``hare*`` but ``*offline`` and ``*wsrtf`` know no lengths, like ``gang_fifo`` and ``gang_las``; the
others do. Only ``*_weighted``, ``*offline`` and ``*wsrtf`` look at weights. Gangs lose nothing when
they are preempted. The aim is held against three gangs, fifo, las and srtf: ``hare`` has to be
twice as good as the first two, ``hare_offline`` as all three. Exit 1 when no cell (both seeds
together) reaches that.

``--ordinary`` adds the ordinary simulation of the same jobs: hadar (gangs that may mix types),
hadare and the policy hare (placements) in rounds of 60 s, a restart as cheap as a switch.
``--paper`` prints one table only: the paper's offline rule beside ours and the paper's baselines,
with what its bound allows and what came out. ``--costs`` varies switch and exchange in one cell.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar import policies
from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.profiles.table import shipped
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.tasks.jobs import TaskCosts, TaskJobs
from slurm_hadar.simulator.tasks.orders import round_jobs
from slurm_hadar.simulator.tasks.policies import NAMES, simulate_tasks
from slurm_hadar.simulator.workload import Workload
from slurm_hadar.solvers.hare import alpha, relax
from slurm_hadar.solvers.prices import scarcity

TYPES = ("v100", "p100", "k80")
MIXES = {"8+8+8": (8, 8, 8), "4+8+12": (4, 8, 12), "8+4+4": (8, 4, 4)}
LOADS = (0.5, 0.8, 1.1, float("inf"))
SEEDS = (0, 1)
JOBS = 60
TASKS = (1, 2, 4, 8)
MODELS = (
    ("ResNet-18", 64), ("ResNet-50", 64), ("Transformer", 64), ("LM", 20),
    ("Recommendation", 2048), ("CycleGAN", 1), ("A3C", 1),
)  # fmt: skip
SYNC_S, SWITCH_S = 0.2, 0.1
AIM = 2.0
GANGS = ("gang_fifo", "gang_las", "gang_srtf")
ONLINE, OFFLINE = "hare", "hare_offline"
PAPER_ONLY = ("hare_available", "hare_finish", "gang_homo", "gang_allox")
"""In the table of ``--paper`` only."""
PAPER = ("hare_available", "hare_finish", "hare_offline", "hare", "gang_homo", "gang_allox",
         "gang_wsrtf")  # fmt: skip
ORDINARY = ("hadar", "hadare", "hare")
_SHORTER = 20.0
_ROUND_S = 60.0


@dataclass(frozen=True)
class Cell:
    """One cell of the grid. ``load`` inf: all jobs at once."""

    mix: str
    load: float
    seed: int


def speeds() -> FloatArray:
    """(models, types) samples/s on one GPU, from the shipped table."""
    table = shipped()
    return np.array(
        [[table.curves(model)[kind].at(1, batch).rate for kind in TYPES] for model, batch in MODELS]
    )


def jobs_of(cell: Cell, sync_s: float = SYNC_S) -> TaskJobs:
    """The jobs of a cell; those of one seed are the same in all cells but for their arrivals."""
    gpus = np.array(MIXES[cell.mix])
    rng = np.random.default_rng([cell.seed, 5])
    model = rng.integers(0, len(MODELS), JOBS)
    tasks = rng.choice(TASKS, JOBS)
    rate = speeds()[model]
    task_s = rng.uniform(4.0, 12.0, JOBS)[:, None] * rate.max(axis=1, keepdims=True) / rate
    long = rng.random(JOBS) < 0.2
    exponent = np.where(long, rng.uniform(3.0, 4.0, JOBS), rng.uniform(1.5, 3.0, JOBS))
    seconds = 10.0**exponent * 60.0 / _SHORTER
    rounds = np.maximum(np.ceil(seconds / (task_s.min(axis=1) + sync_s)), 1.0).astype(np.int64)
    weight = rng.integers(1, 6, JOBS).astype(np.float64)
    gaps = rng.exponential(1.0, JOBS)
    horizon = scarcity(task_s * (rounds * tasks)[:, None], gpus).horizon_s
    arrival = (gaps.cumsum() - gaps[0]) / gaps.sum() * horizon / cell.load
    return TaskJobs(
        name=f"{cell.mix}, load {cell.load:g}, seed {cell.seed}",
        types=TYPES,
        ids=tuple(str(row) for row in range(JOBS)),
        arrival_s=arrival,
        weight=weight,
        rounds=rounds,
        tasks=tasks.astype(np.int64),
        task_s=task_s,
        sync_s=np.full(JOBS, sync_s),
    )


def gpus_of(cell: Cell) -> IntArray:
    """(R,) GPUs of the cell's mix."""
    return np.array(MIXES[cell.mix], dtype=np.int64)


def run(
    cell: Cell, policy: str, sync_s: float = SYNC_S, switch_s: float = SWITCH_S
) -> dict[str, object]:
    """One policy on one cell, at the level of tasks."""
    outcome = simulate_tasks(jobs_of(cell, sync_s), gpus_of(cell), policy, TaskCosts(switch_s))
    return {"mix": cell.mix, "load": _load(cell.load), "seed": cell.seed, **outcome.summary()}


def _load(load: float) -> object:
    return load if np.isfinite(load) else "at once"


def ordinary(jobs: TaskJobs, elastic: bool) -> Workload:
    """The same jobs for the ordinary simulation; work in tasks. ``elastic``: a round's tasks also
    one after another on fewer GPUs, and as copies on several nodes."""
    rate = np.zeros((JOBS, len(TYPES), len(TASKS)))
    for column, count in enumerate(TASKS):
        turns = jobs.tasks / count
        able = (turns >= 1) if elastic else (turns == 1)
        seconds = jobs.task_s * turns[:, None] + jobs.sync_s[:, None]
        rate[:, :, column] = np.where(able[:, None], jobs.tasks[:, None] / seconds, 0.0)
    many = jobs.tasks if elastic else np.ones(JOBS, dtype=np.int64)
    return Workload(
        name=jobs.name,
        types=TYPES,
        counts=TASKS,
        ids=jobs.ids,
        arrival_s=jobs.arrival_s,
        request=jobs.tasks,
        total=(jobs.rounds * jobs.tasks).astype(np.float64),
        rate=rate,
        weight=jobs.weight,
        models=("",) * JOBS,
        max_nodes=np.full(JOBS, 100, dtype=np.int64),
        cpus_per_gpu=np.zeros(JOBS),
        mem_per_gpu_mb=np.zeros(JOBS),
        copies=many,
        tasks=many,
    )


def run_ordinary(cell: Cell, policy: str) -> dict[str, object]:
    """One policy of the ordinary simulation on the cell's jobs."""
    jobs = jobs_of(cell)
    out = simulate(
        ordinary(jobs, elastic=policy != "hadar"),
        cluster.build(dict(zip(TYPES, MIXES[cell.mix], strict=True)), 4),
        policies.get(policy),
        RoundSetting(
            costs=Costs(restart_s=SWITCH_S),
            clock=Clock(_ROUND_S),
            seed=cell.seed,
            options={"averaging": 0.0, "exchange": 0.0},
        ),
        policy=policy,
    )
    if out.unfinished:
        raise SystemExit(f"{policy} never finished {', '.join(out.unfinished)}")
    weighted = float(np.average(out.jct_s, weights=jobs.weight)) / 3600.0
    return {
        "mix": cell.mix, "load": _load(cell.load), "seed": cell.seed,
        "policy": f"{policy} (ordinary)",
        "weighted_avg_jct_h": weighted, "makespan_h": out.makespan_s / 3600.0,
        "utilization": out.utilization, "switches": int(out.moves.sum()),
    }  # fmt: skip


def cells() -> Iterator[tuple[str, float]]:
    """Mixes and loads of the grid."""
    return ((mix, load) for mix in MIXES for load in LOADS)


def mean_jct(rows: Sequence[dict[str, object]], mix: str, load: float) -> dict[str, float]:
    """Policy -> weighted average JCT, h, over the seeds of a cell."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (row["mix"], row["load"]) == (mix, _load(load)):
            found.setdefault(str(row["policy"]), []).append(float(str(row["weighted_avg_jct_h"])))
    return {name: float(np.mean(values)) for name, values in found.items()}


def reached(rows: Sequence[dict[str, object]]) -> dict[str, int]:
    """Cells in which the aim is reached, by "ours against gang", and where it is by all."""
    pairs = [(ONLINE, gang) for gang in GANGS[:2]] + [(OFFLINE, gang) for gang in GANGS]
    found = dict.fromkeys([*(f"{ours} against {gang}" for ours, gang in pairs), "all"], 0)
    for mix, load in cells():
        jct = mean_jct(rows, mix, load)
        good = [jct[gang] / jct[ours] >= AIM for ours, gang in pairs]
        for (ours, gang), yes in zip(pairs, good, strict=True):
            found[f"{ours} against {gang}"] += yes
        found["all"] += all(good)
    return found


def _print(rows: Sequence[dict[str, object]]) -> None:
    names = list(dict.fromkeys(str(row["policy"]) for row in rows))
    print(
        "Weighted average JCT in h, mean of the seeds; below it times better than "
        + ", ".join(GANGS)
        + "."
    )
    for mix, load in cells():
        jct = mean_jct(rows, mix, load)
        what = f"load {load:g}" if np.isfinite(load) else "all at once"
        print(f"\n{mix}, {what}")
        for name in names:
            more = " ".join(f"{jct[gang] / jct[name]:8.2f}" for gang in GANGS)
            some = [row for row in rows if (row["mix"], row["load"], row["policy"])
                    == (mix, _load(load), name)]  # fmt: skip
            used = float(np.mean([float(str(row["utilization"])) for row in some]))
            span = float(np.mean([float(str(row["makespan_h"])) for row in some]))
            print(f"  {name:<20} {jct[name]:8.3f} | x {more} | used {used:6.1%} span {span:6.2f} h")
    print(f"\nof {len(MIXES) * len(LOADS)} cells at least {AIM:g} times better:")
    for what, number in reached(rows).items():
        print(f"  {what}: {number}")


def _costs() -> Iterator[str]:
    cell = Cell("8+8+8", 1.1, 0)
    yield f"\nOther costs, {cell.mix}, load {cell.load:g}, seed {cell.seed}: weighted JCT h"
    for switch_s, sync_s in (
        (0.0, 0.2),
        (0.1, 0.2),
        (1.0, 0.2),
        (5.0, 0.2),
        (0.1, 0.0),
        (0.1, 2.0),
    ):
        row = " ".join(
            f"{name} {float(str(run(cell, name, sync_s, switch_s)['weighted_avg_jct_h'])):.3f}"
            for name in (*GANGS, ONLINE, OFFLINE)
        )
        yield f"  switch {switch_s:g} s, exchange {sync_s:g} s: {row}"


def bound_of(cell: Cell) -> tuple[float, float]:
    """What the weighted sum of completion times is over the relaxation's bound under the paper's
    rule, without switches, and what the paper's theorem allows: alpha (2 + alpha)."""
    jobs = jobs_of(cell)
    out = simulate_tasks(jobs, gpus_of(cell), "hare_available", TaskCosts(0.0))
    least = relax(round_jobs(jobs), gpus_of(cell)).bound
    ratio = alpha(jobs.task_s)
    return float(jobs.weight @ out.finish_s) / least, ratio * (2.0 + ratio)


def _paper() -> Iterator[str]:
    yield f"| cell | {' | '.join(PAPER)} | over the bound | allowed |"
    yield "|---" * (len(PAPER) + 3) + "|"
    for mix, load in cells():
        rows = [run(Cell(mix, load, seed), name) for seed in SEEDS for name in PAPER]
        jct = mean_jct(rows, mix, load)
        over, allowed = np.max([bound_of(Cell(mix, load, seed)) for seed in SEEDS], axis=0)
        what = f"load {load:g}" if np.isfinite(load) else "all at once"
        shown = " | ".join(f"{jct[name]:.2f}" for name in PAPER)
        yield f"| {mix}, {what} | {shown} | {over:.2f} | {allowed:.0f} |"


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description="Hare against gangs on whole types.")
    parser.add_argument("--paper", action="store_true", help="the paper's rule and baselines only")
    parser.add_argument("--ordinary", action="store_true", help="hadar, hadare, hare as well")
    parser.add_argument("--costs", action="store_true", help="other switching costs in one cell")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.paper:
        for line in _paper():
            print(line, flush=True)
        return
    rows = [
        run(Cell(mix, load, seed), name)
        for mix, load in cells()
        for seed in SEEDS
        for name in NAMES
        if name not in PAPER_ONLY
    ]
    if given.ordinary:
        rows += [
            run_ordinary(Cell(mix, load, seed), name)
            for mix, load in cells()
            for seed in SEEDS
            for name in ORDINARY
        ]
    found = reached(rows)
    if given.json:
        result = {"cells": rows, "reached": found}
        print(json.dumps({"version": 1, "command": "benchmarks.hare", "result": result}))
    else:
        _print(rows)
        if given.costs:
            for line in _costs():
                print(line, flush=True)
    sys.exit(0 if found["all"] else 1)


if __name__ == "__main__":
    main()
