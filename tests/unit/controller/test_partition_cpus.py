"""MaxCPUsPerNode holds for all jobs of a partition together: a move needs room for its own."""

from dataclasses import replace
from math import inf

import pytest
from hand_made import job, node, observation, running

from slurm_hadar.controller.actuation.destinations.host_capacity import FreeHostResources
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.node import Partition

MOVES = running("1", {"k1": {"k80": 1}}, cpus=2, partitions=("k80",))
LIST = {"Partition": "v100,k80"}


def free(most=4.0, used=3, state=JobState.RUNNING, **more):
    """What is free where another job of the partition v100 has CPUs of v1."""
    nodes = [node(name, cpus=64) for name in ("v1", "v2", "k1")]
    other = job("2", state, nodes=("v1",), cpus=used, partitions=("v100",))
    limited = Partition("v100", ("v1", "v2"), max_cpus_per_node=most)
    partitions = [limited, Partition("k80", ("k1",)), Partition("gpu", ("v1", "v2", "k1"))]
    return FreeHostResources(observation([MOVES, replace(other, **more)], nodes, partitions))


@pytest.mark.parametrize(
    ("more", "node_name", "fits"),
    [
        ({}, "v1", False),
        ({}, "v2", True),
        ({"used": 2}, "v1", True),
        ({"most": inf}, "v1", True),
        ({"most": 1}, "v2", False),
        ({"state": JobState.PENDING}, "v1", True),
        # Another partition's jobs do not count.
        ({"partitions": ("gpu",)}, "v1", True),
    ],
)
def test_a_move_needs_room_among_the_cpus_of_its_partition(more, node_name, fits):
    assert free(**more).take(MOVES, LIST, [node_name], {"k1"}) is fits


def test_a_partition_of_the_list_that_has_room_is_enough():
    assert free().take(MOVES, {"Partition": "v100,gpu"}, ["v1"], set())
    assert free().take(replace(MOVES, partitions=("gpu",)), {"Features": "v100"}, ["v1"], set())


def test_what_one_move_takes_the_next_one_does_not_have():
    found = free(used=2)
    assert found.take(MOVES, LIST, ["v1"], set()) and not found.take(MOVES, LIST, ["v1"], set())


def test_what_a_job_leaves_is_free_and_what_it_keeps_is_its_own():
    here = replace(MOVES, gpus={"v1": {"v100": 1}}, nodes=("v1",), partitions=("v100",))
    found = free()
    assert found.take(here, {}, ["v1"], {"v1"})
    found.add(replace(here, id="2", cpus=3))
    assert found.take(MOVES, LIST, ["v1"], set())
