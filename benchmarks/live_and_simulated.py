"""One trace on a real Slurm and in the simulator: do the jobs end when the simulator says?

``python -m benchmarks.live_and_simulated [--jobs 90] [--seed 1] [--policy NAME ...]
[--again] [--side-by-side N] [--keep FOLDER]``

Trainings on a sandbox of twelve GPUs of three types, all through ``hbatch``, once under each policy
and once under Slurm alone (``plain``). A second stands for 20: a tick every 3 s, a move of a job
after 30 s at the earliest. The simulator gets the same jobs, speeds, limits and scheduler times
(``--order slurm``). What a real job costs besides (a start, an end) is taken from the plain run
alone: how much longer its attempts and the gaps between them are than training.

The first table compares each job's time from its arrival to its end; there all jobs of the
simulation have the median of these costs. The second one compares the makespan and the time at
which jobs with 95% of the work have ended. A tenth of a second decides which job gets which GPU,
and the last job may run four times as long on another one: so it has the median, the least and the
most of simulations in which each job's cost is drawn from those of the plain run. ``--again`` runs
each trace live once more and compares the second run with the first: two runs of one trace differ
too, and by no less may the simulator.
"""

import argparse
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.optin import records
from benchmarks.optin.records import RunRecord
from benchmarks.optin.refill import refills
from benchmarks.optin.runs import Run, carry_out
from benchmarks.optin.site import EQUAL, LAYOUT, USERS, refuse
from benchmarks.optin.workload import MODELS, RESTART_S, TRAINING, Spec, base_rates, speeds
from slurm_hadar import policies
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.sandbox.layout import NodeGroup
from slurm_hadar.sandbox.pacing import true_rates
from slurm_hadar.scheduling.slurm_schedulers import SchedulerLimits
from slurm_hadar.simulator import cluster as clusters
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.estimates import Estimates
from slurm_hadar.simulator.outcome import Outcome
from slurm_hadar.simulator.queue.engine import simulate
from slurm_hadar.simulator.queue.requests import Drawn
from slurm_hadar.simulator.queue.setting import SimulationSetting, SteeringSetting
from slurm_hadar.simulator.workload import Queued, Workload

Rates = Mapping[str, Mapping[str, float]]
"""Model -> GPU type -> samples/s of one GPU."""
PLAIN = "plain"
POLICIES = ("hadar", "timetable", "gavel_las")
SECONDS, GAP_S = (20.0, 25.0), 2.4
"""How long a training takes on its fastest type by the table, and between two arrivals, s."""
SCALE = 20.0
"""Seconds of a site in one second of the sandbox."""
TICK_S, STAY_S, CYCLE_S = 60.0 / SCALE, 600.0 / SCALE, 60.0 / SCALE
MOVE_S = 2.0
"""From the requeue of a moved job, until which it trains, to its next start, s: 1.6 to 1.8 s by
docs/optin.md, and the start of the process."""
DRAWS = 15
"""Simulations for the makespan."""
PART = 0.95
"""Of the work: what is left then is the last jobs."""
# Slurm's 3 s for batch_sched_delay would be a minute here, in which freed GPUs are gathered.
_LINES = (
    *EQUAL,
    f"SchedulerParameters=bf_interval={CYCLE_S:g},sched_interval={CYCLE_S:g},batch_sched_delay=0",
)
_SETTINGS: dict[str, dict[str, str | float]] = {
    "controller": {"interval_s": TICK_S, "round_s": TICK_S},
    "guards": {"min_between_moves_s": STAY_S, "gain_over_cost": 2.0},
}


def draw(seed: int, jobs: int) -> list[Spec]:
    """So many trainings, about equally long, or the chance of where the longest one runs would be
    the makespan; a third waits at once, the others come one in 2.4 s."""
    dice = random.Random(f"live and simulated/{seed}")
    found, at = [], 0.0
    for number in range(jobs):
        at += dice.expovariate(1 / GAP_S) if number > jobs // 3 else 0.0
        model = dice.choice(sorted(MODELS))
        rates = speeds(model)
        seconds = dice.uniform(*SECONDS)
        samples = int(max(rates.values()) * seconds)
        longest = samples / min(rates.values()) / 0.75 + RESTART_S
        found.append(
            Spec(
                name=f"job{number}",
                kind=TRAINING,
                user=dice.choice(list(USERS)),
                arrival_s=at,
                seconds=seconds,
                limit_min=1 + int(longest * dice.uniform(1.2, 3.0) / 60 + 0.999),
                rank=0.0,
                model=model,
                samples=samples,
            )
        )
    return found


