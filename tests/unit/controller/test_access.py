"""Where a job may run: what its owner asked for, and what stands for it."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hand_made import job

from slurm_hadar.controller.observation.access import (
    allowed_partitions,
    unlike_groups,
    why_not_alike,
)
from slurm_hadar.domain.node import Partition

GPU = Partition("gpu", ("v1", "v2", "k1"), default=True, priority_tier=5, allow_groups=("a", "b"))
V100 = replace(GPU, name="v100", nodes=("v2", "v1"), default=False, allow_groups=("b", "a"))
K80 = replace(GPU, name="k80", nodes=("k1",), default=False)
DEBUG = Partition("debug", ("k1",))
GROUPS = {"gpu": ("v100", "k80")}


def allowed(asked, *partitions, groups=GROUPS, **more):
    there = {partition.name: partition for partition in partitions or (GPU, V100, K80, DEBUG)}
    found = allowed_partitions(job(**more), asked, there, groups)
    return [partition.name for partition in found]


def test_a_partition_of_a_group_becomes_its_members():
    assert allowed(["gpu"]) == ["v100", "k80"]
    assert allowed(["debug", "gpu"]) == ["debug", "v100", "k80"]
    assert allowed(["k80", "gpu", "k80"]) == ["k80", "v100"]


def test_any_other_partition_is_kept_as_it_was_asked_for():
    assert allowed(["debug"]) == ["debug"]
    assert allowed(["v100"]) == ["v100"]
    assert allowed(["k80", "debug", "gone"]) == ["k80", "debug"]
    assert allowed(["gpu"], groups={}) == ["gpu"]


def test_what_is_down_is_left_out():
    down = replace(V100, state="DOWN")
    assert allowed(["gpu"], GPU, down, K80) == ["k80"]
    assert allowed(["gpu"], GPU, down, replace(K80, state="DOWN")) == ["gpu"]
    assert allowed(["gpu", "debug"], replace(GPU, state="DOWN"), V100, K80, DEBUG) == ["debug"]


def test_a_group_with_a_member_that_is_missing_or_differs_stands_for_nothing():
    assert allowed(["gpu"], GPU, V100) == ["gpu"]
    assert allowed(["gpu"], GPU, V100, replace(K80, priority_tier=6)) == ["gpu"]
    assert allowed(["gpu"], groups={"gpu": ()}) == ["gpu"]


def test_a_job_that_spans_the_types_stays_in_their_partition():
    assert allowed(["gpu"], node_count=2) == ["v100", "k80"]
    assert allowed(["gpu"], node_count=3) == ["gpu"]
    assert allowed(["gpu"], GPU, replace(V100, state="DOWN"), K80, node_count=2) == ["gpu"]


def test_a_job_stays_where_its_owner_has_an_association_for_the_partition():
    assert allowed(["gpu"], own_partitions=frozenset({"gpu"})) == ["gpu"]
    assert allowed(["gpu"], own_partitions=frozenset({"k80"})) == ["gpu"]
    assert allowed(["gpu"], own_partitions=frozenset({"debug"})) == ["v100", "k80"]


def test_a_group_stands_for_nothing_where_it_differs():
    there = {one.name: one for one in (GPU, V100, K80, DEBUG)}
    assert unlike_groups(GROUPS, there) == ()
    other = {**there, "k80": replace(K80, defaults={"DefMemPerCPU": "9"})}
    assert unlike_groups(GROUPS, other) == ("gpu",)
    assert unlike_groups({"gpu": ("v100", "gone")}, there) == ("gpu",)


def test_members_are_alike_whatever_their_order_and_state():
    assert why_not_alike(GPU, [V100, K80]) == ""
    assert why_not_alike(GPU, [K80, replace(V100, state="DOWN")]) == ""


OTHER: dict[type, Any]
OTHER = {bool: True, int: 7, float: 7.0, str: "other", tuple: ("other",), dict: {"LLN": "YES"}}


@pytest.mark.parametrize(
    "field",
    [f.name for f in fields(Partition) if f.name not in ("name", "nodes", "default", "state")],
)
def test_each_other_field_makes_a_difference(field):
    other = replace(K80, **{field: OTHER[type(getattr(K80, field))]})
    said = why_not_alike(GPU, [V100, other])
    assert said.startswith("partition k80 has another ") and said.endswith(" than gpu")


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([V100], "partition gpu has node k1, which no member has"),
        ([V100, replace(K80, nodes=("k1", "k2"))], "partition k80 has node k2, which gpu lacks"),
        ([V100, replace(K80, priority_factor=3)], "another PriorityJobFactor than gpu"),
        ([V100, replace(K80, billing="GRES/gpu=2")], "another TRESBillingWeights than gpu"),
        ([V100, replace(K80, defaults={"DefMemPerCPU": "1"})], "another DefMemPerCPU than gpu"),
        ([], "partition gpu has node v1, which no member has"),
    ],
)
def test_the_first_difference_is_named(members, says):
    assert says in why_not_alike(GPU, members)
