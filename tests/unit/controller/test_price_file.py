"""What a tick publishes of the partitions in which jobs stay as typed."""

from dataclasses import replace
from typing import Any

from hand_made import config, observation

from slurm_hadar.controller.price_file import unchanged_partitions
from slurm_hadar.domain.node import Partition
from slurm_hadar.exchange.prices import mark

GPU = Partition("gpu", ("v1", "k1"))
V100 = Partition("v100", ("v1",))
K80 = Partition("k80", ("k1",))
SITE = config('[partitions.groups]\ngpu = ["v100", "k80"]\n')


class Rules:
    """Whose associations there are."""

    def __init__(self, users):
        self.users = users

    def users_bound_to(self, partitions):
        assert set(partitions) == {"gpu", "v100", "k80"}
        return self.users


def kept(users=frozenset(), k80=K80):
    there = {one.name: one for one in (GPU, V100, k80)}
    rules: Any = Rules(users)
    return unchanged_partitions(SITE, rules, replace(observation([]), partitions=there))


def test_a_group_that_differs_is_kept_by_all():
    assert kept() == {}
    assert kept(k80=replace(K80, defaults={"DefMemPerCPU": "4"})) == {"gpu": None}
    assert kept({"ann"}, k80=replace(K80, grace_s=4.0)) == {"gpu": None}


def test_a_group_of_which_a_member_starts_no_jobs_is_kept_by_all():
    assert kept(k80=replace(K80, state="DRAIN")) == {"gpu": None}
    assert kept({"ann"}, k80=replace(K80, state="DRAIN")) == {"gpu": None}


def test_users_with_an_association_are_marked_and_not_named():
    assert kept({"ann", "bob"}) == {"gpu": sorted((mark("ann"), mark("bob")))}
    assert kept(None) == {"gpu": None}
    assert kept({f"user{n}" for n in range(201)}) == {"gpu": None}
