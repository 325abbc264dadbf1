"""Partitions that a job's Comment names: they open nothing that Slurm did not accept."""

from dataclasses import replace

import pytest
from hand_made import config, job, running

from slurm_hadar.controller.actuation.job_updates import asked_for
from slurm_hadar.controller.snapshot.resource_request import believed_partitions
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.steering import Steering

SITE = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\nvip = ["x1", "x2"]\n')
GROUPS = SITE.partitions.groups


def declared(*names):
    return Declaration(types=("any",), partitions=names)


@pytest.mark.parametrize("names", [("gpu", "vip"), ("vip",), ("v100", "vip"), ("gpu", "v100")])
@pytest.mark.parametrize("there", [("gpu",), ("v100",), ("v100", "k80")])
def test_a_comment_opens_no_other_partition(names, there):
    waits = job("1", partitions=there, declaration=declared(*names))
    assert asked_for(waits, Steering(), SITE) == {}
    began = running("1", {"v1": {"v100": 1}}, partitions=there[:1], declaration=declared(*names))
    assert asked_for(began, Steering(), SITE) == {}
    moved = Steering(was={"Partition": ",".join(there)})
    assert asked_for(waits, moved, SITE) == moved.was


def test_one_group_is_believed_of_a_job_in_members_of_it():
    for one in (job("1", partitions=("v100", "k80")), running("1", {"v1": {"v100": 1}})):
        for there, believed in ((("v100",), ("gpu",)), (("x1",), ()), (("v100", "x1"), ())):
            written = replace(declared("gpu"), listed=there)
            known = job("1", partitions=there, declaration=written, state=one.state)
            assert believed_partitions(known, Steering(), GROUPS) == believed
            assert asked_for(known, Steering(), SITE).get("Partition", "") == ",".join(believed)
