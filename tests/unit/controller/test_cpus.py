"""CPUs and memory of a job that is moved: changed within what it allows, and given back."""

from dataclasses import replace

import pytest
from hand_made import CONFIG, RATES, config, job, look, nodes, observation, request_of

from slurm_hadar import policies
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.snapshot import cpus
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import GpuRequest, JobState
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering
from slurm_hadar.profiles.cpu_table import CpuTable

TABLE = CpuTable([("net", 1, c, g, float(c)) for c in (1, 8) for g in (1, 16)], "test")
RANGE = Declaration(model="net", cpus=(2, 8), mem=(1024, 8192))


def asked(declared=RANGE, gpus=1, **more):
    usual = {
        "request": GpuRequest(per_node={"": gpus}),
        "cpus": 4,
        "cpus_per_task": 4,
        "mem_per_node_mb": 4096,
    }
    return job(declaration=declared, **{**usual, **more})


def target(one):
    return SchedulableJob(one, request_of(one, Steering()))


def placed(cpus_per_gpu=8.0, mem=2048, gpus=1):
    return Placement({"v100": gpus}, cpus_per_gpu=cpus_per_gpu, mem_per_gpu_mb=mem)


@pytest.mark.parametrize(
    ("one", "fields"),
    [
        (asked(), ("8", "8-8", "8", "MinMemoryNode=2048")),
        (asked(gpus=2), ("16", "16-16", "16", "MinMemoryNode=4096")),
        (asked(tasks=3), ("2", "6-6", "2", "MinMemoryNode=2048")),
        (asked(mem_per_node_mb=0, mem_per_cpu_mb=1024), ("8", "8-8", "8", "MinMemoryCPU=256")),
        (asked(mem_per_node_mb=0), ("8", "8-8", "8", "")),
        (asked(replace(RANGE, mem=None)), ("8", "8-8", "8", "")),
        # Four GB for four CPUs stay four GB.
        (
            asked(replace(RANGE, mem=None), mem_per_node_mb=0, mem_per_cpu_mb=1024),
            ("8", "8-8", "8", "MinMemoryCPU=512"),
        ),
    ],
)
def test_the_fields_that_slurm_takes(one, fields):
    want = request_of(one, Steering())
    gpus = want.count
    found = cpus.changed_fields(one, want, placed(gpus=gpus))
    each, total, node, memory = fields
    expected = {"CPUsPerTask": each, "NumCPUs": total, "MinCPUsNode": node}
    if memory:
        name, _, value = memory.partition("=")
        expected[name] = value
    assert found == expected


@pytest.mark.parametrize(
    "one",
    [
        asked(Declaration(model="net")),
        asked(per_gpu=True),
        asked(node_count=2),
        asked(replace(RANGE, fork=(1, 4))),
        asked(request=GpuRequest(per_job={"": 1})),
    ],
)
def test_who_allows_nothing_keeps_his_request(one):
    want = request_of(one, Steering())
    assert not cpus.may_change(one, want)
    assert cpus.changed_fields(one, want, placed()) == {} and not cpus.differs(one, want, placed())
    assert cpus.trait([target(one)], TABLE, nodes()) is None


def test_what_was_changed_goes_back():
    one = asked()
    fields = job_updates.fields(target(one), placed(), observation([one], nodes()), CONFIG)
    was = job_updates.originals(one, fields, {})
    assert was["NumCPUs"] == "4-4" and was["CPUsPerTask"] == was["MinCPUsNode"] == "4"
    assert was["MinMemoryNode"] == "4096"
    steered = replace(one, cpus=8, cpus_per_task=8, mem_per_node_mb=2048)
    back = job_updates.undo_fields(steered, Steering(was=was))
    assert {key: back[key] for key in ("NumCPUs", "MinMemoryNode")} == {
        "NumCPUs": "4-4",
        "MinMemoryNode": "4096",
    }
    again = job_updates.fields(
        SchedulableJob(steered, request_of(one, Steering())),
        placed(),
        observation([steered], nodes()),
        CONFIG,
    )
    assert not {"NumCPUs", "MinMemoryNode", "CPUsPerTask", "MinCPUsNode"} & set(again)


def test_the_trait_tells_ranges_and_what_runs_now():
    running = asked(state=JobState.RUNNING, gpus=2, cpus=6, nodes=("v1",))
    running = replace(running, gpus={"v1": {"v100": 2}})
    unknown = asked(replace(RANGE, model="other"))
    found = cpus.trait([target(asked()), target(running), target(unknown)], TABLE, nodes())
    assert found is not None
    assert found.least_cpus.tolist() == [2.0, 2.0, 4.0]
    assert found.most_cpus.tolist() == [8.0, 8.0, 4.0]
    assert found.most_mem_mb.tolist() == [8192.0, 8192.0, 4096.0]
    assert found.present_cpus.tolist() == [0.0, 3.0, 0.0]
    assert found.at(0, 8.0, 4096.0) == pytest.approx(2.0)
    assert (found.factor[2] == 1.0).all()


def test_a_running_job_with_other_cpus_differs():
    one = asked(state=JobState.RUNNING)
    want = request_of(one, Steering())
    assert cpus.differs(one, want, placed())
    assert not cpus.differs(one, want, placed(4.0, 4096))
    assert cpus.differs(one, want, placed(4.0, 2048))
    assert not cpus.differs(one, want, Placement({"v100": 1}))


def test_whole_cores_for_odd_numbers_of_cpus_are_as_planned():
    """A node of two threads a core gives a job of 3 CPUs 4 of them, and the memory of 4."""
    plain = asked(state=JobState.RUNNING, cpus=4, cpus_per_task=3, mem_per_node_mb=2048)
    each = replace(plain, mem_per_node_mb=0, mem_per_cpu_mb=1024)
    assert not cpus.differs(plain, request_of(plain, Steering()), placed(3.0, 2048))
    assert not cpus.differs(each, request_of(each, Steering()), placed(3.0, 3072))
    assert cpus.differs(each, request_of(each, Steering()), placed(2.0, 3072))
    assert cpus.differs(each, request_of(each, Steering()), placed(3.0, 8192))


@pytest.mark.parametrize(
    "declared", [replace(RANGE, cpus=(64, 64)), replace(RANGE, mem=(10**9, 10**15))]
)
@pytest.mark.parametrize("policy", ["timetable", "synergy_tune", "synergy_opt"])
def test_what_no_node_has_keeps_nobody_from_a_place(monkeypatch, declared, policy):
    monkeypatch.setattr(RATES, "cpus", TABLE)
    one = asked(replace(declared, types=("any",)))
    observed, site = observation([one]), config(f'[controller]\npolicy = "{policy}"\n')
    shown = look(observed, site)
    plan, _ = policies.get(policy)(shown.view, {})
    fields = job_updates.fields(shown.schedulable["1"], plan.placements["1"], observed, site)
    assert "Features" in fields and not {"NumCPUs", "MinMemoryNode"} & set(fields)
