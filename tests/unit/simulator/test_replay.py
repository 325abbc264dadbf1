"""Gavel's own simulator, replayed on the traces that are shipped. Its figures: tests/data/gavel."""

import csv
from pathlib import Path

import numpy as np
import pytest

from slurm_hadar import policies
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.traces import open_trace

_FOLDER = Path(__file__).resolve().parents[2] / "data" / "gavel"
_THEIRS = {"gavel_las": "max_min_fairness_perf", "gavel_makespan": "min_total_duration_perf"}


@pytest.mark.parametrize("policy", _THEIRS)
@pytest.mark.parametrize(
    ("trace", "whole_steps"), [("trace_120", True), ("trace_120", False), ("trace_480", True)]
)
def test_gavels_figures_come_out_within_one_percent(
    trace: str, policy: str, whole_steps: bool
) -> None:
    pretend = cluster.parse("v100=20,p100=20,k80=20", "4")
    work = open_trace(trace, pretend.types)
    clock = Clock(360.0, whole_steps)
    out = simulate(work, pretend, policies.get(policy), RoundSetting(clock=clock))
    with (_FOLDER / f"{trace}__{_THEIRS[policy]}_jct.csv").open(newline="") as file:
        jct = {row["job_id"]: float(row["jct_s"]) for row in csv.DictReader(file)}
    theirs = np.array([jct[id_] for id_ in work.ids])
    assert out.finished == len(theirs)
    assert out.makespan_s == pytest.approx(theirs.max(), rel=0.01)
    if policy == "gavel_las":
        assert out.avg_jct_s == pytest.approx(theirs.mean(), rel=0.01)
        # Job by job too: who differs was swapped with a job just like him.
        off = np.abs(out.jct_s / theirs - 1)
        assert np.median(off) < 0.005
        assert np.percentile(off, 90) < 0.04
