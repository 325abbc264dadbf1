"""A job moves only to CPUs and memory that are free beside the GPUs."""

from dataclasses import replace

from hand_made import config, decide, job, node, observation

from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.placement import Placement

RANGE = Declaration(types=("any",), cpus=(1, 12), mem=(1024, 8192), checkpoint="yes")
GB = 1024


def runs(id_, where="v1", **more):
    usual = {"cpus": 3, "cpus_per_task": 3, "mem_per_node_mb": 4 * GB, "declaration": RANGE}
    gpus = {where: {"v100" if where[0] == "v" else "k80": 1}}
    return job(id_, JobState.RUNNING, nodes=(where,), gpus=gpus, **{**usual, **more})


def on_v1(cpus, mem=4 * GB):
    return Placement({"v100": 1}, {"v1": {"v100": 1}}, cpus_per_gpu=cpus, mem_per_gpu_mb=mem)


def look(jobs, **v1):
    """``v1``: what else is used on that node of 8 GPUs, 24 CPUs and 48 GB."""
    here = [one for one in jobs if "v1" in one.gpus]
    usual = {
        "cpus": 24,
        "memory_mb": 48 * GB,
        "gpus_used": {"v100": len(here)},
        "cpus_used": sum(one.cpus for one in here),
        "memory_used_mb": sum(one.mem_per_node_mb for one in here),
    }
    return observation(jobs, [node("v1", 8, **{**usual, **v1}), node("k1", 8, cpus_used=3)])


def moved(intended):
    return {action.job.id for action in intended.actions}


def test_it_waits_for_cpus_that_another_job_still_has():
    jobs = [runs("1"), runs("2", cpus=12, cpus_per_task=12)]
    want = {"1": on_v1(12), "2": on_v1(3)}
    # Nine are free and three are its own; the other one gives its nine only now.
    assert moved(decide(look(jobs), want)) == {"1", "2"}
    found = decide(look(jobs, cpus_used=16), want)
    assert moved(found) == {"2"} and "CPUs or the memory" in found.deferred["1"]
    preempts = config("").model_copy(
        update={"guards": config("").guards.model_copy(update={"preempt": True})}
    )
    assert moved(decide(look(jobs, cpus_used=16), want, preempts)) == {"1", "2"}


def test_what_one_move_takes_the_next_one_does_not_find():
    jobs = [runs("1"), runs("2")]
    found = decide(look(jobs, cpus_used=12), {"1": on_v1(12), "2": on_v1(12)})
    assert moved(found) == {"1"} and set(found.deferred) == {"2"}
    assert moved(decide(look(jobs), {"1": on_v1(12), "2": on_v1(12)})) == {"1", "2"}


def test_memory_counts_as_well():
    jobs = [runs("1")]
    want = {"1": on_v1(3, 8 * GB)}
    assert moved(decide(look(jobs), want)) == {"1"}
    found = decide(look(jobs, memory_used_mb=47 * GB), want)
    assert not found.actions and set(found.deferred) == {"1"}


def test_another_place_needs_the_whole_of_it():
    here = runs("1", "k1")
    assert moved(decide(look([here]), {"1": on_v1(3)})) == {"1"}
    assert not decide(look([here], cpus_used=22), {"1": on_v1(3)}).actions
    per_cpu = replace(here, mem_per_node_mb=0, mem_per_cpu_mb=2 * GB)
    more = {"1": on_v1(3, 6 * GB)}
    assert moved(decide(look([per_cpu]), more)) == {"1"}
    assert not decide(look([per_cpu], memory_used_mb=43 * GB), more).actions


def test_less_is_always_there():
    jobs = [runs("1", cpus=12, cpus_per_task=12)]
    assert moved(decide(look(jobs, cpus_used=30), {"1": on_v1(3)})) == {"1"}
