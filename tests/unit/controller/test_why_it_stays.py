"""A policy says that a job cannot be moved now: the controller says why."""

from dataclasses import replace
from typing import Any

import pytest
from hand_made import CONFIG, NOW, job, look, nodes, observation, ordinary, running

from slurm_hadar import policies
from slurm_hadar.controller.decider import Decider
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.node import Reservation

DECLARED = Declaration(types=("any",), checkpoint="yes", model="ResNet-50", gpus=(1, 1))
TWO = GpuRequest(per_node={UNTYPED: 2})


class Store:
    def policy_state(self, policy):
        return {}


def planned(shown, policy="timetable"):
    store: Any = Store()
    return Decider(CONFIG, None, store, None, policies.get(policy)).ask(shown).plan


def reason(one):
    shown = look(observation([one]))
    assert shown.staying == {}
    return planned(shown).placements["1"].reason


@pytest.mark.parametrize(
    ("where", "declared", "request_", "why"),
    [
        (
            {"k1": {"k80": 2}},
            DECLARED,
            TWO,
            "it has 2 GPUs and gpus=1 is declared; hadar set 1 gpus=2",
        ),
        (
            {"k1": {"k80": 1}, "v1": {"v100": 1}},
            replace(DECLARED, gpus=None, nodes=(1, 2)),
            GpuRequest(per_job={UNTYPED: 2}),
            "its nodes have GPUs of different types (1 x k80 and 1 x v100)",
        ),
    ],
)
def test_why_a_job_stays_that_has_what_it_may_not_ask_for(where, declared, request_, why):
    one = running("1", where, declaration=declared, request=request_, time_limit_s=1e9)
    assert reason(one).endswith(f"; it cannot be moved now: {why}")


def test_a_job_that_declares_its_work_is_not_called_one_of_unknown_work():
    for samples, says in ((0, "Its work is not known"), (50_000, "Its speed is not known")):
        declared = replace(DECLARED, model="never_measured", samples=samples)
        said = reason(running("1", {"k1": {"k80": 1}}, declaration=declared))
        assert says in said
        assert ("end unknown until its speed is measured" in said) == (samples > 0)


BUSY = [replace(one, gpus_used=one.gpus, cpus_used=2) for one in nodes()]
ASLEEP = replace(nodes()[5], state="IDLE+POWERED_DOWN", asleep=True)
DRAINED = [replace(one, state="IDLE+DRAIN", usable=False) for one in nodes()]


@pytest.mark.parametrize("policy", ["timetable", "hadar", "ones"])
@pytest.mark.parametrize(
    ("there", "says"),
    [
        (BUSY, "all GPUs are busy with jobs that slurm-hadar cannot move"),
        (
            [*BUSY[:5], DRAINED[5]],
            "all GPUs are busy with jobs that slurm-hadar cannot move; 1 of 6 nodes with GPUs is "
            "down, drained or otherwise closed to new jobs (sinfo -R)",
        ),
        (
            DRAINED,
            "all nodes with GPUs are down, drained or otherwise closed to new jobs (sinfo -R)",
        ),
        (
            [*BUSY[:5], ASLEEP],
            "all GPUs are busy with jobs that slurm-hadar cannot move; 1 of 6 nodes with GPUs is "
            "powered down or booting (Slurm wakes nodes)",
        ),
    ],
    ids=["busy", "busy and drained", "drained", "busy and asleep"],
)
def test_why_no_gpu_is_there_for_any_job(policy, there, says):
    plan = planned(look(observation([job("1")], there)), policy)
    assert plan.waiting == {"1": says} and plan.notes == (says,)


def test_no_job_moves_to_a_node_that_has_to_boot():
    here = running("1", {"k1": {"k80": 1}}, declaration=DECLARED, start_s=NOW - 3600)
    there = [replace(one, asleep=one.name[0] != "k") for one in nodes(k1=1)]
    awake = planned(look(observation([here], nodes(k1=1))), "timetable")
    assert "k80" not in awake.placements["1"].gpus
    assert planned(look(observation([here], there)), "timetable").placements["1"].gpus == {"k80": 1}


K80 = Declaration(types=("k80",), checkpoint="yes", model="ResNet-50")


@pytest.mark.parametrize("policy", ["timetable", "hadar"])
@pytest.mark.parametrize(
    ("there", "says"),
    [
        (
            [*nodes()[:4], *DRAINED[4:]],
            "all nodes with GPUs of k80 are down, drained or otherwise closed to new jobs "
            "(sinfo -R)",
        ),
        (
            [*nodes()[:4], *BUSY[4:]],
            "all GPUs of k80 are busy with jobs that slurm-hadar cannot move",
        ),
        (
            [*nodes()[:4], BUSY[4], DRAINED[5]],
            "all GPUs of k80 are busy with jobs that slurm-hadar cannot move; 1 of 2 nodes with "
            "GPUs of k80 is down, drained or otherwise closed to new jobs (sinfo -R)",
        ),
    ],
    ids=["drained", "busy", "both"],
)
def test_why_no_gpu_of_the_accepted_types_is_there(policy, there, says):
    shown = look(observation([job("1", declaration=K80)], there))
    assert planned(shown, policy).waiting == {"1": says}


def test_gpus_that_are_reserved_or_kept_for_a_job_ahead_are_not_called_busy():
    there = nodes()[:1]
    ahead = ordinary("9", priority=2000, request=GpuRequest(per_node={UNTYPED: 2}))
    assert planned(look(observation([job("1"), ahead], there))).waiting["1"] == (
        "the GPUs that are free are kept for jobs ahead in the queue"
    )
    kept = [Reservation("course", ("v1",), NOW - 60, NOW + 600)]
    assert planned(look(observation([job("1")], there, reservations=kept))).waiting["1"] == (
        "all nodes with GPUs are reserved (scontrol show reservation)"
    )
