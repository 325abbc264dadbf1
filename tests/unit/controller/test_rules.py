"""What binds an operator's controller."""

import os
from dataclasses import replace

import pytest
from hand_made import NOW, config, job

from slurm_hadar.controller.seen.rules import Rules, refuse_root
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.domain.node import Partition
from slurm_hadar.slurm.limits import Limits

WIDE = Declaration(types=("any",), gpus=(1, 2), cpus=(1, 8), mem=(1, 9), fork=(1, 4), nodes=(1, 4))
ANN = job("1", user="ann", account="phys", qos="normal", declaration=WIDE)
PARTITIONS = {"gpu": Partition("gpu", qos="part")}


class Slurm:
    """What the rules ask of a cluster."""

    def __init__(self, enforce="associations,limits,qos", limits=None, user="slurm(64030)"):
        self.settings = {"ClusterName": "c", "SlurmUser": user, "AccountingStorageEnforce": enforce}
        self.limits, self.asked = limits, 0

    def read_config(self):
        return self.settings

    def read_limits(self, cluster):
        assert cluster == "c"
        self.asked += 1
        if self.limits is None:
            raise SlurmError("sacctmgr: slurmdbd is away")
        return self.limits


def left(slurm, site=None, at=NOW):
    rules = Rules(slurm, site or config())
    rules.read(at)
    (found,) = rules.applied({"1": ANN}, PARTITIONS).values()
    return found.declaration


BOUND = replace(WIDE, cpus=None, mem=None, fork=(1, 1), nodes=None)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (Limits(), WIDE),
        (Limits(users=frozenset({("phys", "bob")})), WIDE),
        (Limits(users=frozenset({("phys", "ann")})), BOUND),
        (Limits(accounts=frozenset({"phys"})), BOUND),
        (Limits(qos=frozenset({"part"})), BOUND),
        (None, BOUND),
    ],
)
def test_under_a_limit_a_job_keeps_what_it_asked_for(limits, kept):
    assert left(Slurm(limits=limits)) == kept


def test_where_limits_are_not_enforced_nobody_is_asked_for_them():
    slurm = Slurm("associations", limits=None)
    assert left(slurm) == WIDE and slurm.asked == 0
    assert left(Slurm("safe", limits=None)) == BOUND


@pytest.mark.parametrize("rights", ["user", "sandbox"])
def test_only_an_operator_goes_past_limits(rights):
    slurm = Slurm(limits=Limits(accounts=frozenset({"phys"})), user=f"me({os.getuid()})")
    site = config(f'[site]\nrights = "{rights}"\n')
    assert left(slurm, site) == WIDE and slurm.asked == 0
    refuse_root(site)
    Rules(slurm, site).refuse_slurm_user()


def test_they_are_asked_for_every_ten_minutes_and_known_while_the_database_is_away():
    slurm = Slurm(limits=Limits())
    rules = Rules(slurm, config())
    for after_s, asked in ((0, 1), (599, 1), (601, 2)):
        rules.read(NOW + after_s)
        assert slurm.asked == asked
    slurm.limits = None
    rules.read(NOW + 1300)
    assert rules.applied({"1": ANN}, PARTITIONS)["1"] is ANN
    rules.read(NOW + 1361)
    assert slurm.asked == 4, "it is asked sooner again"


def test_more_than_an_operator_is_refused(monkeypatch):
    with pytest.raises(HadarError, match="SlurmUser may do more"):
        Rules(Slurm(user=f"me({os.geteuid()})"), config()).refuse_slurm_user()
    Rules(Slurm(user="slurm(4000000)"), config()).refuse_slurm_user()
    Rules(Slurm(user="slurm"), config()).refuse_slurm_user()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(HadarError, match="root may do more"):
        refuse_root(config())
