"""Jobs with ``fork`` that wait: Slurm starts them as their owner submitted them."""

from dataclasses import replace

import pytest
from hand_made import (
    NOW,
    config,
    decide,
    hinted,
    job,
    look,
    nodes,
    observation,
)

from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.steering import Steering, merge

GROUP = '[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n'
FORK = Declaration(model="resnet18", types=("any",), checkpoint="yes", fork=(1, 4))


def site(policy):
    return config(f'[controller]\npolicy = "{policy}"\n{GROUP}')


def waiting(number, **more):
    return job(declaration=FORK, node_count=number, tasks=number, cpus=number, **more)


@pytest.mark.parametrize("policy", ["timetable", "hadare"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_job_that_may_have_copies_keeps_the_partition_that_its_owner_typed(policy, number):
    """No one type may have the nodes that it asks for."""
    assert hinted(decide(observation([waiting(number)]), site=site(policy))) == {}


def test_a_policy_without_copies_orders_the_types_of_one_node_only():
    assert hinted(decide(observation([waiting(1)]), {}, site("hadar"))).keys() == {"1"}
    assert hinted(decide(observation([waiting(2)]), {}, site("hadar"))) == {}


@pytest.mark.parametrize("number", [1, 2])
def test_a_list_that_a_move_wrote_is_taken_back_while_it_waits(number):
    ours = Steering(
        time=NOW - 10, was={"Partition": "gpu"}, wrote={"Partition": "v100,p100,k80"}, moves=1
    )
    one = waiting(number, partitions=("v100", "p100", "k80"), restarts=2)
    one = replace(one, admin_comment=merge("", ours))
    assert hinted(decide(observation([one]), {}, site("timetable")))["1"] == {"Partition": "gpu"}


def test_a_job_is_planned_on_the_nodes_that_its_owner_typed():
    """One node with one GPU was planned for it, where Slurm starts it on two."""
    found = nodes(v1=2, v2=2, p1=2, k1=2)
    shown = look(observation([waiting(2)], found), site("timetable"))
    assert shown.schedulable["1"].request.count == 2
    assert shown.view.jobs.copies.tolist() == [1]
    once = replace(waiting(2), admin_comment=merge("", Steering(was={"NumNodes": "1-1"})))
    assert look(observation([once], found), site("timetable")).view.jobs.copies.tolist() == [4]
