"""Idle nodes train between short jobs of a higher priority: how much, and at what cost to these.

``python -m benchmarks.backfill --seconds 540``

Two sandboxes side by side get the same stream of short ordinary jobs, which leaves gaps on every
node; in one of them trainings wait for idle nodes and a controller ticks. Printed are the share of
the idle GPU-seconds (in gaps longer than the measured start-up) that became training, the number of
evictions, and the start delays of the ordinary jobs (submit to first line of the script) in both.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from slurm_hadar import config as configuration
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.declaration import merge, parse
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange.progress import Progress, read_all_progress
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import open_cluster
from slurm_hadar.slurm.hosts import expand

ROOT = Path(__file__).parents[1]
MODEL = "paced"


@dataclass(frozen=True)
class Short:
    """One ordinary job: submitted at ``at_s`` from the beginning, ``nodes`` for ``seconds``."""

    at_s: float
    nodes: int
    seconds: float


@dataclass
class Ran:
    """What became of the stream in one sandbox. ``delays`` in s; ``busy``: node -> (start, end)."""

    delays: list[float] = field(default_factory=list)
    busy: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Delays:
    """Start delays of the ordinary jobs, s."""

    median_s: float
    p95_s: float
    most_s: float
    all_s: list[float]

    @classmethod
    def of(cls, delays: Sequence[float]) -> "Delays":
        """Their distribution."""
        ordered = sorted(delays)
        p95 = ordered[round(0.95 * (len(ordered) - 1))]
        return cls(statistics.median(ordered), p95, ordered[-1], [round(d, 2) for d in delays])


def stream(seconds: float, nodes: int, gap_s: float, seed: int) -> list[Short]:
    """Short jobs of one or two nodes, so often that a node is free for about ``gap_s`` between
    two of them."""
    draw = random.Random(seed)
    found, at = [], 20.0
    while at < seconds - 30:
        wide = 2 if draw.random() < 0.2 else 1
        length = draw.uniform(5, 12)
        found.append(Short(at, wide, length))
        # Each job takes ``wide`` of the nodes' cycles of one job and one gap.
        at += draw.uniform(0.6, 1.4) * (gap_s + length) * wide / nodes
    return found


def submit_stream(
    box: Sandbox, folder: Path, jobs: Sequence[Short], began: float, ran: Ran
) -> None:
    """Submit on time; each job writes when and where it ran."""
    folder.mkdir()
    sent = []
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began + job.at_s - time.time()))
        note = folder / str(number)
        script = (
            f'#!/bin/bash\necho "$(date +%s.%N) $SLURM_JOB_NODELIST" > {note}.start\n'
            f"sleep {job.seconds:.1f}\ndate +%s.%N > {note}.end\n"
        )
        at = time.time()
        box.run(
            "sbatch", "--parsable", f"-N{job.nodes}", "--gres=gpu:1", "-o/dev/null", text=script
        )
        sent.append((note, at))
    time.sleep(max(0.0, began + max(j.at_s + j.seconds for j in jobs) + 12 - time.time()))
    for note, at in sent:
        first = Path(f"{note}.start").read_text().split()
        start, end = float(first[0]), float(Path(f"{note}.end").read_text())
        ran.delays.append(start - at)
        for node in expand(first[1]):
            ran.busy.setdefault(node, []).append((start, end))


class Trainers:
    """The trainings in one sandbox, and the controller that gives them idle nodes."""

    def __init__(self, box: Sandbox, folder: Path, count: int, most: int) -> None:
        self.box, self.count = box, count
        self.config = configuration.load(box.config_path)
        self.cluster = open_cluster(self.config.slurm)
        self.ids = [self._submit(folder / f"t{i}", most) for i in range(count)]
        self.started: dict[tuple[str, int], float] = {}
        self.start_ups: list[float] = []
        self.failures = 0

    def _submit(self, folder: Path, most: int) -> str:
        folder.mkdir()
        declared = parse(
            f"model={MODEL} types=any batch=8 samples=1e7 checkpoint=yes backfill=yes "
            f"nodes=1-{most} restart_cost=10".split(),
            "the benchmark",
        )
        script = (
            "#!/bin/bash\ntrap '' USR2\n"
            f"exec {sys.executable} -m slurm_hadar.runtime.copies_launch -- {sys.executable} "
            f"{ROOT}/examples/train_copies.py --model {MODEL} --batch 8 --samples 10000000 "
            f"--round 3 --lr 0.001 --checkpoint {folder}/c.pt --data {folder.parent}/digits.npy\n"
        )
        export = f"ALL,HADAR_EXCHANGE={self.box.exchange},HADAR_CONTROLLER_UID={os.getuid()}"
        export += ",HADAR_PROGRESS_S=0.5,OMP_NUM_THREADS=1"
        return self.box.run(
            "sbatch",
            "--parsable",
            "-pidle",
            "--ntasks-per-node=1",
            "--gres=gpu:1",
            "--requeue",
            "--open-mode=append",
            f"-o{folder}/out",
            f"--export={export}",
            f"--comment={merge('', declared)}",
            text=script,
        ).strip()

    def run(self, until: float, interval_s: float) -> None:
        """Tick until a time, in the way of ``hadar run``."""
        store = Store.open(self.config.site.state_dir)
        rates = open_rates(self.config, store.connection)
        controller = Controller(self.config, self.cluster, store, rates, os.getuid())
        while time.time() < until:
            began = time.monotonic()
            try:
                seen = controller.tick().observation
                self._note({i: seen.jobs[i] for i in self.ids if i in seen.jobs}, seen.progress)
            except HadarError as error:
                self.failures += 1
                print(f"a tick failed: {error}", file=sys.stderr)
            time.sleep(max(0.05, interval_s - (time.monotonic() - began)))
        store.close()

    def _note(self, jobs: Mapping[str, Job], progress: Mapping[str, Progress]) -> None:
        for id_, job in jobs.items():
            if job.state is JobState.RUNNING:
                self.started.setdefault((id_, job.restarts), job.start_s)
            found = progress.get(id_)
            if found is None:
                continue
            key = (id_, found.restarts)
            begun = self.started.get(key, 0.0)
            if begun > 0 and found.rate > 0:
                # The rate shows after a window; the process says when its training began.
                self.start_ups.append(max(0.0, found.started - begun))
                self.started[key] = -1.0

    def samples(self) -> int:
        """Samples in the lineages now."""
        found = read_all_progress(
            self.config.site.exchange_dir, dict.fromkeys(self.ids, os.getuid())
        )
        return sum(one.samples for one in found.values())

    def evictions(self) -> tuple[int, int]:
        """Requeues by Slurm, and moves of ours."""
        jobs = self.cluster.read_jobs(self.ids)
        store = Store.open(self.config.site.state_dir)
        moves = sum(entry.outcome == "moved" for i in self.ids for entry in store.history(i, 1000))
        store.close()
        return sum(job.restarts for job in jobs) - moves, moves


def gaps(
    busy: Mapping[str, Sequence[tuple[float, float]]],
    names: Sequence[str],
    begin: float,
    end: float,
) -> list[float]:
    """Lengths of the times in which a node had no ordinary job, s."""
    found = []
    for name in names:
        at = begin
        for start, stop in sorted(busy.get(name, [])):
            if start > at:
                found.append(min(start, end) - at)
            at = max(at, stop)
        if end > at:
            found.append(end - at)
    return [length for length in found if length > 0]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--nodes", type=int, default=6, help="of one GPU each")
    parser.add_argument("--trainers", type=int, default=6)
    parser.add_argument("--most", type=int, default=2, help="nodes of one training")
    parser.add_argument("--gap", type=float, default=90.0, help="s that a node is free, about")
    parser.add_argument("--interval", type=float, default=1.0, help="s between ticks")
    parser.add_argument("--rate", type=float, default=40.0, help="samples/s of a node")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slurm", type=Path, help="prefix of another Slurm")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    layout = Layout((NodeGroup("v", args.nodes, "v100", 1),))
    jobs = stream(args.seconds, args.nodes, args.gap, args.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hadar-backfill-")))
        table = folder / "speeds.json"
        rows = [[MODEL, "v100", 1, 8, args.rate, None]]
        table.write_text(json.dumps({"version": 1, "source": "benchmark", "rows": rows}))
        options = SandboxOptions(
            base_rates={MODEL: {"v100": {1: args.rate}}},
            settings={
                "backfill": {"enabled": True, "partitions": ("idle",)},
                "profiles": {"tables": (str(table),)},
            },
        )
        with_ = stack.enter_context(
            Sandbox.up(folder / "with", layout, args.slurm, replace(options, mode="act"))
        )
        without = stack.enter_context(Sandbox.up(folder / "without", layout, args.slurm, options))
        content = json.loads(with_.true_rates.read_text())
        content["rates"] = {MODEL: {"v100": {"1": args.rate}}}
        with_.true_rates.write_text(json.dumps(content))
        trainers = Trainers(with_, folder, args.trainers, args.most)
        began = time.time()
        end = began + args.seconds
        results = {"with": Ran(), "without": Ran()}
        threads = [
            threading.Thread(
                target=submit_stream, args=(box, folder / f"s-{key}", jobs, began, ran)
            )
            for (key, ran), box in zip(results.items(), (with_, without), strict=True)
        ]
        threads.append(threading.Thread(target=trainers.run, args=(end, args.interval)))
        for thread in threads:
            thread.start()
        time.sleep(max(0.0, end - time.time()))
        samples, ended = trainers.samples(), time.time()
        for thread in threads:
            thread.join()
        evictions, moves = trainers.evictions()
    start_up = statistics.median(trainers.start_ups)
    names = [f"v{n}" for n in range(1, args.nodes + 1)]
    idle = gaps(results["with"].busy, names, began, ended)
    long = [gap for gap in idle if gap > start_up]
    trained_s = samples / args.rate
    delays = {key: Delays.of(ran.delays) for key, ran in results.items()}
    result = {
        "short_jobs": len(jobs),
        "evictions": evictions,
        "moves": moves,
        "start_up_median_s": start_up,
        "gaps": len(idle),
        "gap_median_s": statistics.median(idle),
        "idle_gpu_s": sum(idle),
        "idle_in_long_gaps_gpu_s": sum(long),
        "trained_gpu_s": trained_s,
        "share": trained_s / sum(long),
        "delays": {key: asdict(found) for key, found in delays.items()},
        "more_at_the_median_s": delays["with"].median_s - delays["without"].median_s,
        "more_at_the_p95_s": delays["with"].p95_s - delays["without"].p95_s,
        "failed_ticks": trainers.failures,
    }
    if args.json:
        print(json.dumps({"version": 1, "command": "benchmarks.backfill", "result": result}))
        return
    print(
        f"{len(jobs)} short jobs, {evictions} evictions, {moves} moves; start-up of a training "
        f"{start_up:.1f} s (median), gaps of {result['gap_median_s']:.0f} s (median)"
    )
    print(
        f"trained {trained_s:.0f} of {sum(long):.0f} idle GPU-seconds in gaps longer than that: "
        f"{100 * trained_s / sum(long):.1f}%"
    )
    for key, found in delays.items():
        print(
            f"start delay {key} backfill: median {found.median_s:.2f} s, "
            f"95% {found.p95_s:.2f} s, most {found.most_s:.2f} s"
        )


if __name__ == "__main__":
    main()