@dataclass(frozen=True)
class Besides:
    """What jobs of a plain run cost besides their training, s: ``over``, for how much longer each
    held its GPU; ``gaps``, for how long GPUs were free before."""

    over: Sequence[float]
    gaps: Sequence[float]

    @property
    def median_s(self) -> float:
        """Of one job."""
        return float(np.median(self.over) + np.median(self.gaps))

    def drawn(self, seed: int, jobs: int) -> FloatArray:
        """(J, 1) s of each job."""
        dice = np.random.default_rng([seed, jobs])
        found: FloatArray = dice.choice(self.over, (jobs, 1)) + dice.choice(self.gaps, (jobs, 1))
        return found


@dataclass(frozen=True)
class Trace:
    """The jobs on the sandbox of ``seed``."""

    seed: int
    specs: Sequence[Spec]

    def live(self, policy: str, again: bool = False) -> Run:
        """How it runs on a real Slurm; ``again``: for the second time."""
        managed = policy != PLAIN
        chosen: dict[str, str | float] = {"policy": policy} if managed else {}
        settings = {**_SETTINGS, "controller": {**_SETTINGS["controller"], **chosen}}
        sent = [(spec, managed) for spec in self.specs]
        label = f"{policy} again" if again else policy
        return Run(label, self.seed, float(managed), sent, _LINES, settings)

    def simulated(self, policy: str, besides: Besides, seed: int | None = None) -> Outcome:
        """What the simulator says. ``besides``: each job holds its GPU for the median of it without
        training, or with a ``seed`` for what that draws."""
        jobs, median_s = len(self.specs), np.full((len(self.specs), 1), besides.median_s)
        work = self._workload(median_s if seed is None else besides.drawn(seed, jobs))
        # As live: hbatch and the controller know the shipped table, which is off by up to 25%, the
        # controller corrects it by what the jobs report, and neither knows of other costs.
        none = np.zeros((jobs, 1))
        estimates = Estimates(self._rates(_table(), none), work.total, known=True)
        gpus = {group.gpu_type: group.count * group.gpus for group in _groups()}
        cluster = clusters.build(gpus, 2)
        steering = SteeringSetting(tick_s=TICK_S, min_between_moves_s=STAY_S)
        setting = SimulationSetting(
            work,
            cluster,
            Drawn(),
            SchedulerLimits(interval_s=CYCLE_S),
            Costs(restart_s=RESTART_S + MOVE_S),
            steering,
            estimates,
            reports=self._rates(_true(self.seed), none),
        )
        return simulate(setting, policies.get(policy) if policy != PLAIN else None, policy)

    def _workload(self, besides_s: FloatArray) -> Workload:
        kinds, jobs = tuple(group.gpu_type for group in _groups()), len(self.specs)
        rate = self._rates(_true(self.seed), besides_s)
        total = self._total()
        ones = np.ones(jobs, dtype=np.int64)
        return Workload(
            name="live and simulated",
            types=kinds,
            counts=(1,),
            ids=tuple(s.name for s in self.specs),
            arrival_s=np.array([s.arrival_s for s in self.specs]),
            request=ones,
            total=total,
            rate=rate,
            weight=np.ones(jobs),
            models=tuple(s.model for s in self.specs),
            max_nodes=ones,
            cpus_per_gpu=np.zeros(jobs),
            mem_per_gpu_mb=np.zeros(jobs),
            queue=Queued(
                ones,
                np.ones((jobs, len(kinds)), dtype=np.bool_),
                np.array([60.0 * s.limit_min for s in self.specs]),
                np.zeros(jobs),
                tuple(s.user for s in self.specs),
                tuple(USERS[s.user] for s in self.specs),
            ),
        )

    def _total(self) -> FloatArray:
        return np.array([spec.samples for spec in self.specs], dtype=np.float64)

    def _rates(self, rates: Rates, besides_s: FloatArray) -> FloatArray:
        """(J, R, 1) samples/s. The (J, 1) s without training are time at no work: the same on every
        type."""
        kinds = [group.gpu_type for group in _groups()]
        alone = np.array([[rates[s.model][kind] for kind in kinds] for s in self.specs])
        total = self._total()[:, None]
        found: FloatArray = (total / (total / alone + besides_s))[:, :, None]
        return found

    def besides(self, plain: RunRecord) -> Besides:
        """What real jobs held their GPUs for without training, and the gaps to the next jobs."""
        true = _true(self.seed)
        over = []
        for spec in self.specs:
            (attempt,) = plain.by_name()[spec.name].attempts
            kind = plain.nodes[attempt.node][0]
            trained = spec.samples / true[spec.model][kind]
            over.append(attempt.end_s - attempt.start_s - trained)
        return Besides(over, [one.seconds for one in refills(plain)])

    def done_s(self, ends: FloatArray) -> FloatArray:
        """The makespan, and when jobs with 95% of the work have ended, s. A job's work is its time
        on its fastest type; ``ends``: (J,) s."""
        true = _true(self.seed)
        work = np.array([spec.samples / max(true[spec.model].values()) for spec in self.specs])
        order = np.argsort(ends)
        part = np.cumsum(work[order]) / work.sum()
        return np.array([ends.max(), ends[order][np.searchsorted(part, PART)]])


