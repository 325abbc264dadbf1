"""Gavel's own simulator replayed: our figures beside its figures, job by job.

``python -m benchmarks.replay [--json] [--traces FOLDER --results FOLDER]``

Without restart costs, on 20 V100 + 20 P100 + 20 K80 with 4 GPUs a node, rounds of 360 s of whole
steps. Exit 1 when an average JCT or makespan that is asked for is off by more than 1%. With the
folders of more traces and results of Gavel's (``TRACE__POLICY__20-20-20_jct.csv``) those too.
"""

import argparse
import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from slurm_hadar import policies
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.outcome import Outcome
from slurm_hadar.simulator.traces import open_trace

NAMES = {
    "gavel_las": "max_min_fairness_perf",
    "gavel_makespan": "min_total_duration_perf",
    "gavel_ftf": "finish_time_fairness_perf",
    "gavel_throughput": "max_sum_throughput_perf",
}
"""Our policy -> Gavel's name of it."""

TRACES = ("trace_120", "trace_480")
MORE = ("trace_480_hadarlike", "trace_480_poisson")
WITHIN = 0.01
_CLUSTER = "v100=20,p100=20,k80=20"
_RESULTS = Path(__file__).resolve().parents[1] / "tests" / "data" / "gavel"


@dataclass(frozen=True)
class Replay:
    """One trace under one policy. Differences are parts of Gavel's figure; ``job_*`` those of the
    single jobs' JCTs, without sign. ``asked``: which figures must be within 1%."""

    trace: str
    policy: str
    avg_jct_h: float
    gavel_avg_jct_h: float
    avg_off: float
    makespan_h: float
    gavel_makespan_h: float
    makespan_off: float
    job_off_median: float
    job_off_p90: float
    job_off_max: float
    not_compared: int
    """Jobs that Gavel dropped from its results."""
    wall_s: float
    cpu_s: float
    asked: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether what is asked for is there."""
        off = {"avg": self.avg_off, "makespan": self.makespan_off}
        return all(abs(off[name]) <= WITHIN for name in self.asked)


def replay(
    policy: str, trace: str, results: Path = _RESULTS, whole_steps: bool = True
) -> tuple[Replay, Outcome]:
    """Run one; ``trace``: a shipped one's name or a path."""
    pretend = cluster.parse(_CLUSTER, "4")
    work = open_trace(trace, pretend.types)
    began = time.process_time()
    out = simulate(
        work,
        pretend,
        policies.get(policy),
        RoundSetting(clock=Clock(360.0, whole_steps), options={"as_gavel": True}),
        policy=policy,
    )
    cpu_s = time.process_time() - began
    name = Path(trace).stem
    theirs = _jct(_file(results, name, policy))
    ours = dict(zip(work.ids, out.jct_s.tolist(), strict=True))
    off = np.array([abs(ours[id_] / jct - 1.0) for id_, (jct, _) in theirs.items()])
    avg = float(np.mean([jct for jct, _ in theirs.values()]))
    # Arrivals count from 0 there.
    last = max(finish for _, finish in theirs.values())
    shared = name in TRACES
    asked = {"gavel_las": ("avg", "makespan"), "gavel_makespan": ("makespan",)}
    return Replay(
        trace=name,
        policy=policy,
        avg_jct_h=out.avg_jct_s / 3600,
        gavel_avg_jct_h=avg / 3600,
        avg_off=out.avg_jct_s / avg - 1.0,
        makespan_h=out.makespan_s / 3600,
        gavel_makespan_h=last / 3600,
        makespan_off=out.makespan_s / last - 1.0,
        job_off_median=float(np.median(off)),
        job_off_p90=float(np.percentile(off, 90)),
        job_off_max=float(off.max()),
        not_compared=len(work.ids) - len(theirs),
        wall_s=out.wall_s,
        cpu_s=cpu_s,
        asked=asked.get(policy, ()) if shared else (),
    ), out


def _file(results: Path, trace: str, policy: str) -> Path:
    short = results / f"{trace}__{NAMES[policy]}_jct.csv"
    long = results / f"{trace}__{NAMES[policy]}__20-20-20_jct.csv"
    return short if short.exists() else long


def _jct(path: Path) -> dict[str, tuple[float, float]]:
    """Job -> (JCT, finish) in s, without those that Gavel dropped."""
    with path.open(newline="") as file:
        return {
            row["job_id"]: (float(row["jct_s"]), float(row["finish_s"]))
            for row in csv.DictReader(file)
            if row["jct_s"]
        }


def _table(found: Sequence[Replay]) -> str:
    head = (
        f"{'trace':<20} {'policy':<16} {'JCT h':>8} {'Gavel':>8} {'off':>7} {'makespan':>9}"
        f" {'Gavel':>8} {'off':>7}"
        f" {'per job: median':>16} {'p90':>6} {'max':>6} {'wall s':>7} {'CPU s':>6}"
    )
    lines = [head]
    for one in found:
        marks = "" if one.holds else "  more than 1% off"
        lines.append(
            f"{one.trace:<20} {one.policy:<16} {one.avg_jct_h:8.2f} {one.gavel_avg_jct_h:8.2f}"
            f" {one.avg_off:+7.2%} {one.makespan_h:9.2f} {one.gavel_makespan_h:8.2f}"
            f" {one.makespan_off:+7.2%} {one.job_off_median:16.2%} {one.job_off_p90:6.1%}"
            f" {one.job_off_max:6.0%} {one.wall_s:7.1f} {one.cpu_s:6.1f}{marks}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description="Gavel's simulator replayed.")
    parser.add_argument("--traces", type=Path, help="folder with more of Gavel's traces")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="Gavel's JCTs per job")
    parser.add_argument("--policy", action="append", choices=sorted(NAMES))
    parser.add_argument("--fractional", action="store_true", help="steps in parts, full rounds")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    traces = [*TRACES]
    if given.traces:
        traces += [str(given.traces / f"{name}.csv") for name in MORE]
    found = [
        replay(policy, trace, given.results, not given.fractional)[0]
        for trace in traces
        for policy in given.policy or NAMES
        if _file(given.results, Path(trace).stem, policy).exists()
    ]
    if given.json:
        print(json.dumps([asdict(one) | {"holds": one.holds} for one in found]))
    else:
        print(_table(found))
    sys.exit(0 if all(one.holds for one in found) else 1)


if __name__ == "__main__":
    main()
