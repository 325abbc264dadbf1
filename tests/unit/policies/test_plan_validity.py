"""What is said of a plan that cannot be carried out."""

from dataclasses import replace

import numpy as np
import pytest

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.policies.validity import problems
from slurm_hadar.testing import check_plan, jobs_of, nodes_of, view_of

NODES = nodes_of([[4, 0], [0, 4]], cpus=[8, 8], group=[0, 1])


def view(**arrays):
    rate = [[[1.0, 2.0], [0.0, 0.0]]]
    usual = {"groups": 2, "cpus_per_gpu": 2.0}
    return view_of(NODES, jobs_of(rate, **{**usual, **arrays}), counts=(1, 2))


def plan(nodes, **more):
    gpus: dict[str, int] = {}
    for on_node in nodes.values():
        for kind, count in on_node.items():
            gpus[kind] = gpus.get(kind, 0) + count
    return Plan({"j0": Placement(**{"gpus": gpus, "nodes": nodes, "reason": "why", **more})})


ON = {"n0": {"fast": 2}}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Plan(), "neither placed nor waits"),
        (Plan(waiting={"j0": ""}), "neither placed nor waits"),
        (Plan(waiting={"j0": "w", "j9": "w"}), "j9 is not in the view"),
        (replace(plan(ON), waiting={"j0": "w"}), "is placed and waits"),
        (plan(ON, reason=""), "without a reason"),
        (plan({}, gpus={"fast": 2}), "names no nodes"),
        (plan(ON, gpus={"fast": 1}), "the placement says"),
        (plan({"n7": {"fast": 2}}), "on a node n7"),
        (plan({"n0": {"odd": 2}}), "no odd"),
        (plan({"n0": {"fast": 0}}), "0 GPUs on node n0"),
        (plan({"n0": {"fast": 3}}), "cannot run on 3 x fast"),
        (plan({"n1": {"middle": 2}}), "cannot run on 2 x middle"),
        (plan({"n0": {"fast": 1}, "n1": {"middle": 1}}), "2 nodes, of 1"),
        (plan(ON, copies=2), "copies=2, nodes=1"),
        (plan(ON, cpus_per_gpu=5.0), "n0 gives more CPUs"),
        (plan(ON, mem_per_gpu_mb=10**6), "n0 gives more memory"),
    ],
)
def test_what_is_wrong_is_said(made, words):
    (said,) = problems(view(), made)
    assert words in said
    with pytest.raises(AssertionError, match=words):
        check_plan(view(), made)
    check_plan(view(), plan(ON))


def test_a_job_that_may_not_be_moved_keeps_what_it_holds():
    held = view(held=[(0, 0, 0, 1)], movable=False)
    check_plan(held, plan({"n0": {"fast": 1}}))
    assert "is moved" in problems(held, plan(ON))[0]
    assert "is stopped" in problems(held, Plan(waiting={"j0": "w"}))[0]


def test_a_node_that_is_closed_or_shrank_takes_no_new_job():
    closed = view(groups_of=[False, True])
    assert "not open to its owner" in problems(closed, plan(ON))[0]
    shrunk = view(held=[(0, 0, 0, 2)])
    none = replace(shrunk, nodes=replace(NODES, gpus=np.zeros((2, 2), np.int64)))
    check_plan(none, plan(ON))
    assert "more GPUs" in problems(none, plan({"n0": {"fast": 1}}))[0]
