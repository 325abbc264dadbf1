"""Ordinary jobs that take whole nodes, with or without GPUs of their own."""

from hand_made import job, look, nodes, observation, ordinary

from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.domain.job import GpuRequest


def whole(count, **more):
    return ordinary(exclusive=True, request=GpuRequest(), node_count=count, cpus=count, **more)


def test_a_rival_for_whole_nodes_takes_their_gpus_with_them():
    shown = observation([job("1"), whole(6)])
    assert look(shown).view.nodes.gpus.sum() == 0


def test_a_rival_that_finds_too_few_empty_nodes_claims_none():
    shown = observation([whole(6)], nodes(v1=1))
    free = pending_demand.free_now(shown)
    free["v1"]["v100"] = 0
    shown.nodes["v1"].gpus_used["v100"] = 1
    busy = [n for n in shown.nodes.values() if n.name != "v1"]
    assert len(busy) == 5
    free.pop("v1")
    assert pending_demand.pending_demand(shown.jobs["9"], shown, free) is None
    assert pending_demand.pending_demand(whole(5), shown, free) is not None
    assert not any(sum(gpus.values()) for gpus in free.values())
