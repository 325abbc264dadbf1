"""Which partitions take a job as they are now."""

import grp
import os
import pwd
from dataclasses import replace

import pytest
from hand_made import job, observation, running

from slurm_hadar.controller.observation.partition_access import (
    hangs_on_accounts_above,
    open_to,
    takes_account,
    why_closed,
)
from slurm_hadar.domain.node import Partition
from slurm_hadar.users import is_member

OLD, NEW, BETWEEN = (22, 5, 8), (24, 11, 5), (23, 2, 0)
PHYS = job(account="phys")


def shown(version=OLD, partitions=()):
    return observation([PHYS], partitions=list(partitions), slurm_version=version)


@pytest.mark.parametrize(
    ("version", "limits", "closed", "above_decides"),
    [
        (OLD, {"allow_accounts": ("phys",)}, False, False),
        (OLD, {"allow_accounts": ("science",)}, True, False),
        # Seen on 22.05.8 and 24.11.5.
        (OLD, {"allow_accounts": ("PHYS",)}, True, False),
        (NEW, {"allow_accounts": ("PHYS",)}, False, False),
        (NEW, {"allow_accounts": ("science",)}, False, True),
        (BETWEEN, {"allow_accounts": ("science",)}, True, False),
        (OLD, {"deny_accounts": ("science",)}, False, False),
        (NEW, {"deny_accounts": ("science",)}, False, True),
        (BETWEEN, {"deny_accounts": ("science",)}, False, True),
        (NEW, {"deny_accounts": ("phys",)}, True, False),
        (NEW, {"deny_accounts": ("phys",), "allow_accounts": ("phys",)}, False, False),
        (NEW, {}, False, False),
    ],
)
def test_accounts_count_as_each_release_counts_them(version, limits, closed, above_decides):
    one = Partition("gpu", **limits)
    found = why_closed(PHYS, one, shown(version))
    assert found == ("partition gpu excludes its account phys" if closed else "")
    assert hangs_on_accounts_above(PHYS, one, shown(version)) is above_decides


def test_a_job_without_an_account_has_none_that_is_allowed():
    one = Partition("gpu", allow_accounts=("phys",))
    assert "its account (none)" in why_closed(job(), one, shown())


@pytest.mark.parametrize(
    ("limits", "takes"),
    [
        ({"allow_accounts": ("science",)}, True),
        ({"allow_accounts": ("chem",)}, False),
        ({"deny_accounts": ("Science",)}, False),
        ({"deny_accounts": ("chem",)}, True),
    ],
)
def test_the_accounts_above_decide_for_those_below(limits, takes):
    assert takes_account("lab", ("lab", "science", "root"), Partition("gpu", **limits)) is takes


def test_groups_are_those_of_the_system():
    """As slurmctld takes them from the same databases."""
    me = pwd.getpwuid(os.getuid())
    own = grp.getgrgid(me.pw_gid).gr_name
    other = next(one.gr_name for one in grp.getgrall()
                 if one.gr_gid != me.pw_gid and me.pw_name not in one.gr_mem)  # fmt: skip
    assert is_member(me.pw_name, own) and not is_member(me.pw_name, other)
    assert not is_member("no such user", own) and not is_member(me.pw_name, "no such group")
    named = [(name, one.gr_name) for one in grp.getgrall() for name in one.gr_mem]
    assert all(is_member(name, group) for name, group in named)
    mine = job(user=me.pw_name)
    for groups, closed in (((own,), False), ((other,), True), ((other, own), False)):
        one = Partition("gpu", allow_groups=groups)
        assert bool(why_closed(mine, one, shown())) is closed
    one = Partition("gpu", allow_groups=(other,))
    assert not why_closed(replace(mine, uid=0), one, shown())


def test_a_list_is_left_without_those_that_are_closed():
    there = [Partition("a", deny_accounts=("phys",)), Partition("b", max_time_s=10.0)]
    seen = shown(partitions=there)
    # Slurm gives a job without --time that of the partition in which it starts.
    assert open_to(PHYS, ("a", "b", "gone"), seen) == ("b", "gone")
    for here, found in (("a", ("a", "gone")), ("b", ("b", "gone")), ("gone", ("gone",))):
        runs = running("1", {"k1": {"k80": 1}}, partitions=(here,), account="phys")
        assert open_to(runs, ("a", "b", "gone"), seen) == found
