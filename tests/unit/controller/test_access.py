"""Where a job's owner may go."""

import grp
import os
import pwd
from dataclasses import replace
from math import inf

import pytest
from hand_made import job

from slurm_hadar.controller.seen.access import allowed_partitions, groups_of, refusal
from slurm_hadar.domain.node import Partition

OPEN = Partition("open")
MINE = job(
    account="phys",
    qos="normal",
    uid=os.getuid(),
    time_limit_s=3600.0,
    cpus=4,
    mem_per_cpu_mb=2000,
)


def test_an_open_partition_refuses_nobody():
    assert refusal(MINE, OPEN) is None


@pytest.mark.parametrize(
    ("closed", "says"),
    [
        ({"up": False}, "not up"),
        ({"root_only": True}, "closed"),
        ({"reservation_required": True}, "closed"),
        ({"allow_accounts": ("chem",)}, "account"),
        ({"deny_accounts": ("phys",)}, "account"),
        ({"allow_qos": ("high",)}, "QOS"),
        ({"deny_qos": ("normal",)}, "QOS"),
        ({"allow_groups": ("no-such-group",)}, "groups"),
        ({"max_time_s": 3599.0}, "time limit"),
        ({"min_nodes": 2}, "node count"),
        ({"max_nodes": 0.0}, "node count"),
        ({"submit_hosts": ("login1",)}, "certain hosts"),
        ({"max_cpus_per_node": 3.0}, "more CPUs"),
        ({"max_mem_per_node_mb": 7999.0}, "more memory"),
        ({"max_mem_per_cpu_mb": 1999.0}, "more memory"),
    ],
)
def test_each_limit_of_a_partition_counts(closed, says):
    assert says in refusal(MINE, replace(OPEN, **closed))


@pytest.mark.parametrize(
    "fitting",
    [
        {"allow_accounts": ("chem", "phys")},
        {"deny_accounts": ("chem",)},
        {"allow_qos": ("normal",)},
        {"max_time_s": 3600.0},
        {"max_cpus_per_node": 4.0, "max_mem_per_node_mb": 8000.0, "max_mem_per_cpu_mb": 2000.0},
        {"allow_groups": (grp.getgrgid(os.getgid()).gr_name,)},
    ],
)
def test_who_meets_a_limit_is_let_in(fitting):
    assert refusal(MINE, replace(OPEN, **fitting)) is None


def test_without_an_account_a_list_of_accounts_admits_nobody():
    assert refusal(replace(MINE, account=""), replace(OPEN, allow_accounts=("phys",)))
    assert refusal(replace(MINE, time_limit_s=inf), replace(OPEN, max_time_s=1e6))


def test_groups_are_those_that_the_system_would_give_at_login():
    me = pwd.getpwuid(os.getuid())
    expected = {grp.getgrgid(g).gr_name for g in os.getgrouplist(me.pw_name, me.pw_gid)}
    assert groups_of(os.getuid()) == expected
    assert groups_of(4_294_967_000) == frozenset()


def test_a_partition_that_the_owner_named_is_slurms_business_while_it_is_up():
    closed = replace(OPEN, allow_accounts=("chem",))
    known = {"open": closed, "other": replace(OPEN, name="other")}
    named = allowed_partitions(MINE, ["open"], known, ["other", "open", "gone"])
    assert [p.name for p in named] == ["open", "other"]
    known["open"] = replace(closed, up=False)
    assert [p.name for p in allowed_partitions(MINE, ["open"], known, ["other"])] == ["other"]
    assert allowed_partitions(MINE, ["gone"], known, []) == []


def test_a_job_does_not_get_ahead_of_others_by_a_partition_of_a_higher_tier():
    known = {
        "own": Partition("own", priority_tier=5),
        "fast": Partition("fast", priority_tier=9),
        "slow": Partition("slow", priority_tier=1),
    }
    steered = allowed_partitions(MINE, ["own"], known, ["fast", "slow"])
    assert [p.name for p in steered] == ["own", "slow"]


def test_a_partition_that_gives_whole_nodes_is_not_steered_into():
    assert "whole nodes" in refusal(MINE, replace(OPEN, exclusive=True))
