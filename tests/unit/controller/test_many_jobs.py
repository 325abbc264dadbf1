"""What a tick does for each waiting job does not grow with the nodes."""

from collections import UserDict

import pytest
from hand_made import RATES, TYPES, config, job, node, observation

from slurm_hadar.controller.actuation.pending.hint_updates import HintInput
from slurm_hadar.controller.actuation.pending.hints import hints
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.controller.snapshot.view_builder import take_snapshot
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.placement import Plan

GROUPS = '[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n'


class Counted(UserDict):
    """Nodes, and how often one was looked up."""

    looks = 0

    def __getitem__(self, key):
        self.looks += 1
        return super().__getitem__(key)


def looks(jobs, nodes):
    """Into the nodes while the waiting jobs get their hints."""
    names = [f"{'vpk'[number % 3]}{number}" for number in range(nodes)]
    partitions = {"gpu": Partition("gpu", tuple(names), default=True)}
    for letter, kind in TYPES.items():
        mine = tuple(name for name in names if name.startswith(letter))
        partitions[kind] = Partition(kind, mine)
    held = [node(name, gpus_used={TYPES[name[0]]: 2}, state="ALLOCATED") for name in names]
    shown = observation([job(str(one + 1)) for one in range(jobs)], held)
    counted = Counted(shown.nodes)
    shown = type(shown)(shown.now, shown.jobs, counted, partitions)
    site = config(GROUPS)
    snapshot = take_snapshot(shown, site, RATES, ControllerHistory())
    counted.looks = 0
    found = hints(snapshot, Plan({}), HintInput(shown, site))
    assert found
    return counted.looks


@pytest.mark.parametrize("nodes", [30, 120])
def test_hints_do_not_look_through_all_nodes_for_each_job(nodes):
    assert looks(200, nodes) - looks(20, nodes) < nodes
