"""CPUs and memory of pretend nodes: counted where the cluster has them, refused where too many."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pretend import machines, on, scripted, work

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.traits import CpuTrait
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate


def two_jobs(**more):
    """Each on one of the four GPUs of a node; they ask for 2 CPUs and 1,000 MB per GPU."""
    return replace(work([[[1.0], [0.0]]] * 2), **more)


def counting(cpus=3, mem=1500):
    return replace(machines("fast=4,slow=1"), cpus_per_gpu=cpus, mem_per_gpu_mb=mem)


def run(jobs, cluster, **script):
    plan = {0.0: script}
    return simulate(jobs, cluster, scripted(plan), RoundSetting(clock=Clock(100.0)))


def test_what_fits_is_taken_and_given_back():
    jobs = two_jobs(arrival_s=np.array([0.0, 2000.0]))
    out = run(
        jobs, counting(), j0=on("fast", cpus_per_gpu=12.0, mem_per_gpu_mb=6000),
        j1=on("fast", cpus_per_gpu=12.0, mem_per_gpu_mb=6000),
    )  # fmt: skip
    assert out.finished == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"cpus_per_gpu": 11.0}, "11 CPUs on fast-1, where 10 are free"),
        ({"mem_per_gpu_mb": 5001}, "5001 MB of memory on fast-1, where 5000 are free"),
        ({"cpus_per_gpu": -1.0}, "-1 CPUs"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_more_than_there_is_is_refused(more, said, named):
    nodes: dict[str, Any] = {"nodes": {"fast-1": {"fast": 1}}} if named else {}
    if not named and "are free" in said:
        said = "1 more than are free with its CPUs and memory"
    with pytest.raises(HadarError, match=said):
        run(two_jobs(), counting(), j0=on("fast", **nodes), j1=on("fast", **more, **nodes))


def test_what_a_job_asks_for_counts_where_the_plan_says_nothing():
    jobs = two_jobs(cpus_per_gpu=np.array([7.0, 7.0]))
    with pytest.raises(HadarError, match="1 more than are free"):
        run(jobs, counting(), j0=on("fast"), j1=on("fast"))
    assert run(jobs, counting(cpus=0), j0=on("fast"), j1=on("fast")).finished == 2
    assert run(jobs, machines("fast=4,slow=1"), j0=on("fast"), j1=on("fast")).finished == 2


def test_a_loose_placement_goes_where_there_are_cpus():
    cluster = replace(machines("fast=8,slow=1"), cpus_per_gpu=3, mem_per_gpu_mb=1500)
    jobs = two_jobs()
    out = run(jobs, cluster, j0=on("fast", cpus_per_gpu=12.0), j1=on("fast", cpus_per_gpu=12.0))
    assert out.finished == 2 and out.makespan_s == pytest.approx(1000.0)


def test_other_cpus_change_the_speed_and_cost_a_restart():
    one = np.ones(1)
    trait = CpuTrait(
        np.array([1.0, 2.0, 4.0]), np.array([1000.0]), np.array([[[0.5], [1.0], [2.0]]]),
        one, 9 * one, one, 9000 * one,
    )  # fmt: skip
    jobs = replace(work([[[1.0], [0.0]]]), cpu_sensitivity=trait)
    seen = []

    def decide(view, state):
        seen.append(view.jobs.cpu_sensitivity.present_cpus.tolist())
        more: dict[str, Any] = {} if view.now < 250.0 else {"cpus_per_gpu": 4.0}
        return scripted({0.0: {"j0": on("fast", **more)}})(view, state)

    out = simulate(
        jobs, counting(), decide, RoundSetting(clock=Clock(100.0), costs=Costs(restart_s=50.0))
    )
    # 300 s at 1, a restart, then twice as fast: 300 + 50 + 350.
    assert out.makespan_s == pytest.approx(700.0) and out.moves.tolist() == [1]
    assert seen[:5] == [[0.0], [2.0], [2.0], [2.0], [4.0]]