def _table() -> Rates:
    return {model: speeds(model) for model in MODELS}


def _true(seed: int) -> Rates:
    """The sandbox's own speeds."""
    return {
        model: {kind: by_count["1"] for kind, by_count in kinds.items()}
        for model, kinds in true_rates(base_rates(), seed).items()
    }


def _groups() -> list[NodeGroup]:
    """In the order in which Slurm takes nodes of equal weight for a job that names no type."""
    return sorted(LAYOUT.groups, key=lambda group: group.prefix)


def times(record: RunRecord, specs: Sequence[Spec]) -> FloatArray:
    """(J,) s from each job's arrival to its end."""
    jobs = record.by_name()
    return np.array([jobs[spec.name].end_s - spec.arrival_s for spec in specs])


def jobs_line(name: str, live: FloatArray, expected: FloatArray) -> str:
    """A row of the table of the jobs' times, (J,) s."""
    off = np.abs(live - expected) / expected
    return (
        f"{name:16} {live.mean():7.1f} {expected.mean():7.1f}"
        f" {live.mean() / expected.mean() - 1:+6.1%}"
        f"  {np.median(off):6.1%} {np.percentile(off, 90):6.1%} {off.max():6.1%}"
    )


def done_line(name: str, live: FloatArray, expected: FloatArray) -> str:
    """A row of the table of makespan and :data:`PART` of the work. ``live``: (2,) s;
    ``expected``: (N, 2) s of N runs."""
    cells = []
    for measured, runs in zip(live, expected.T, strict=True):
        middle = float(np.median(runs))
        spread = f"{runs.min():.0f} to {runs.max():.0f}" if len(runs) > 1 else ""
        cells.append(f"{measured:8.1f} {middle:7.1f} {measured / middle - 1:+6.1%} {spread:>10}")
    return f"{name:16} {'  '.join(cells)}"


def tables(trace: Trace, ran: Mapping[tuple[str, bool], RunRecord]) -> Iterator[str]:
    """The lines of both tables. ``ran``: (policy, whether for the second time) -> its run."""
    besides = trace.besides(ran[PLAIN, False])
    arrival = np.array([spec.arrival_s for spec in trace.specs])
    live = {row: times(record, trace.specs) for row, record in ran.items()}
    done = {row: trace.done_s(found + arrival) for row, found in live.items()}
    names = {row: f"{row[0]} again" if row[1] else row[0] for row in ran}
    loads = ", ".join(f"{names[row]} {record.load:.1f}" for row, record in ran.items())
    yield f"{len(arrival)} jobs, seed {trace.seed}; {besides.median_s:.2f} s a job besides training"
    yield f"load: {loads}"
    if any(again for _, again in ran):
        yield "again: a second live run, and the first one in the place of the simulator"
    yield (f"{'policy':16} {'live s':>7} {'simul.':>7} {'off':>6}  {'jobs: median, 90%, most':>20}")
    for (policy, again), found in live.items():
        first = live[policy, False] if again else trace.simulated(policy, besides).jct_s
        yield jobs_line(names[policy, again], found, first)
    each = f"{'simul.':>7} {'off':>6} {'of ' + str(DRAWS):>10}"
    yield f"{'policy':16} {'makespan':>8} {each}  {f'{PART:.0%} done':>8} {each}"
    for (policy, again), at in done.items():
        if again:
            expected = done[policy, False][None, :]
        else:
            drawn = (trace.simulated(policy, besides, seed).finish_s for seed in range(DRAWS))
            expected = np.array([trace.done_s(ends) for ends in drawn])
        yield done_line(names[policy, again], at, expected)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it live and in the simulator, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", nargs="+", default=list(POLICIES))
    parser.add_argument("--again", action="store_true", help="each live run twice")
    parser.add_argument("--side-by-side", type=int, default=1, help="sandboxes at a time")
    parser.add_argument("--keep", type=Path, help="records, logs and journals; read again if there")
    args = parser.parse_args(argv)
    trace = Trace(args.seed, draw(args.seed, args.jobs))
    rows = [(policy, False) for policy in (PLAIN, *args.policy)]
    rows += [(policy, True) for policy, _ in rows if args.again]
    stop = threading.Event()

    def found(row: tuple[str, bool]) -> RunRecord:
        run = trace.live(*row)
        if args.keep and (args.keep / run.file_name).exists():
            return records.read(args.keep / run.file_name)
        return carry_out(run, args.keep, stop)

    try:
        refuse()
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(args.side_by_side) as pool:
            ran = dict(zip(rows, pool.map(found, rows), strict=True))
    except (HadarError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for line in tables(trace, ran):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
