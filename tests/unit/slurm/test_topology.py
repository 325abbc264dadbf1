"""Racks out of ``scontrol show topology``."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm.records import racks

TREE = (
    "SwitchName=r1 Level=0 LinkSpeed=1 Nodes=a[1-2]\n"
    "SwitchName=r2 Level=0 LinkSpeed=1 Nodes=b[1-2],c7\n"
    "SwitchName=core Level=1 LinkSpeed=1 Nodes=a[1-2],b[1-2],c7 Switches=r1,r2\n"
)
"""As 22.05.8 and 24.11.5 print it."""


def test_a_rack_is_a_leaf_switch() -> None:
    found = racks(TREE)
    assert found == {"a1": "r1", "a2": "r1", "b1": "r2", "b2": "r2", "c7": "r2"}


def test_a_node_on_two_leaf_switches_counts_to_the_first() -> None:
    assert racks(TREE + "SwitchName=r3 Level=0 LinkSpeed=1 Nodes=a1,d1\n")["a1"] == "r1"


@pytest.mark.parametrize(
    "text",
    ["", "\n", "BlockName=b1 BlockIndex=0 Nodes=a[1-4] BlockSize=4\n", "No topology information"],
)
def test_no_tree_no_racks(text: str) -> None:
    assert racks(text) == {}


def test_nodes_that_cannot_be_read_are_an_error_not_a_part() -> None:
    with pytest.raises(SlurmError):
        racks(TREE + "SwitchName=r3 Level=0 LinkSpeed=1 Nodes=a[1-\n")


@given(st.text(alphabet="SwitchName=r1 Level=0Nodes=a[,]-23\n", max_size=120))
def test_nonsense_raises_nothing_else(text: str) -> None:
    with contextlib.suppress(SlurmError):
        racks(text)
