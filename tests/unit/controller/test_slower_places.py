"""``guards.slower_for``: for whose jobs a running job goes where it is slower."""

import pytest
from hand_made import CONFIG, decide, node, observation, running

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.placement import Placement

RESNET = Declaration(types=("any",), checkpoint="yes", model="resnet50", batch=(64, 64))
HERS = running("1", {"v1": {"v100": 1}}, uid=1000, account="phys", declaration=RESNET)
NODES = [
    node("v1", gpus=1, gpus_used={"v100": 1}),
    node("k1", gpus=1),
    node("k2", gpus=1, gpus_used={"k80": 1}),
]
AWAY = Placement({"k80": 1}, {"k1": {"k80": 1}})
THERE = Placement({"v100": 1}, {"v1": {"v100": 1}})


def site(slower_for):
    guards = CONFIG.guards.model_copy(update={"slower_for": slower_for})
    return CONFIG.model_copy(update={"guards": guards})


def moved(slower_for, other, want):
    found = decide(observation([HERS, other], NODES), want, site(slower_for))
    if "1" in found.deferred:
        assert "guards.slower_for" in found.deferred["1"]
    return [action.job.id for action in found.of(Kind.MOVE)] == ["1"]


@pytest.mark.parametrize(
    ("slower_for", "uid", "account", "moves"),
    [
        ("all", 1001, "chem", True),
        ("account", 1001, "phys", True),
        ("account", 1001, "chem", False),
        ("account", 1000, "", False),
        ("user", 1000, "chem", True),
        ("user", 1001, "phys", False),
        ("none", 1000, "phys", False),
    ],
)
def test_a_job_gives_its_faster_gpus_to_those_jobs_only(slower_for, uid, account, moves):
    other = running("2", {"k2": {"k80": 1}}, uid=uid, account=account, declaration=RESNET)
    assert moved(slower_for, other, {"1": AWAY, "2": THERE}) is moves


def test_for_no_job_at_all_it_is_not_moved_there_either():
    other = running("2", {"k2": {"k80": 1}}, uid=1000, account="phys", declaration=RESNET)
    assert moved("all", other, {"1": AWAY})
    assert not moved("user", other, {"1": AWAY})


def test_a_faster_place_is_open_with_any_setting():
    slow = running("1", {"k1": {"k80": 1}}, uid=1000, account="phys", declaration=RESNET)
    found = decide(
        observation([slow], [node("v1", gpus=1), node("k1", gpus=1, gpus_used={"k80": 1})]),
        {"1": THERE},
        site("none"),
    )
    assert [action.job.id for action in found.of(Kind.MOVE)] == ["1"]
