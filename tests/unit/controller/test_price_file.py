"""What a tick publishes: what newcomers know of prices, free GPUs and waits, and the partitions in
which jobs stay as typed."""

from dataclasses import replace
from typing import Any

import pytest
from hand_made import NOW, config, job, look, nodes, observation, ordinary, running

from slurm_hadar.controller import price_file
from slurm_hadar.controller.price_file import unchanged_partitions
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.node import Partition
from slurm_hadar.exchange.prices import mark

GPU = Partition("gpu", ("v1", "k1"))
V100 = Partition("v100", ("v1",))
K80 = Partition("k80", ("k1",))
SITE = config('[partitions.groups]\ngpu = ["v100", "k80"]\n')
MODEL = Declaration(model="resnet50", types=("any",), batch=(64, 64), samples=10**6)
KINDS = ("k80", "p100", "v100")


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


def known_to_newcomers(jobs, found=None):
    shown = observation(jobs, found)
    return price_file.type_prices(shown, look(shown))


def test_an_idle_cluster_is_cheap_and_a_full_one_dear():
    idle = known_to_newcomers([])
    found = {kind: (one.gpus, one.free) for kind, one in idle.items()}
    assert found == dict.fromkeys(KINDS, (4, 4))
    assert all(one.price == one.least for one in idle.values())
    full = [
        running(str(n), {name: {kind: 2}}, declaration=None)
        for n, (name, kind) in enumerate(
            (("v1", "v100"), ("v2", "v100"), ("p1", "p100"), ("p2", "p100"), ("k1", "k80"))
        )
    ]
    ours = running("9", {"k2": {"k80": 1}}, declaration=MODEL)
    busy = known_to_newcomers([*full, ours], nodes(v1=2, v2=2, p1=2, p2=2, k1=2, k2=1))
    assert {kind: one.free for kind, one in busy.items()} == {"v100": 0, "p100": 0, "k80": 1}
    assert busy["v100"].price == pytest.approx(busy["v100"].most) == pytest.approx(1.0)
    assert busy["k80"].price < busy["k80"].most < busy["p100"].most < busy["v100"].most


def test_waits_are_those_behind_everybody():
    length = 3600.0 * 2.25
    held = running("1", {"v1": {"v100": 2}}, time_limit_s=length, start_s=NOW, declaration=None)
    waits = known_to_newcomers([held], nodes(v1=2))["v100"].wait_s
    assert waits[1] == waits[2] == 0.0 and waits[4] == pytest.approx(3600.0)
    assert 8 not in waits
    ahead = ordinary("2", request=GpuRequest(per_node={UNTYPED: 2}), time_limit_s=length)
    typed = replace(ahead, request=GpuRequest(per_node={"v100": 2}))
    behind = known_to_newcomers([held, typed], nodes(v1=2))["v100"]
    assert behind.free == 0 and behind.wait_s[1] == pytest.approx(3600.0)


def test_nodes_that_are_down_count_for_nothing():
    found = [replace(n, usable=n.name != "v1") for n in nodes()]
    assert known_to_newcomers([], found)["v100"].gpus == 2
    assert "v100" not in known_to_newcomers(
        [], [replace(n, usable=n.name[0] != "v") for n in nodes()]
    )
    assert known_to_newcomers([], []) == {}


def test_the_largest_usable_nodes_of_a_partition_are_reported():
    v1, v2, p1, p2, *rest = nodes()
    found = [
        replace(v1, cpus=64),
        replace(v2, memory_mb=512_000),
        replace(p1, cpus=8),
        p2,
        *(replace(one, usable=False) for one in rest),
    ]
    assert price_file.largest_nodes(observation([], found), ("v100", "p100", "k80", "gone")) == {
        "v100": [(2, 32, 512_000), (2, 64, 256_000)],
        "p100": [(2, 32, 256_000)],
        "k80": [],
        "gone": [],
    }


def test_what_has_come_lately_is_counted_in_gpus():
    two = GpuRequest(per_node={UNTYPED: 2})
    new = {"submit_s": NOW - 5, "request": two}
    others = [ordinary("3", **new), job("4", held=True, **new)]
    shown = observation([job("1", **new), job("2", submit_s=NOW - 100), *others])
    assert price_file.arriving(shown, 60.0) == 2
    assert price_file.arriving(shown, 120.0) == 3


def test_prices_of_few_users_are_private_where_jobs_are():
    few = observation([job(str(n), uid=2000 + n) for n in range(1, 5)])
    many = observation([job(str(n), uid=2000 + n) for n in range(1, 6)])
    assert price_file.is_private(few, True) and not price_file.is_private(few, False)
    assert not price_file.is_private(many, True)
