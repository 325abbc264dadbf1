"""A job waits while a partition of its list or of its group is not UP: the messages name it."""

import os
from contextlib import closing
from dataclasses import replace

import pytest
from hand_made import (
    CONFIG,
    NOW,
    config,
    job,
    nodes,
    observation,
    ordinary,
    partitions_of,
    running,
    that_sees,
)

from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation.closed_partitions import why_closed
from slurm_hadar.controller.presentation.diagnostics import problems
from slurm_hadar.controller.presentation.job_context import JobContext
from slurm_hadar.controller.presentation.job_explanation import explanation_of
from slurm_hadar.controller.presentation.overview import Sight, Viewer, overview
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.heartbeat import Heartbeat
from slurm_hadar.reports.status import CONTROLLER, ControllerState

SITE = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
LIST = ("v100", "p100", "k80")
ANY = Declaration(types=("any",), model="resnet50", checkpoint="yes", partitions=("gpu",))
DOWN = "partition v100 is DOWN (Slurm starts no job there)"
GROUP_WAITS = (
    "; until all are UP the job waits in partition gpu, as its owner typed it, and may start there "
    "on any GPU type that it accepts"
)


def shown(one, site=SITE, steering=None, **states):
    parts = [replace(p, state=states.get(p.name, "UP")) for p in partitions_of(nodes())]
    more = {"steering": {"1": steering}} if steering else {}
    return observation([one], partitions=parts, **more), one, site


def why(*arguments, **more):
    found, one, site = shown(*arguments, **more)
    return why_closed(one, found, site)


WAITS = job("1", declaration=ANY)


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ({}, ""),
        ({"v100": "DOWN"}, f"in its group gpu, {DOWN}{GROUP_WAITS}"),
        (
            {"v100": "DRAIN", "k80": "INACTIVE"},
            "in its group gpu, partition v100 is DRAIN (it takes no new job) and partition k80 is "
            f"INACTIVE (it takes no new job, and Slurm starts none there){GROUP_WAITS}",
        ),
        ({"gpu": "DOWN"}, "partition gpu is DOWN (Slurm starts no job there)"),
        ({"gpu": "DRAIN"}, "partition gpu is DRAIN (it takes no new job)"),
        ({"gpu": "INACTIVE", "v100": "DOWN"}, "partition gpu is INACTIVE (it takes no new job, and "
         "Slurm starts none there)"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_job_in_the_partition_that_its_owner_typed(states, says):
    assert why(WAITS, **states) == says


def test_a_list_starts_in_its_other_partitions():
    listed = replace(WAITS, partitions=LIST)
    assert why(listed, v100="DOWN", p100="UP") == f"{DOWN}; it may start in p100 and k80"
    assert why(listed, v100="DRAIN") == "partition v100 is DRAIN (it takes no new job)"
    assert why(listed, **dict.fromkeys(LIST, "DOWN")).count("DOWN") == 3


def test_one_of_the_owners_list_that_is_left_out_meanwhile_is_named():
    typed = job("1", partitions=("k80",), declaration=replace(ANY, partitions=("v100", "k80")))
    ours = Steering(was={"Partition": "v100,k80"}, wrote={"Partition": "k80"})
    assert why(typed, steering=ours, v100="DOWN") == f"{DOWN}; it may start in k80"
    assert why(typed, steering=ours) == ""


def test_what_does_not_keep_a_job_is_not_named():
    assert why(running("1", {"k1": {"k80": 1}}, declaration=ANY), v100="DOWN", gpu="DOWN") == ""
    assert why(job("1", declaration=replace(ANY, types=("k80",))), v100="DOWN") == ""
    # Its owner's own list, or a site without a group.
    assert why(WAITS, steering=Steering(foreign=("Partition",)), v100="DOWN") == ""
    assert why(WAITS, site=CONFIG, v100="DOWN") == ""
    assert why(job("1", partitions=("k80",), declaration=replace(ANY, partitions=("k80",))),
               v100="DOWN") == ""  # fmt: skip
    assert why(ordinary("1"), v100="DOWN") == ""
    assert why(ordinary("1"), gpu="DOWN").startswith("partition gpu is DOWN")


def test_explain_says_it(tmp_path):
    found, one, _ = shown(WAITS, v100="DOWN")
    with closing(Store.open(tmp_path / "state")) as store:
        notes = explanation_of(that_sees(store, found, SITE), "1").notes
    assert f"Waits: {why_closed(one, found, SITE)}" in notes


def test_status_and_doctor_say_it():
    found, one, _ = shown(WAITS, v100="DOWN")
    said = why_closed(one, found, SITE)
    sight = Sight(found, SITE, ControllerState("acts", "here", NOW - 5), CONTROLLER, {})
    ann, bob = Viewer(1000), Viewer(1001)
    assert said in overview(sight, ann).rows[0].reason
    assert "DOWN" not in overview(sight, bob).rows[0].reason
    beat = Heartbeat("here", 1, "act", NOW - 20, 60.0)
    (problem,) = problems(JobContext("1", found, SITE, os.getuid(), beat))
    assert problem.what == said
    assert problem.cures == ("as an operator: scontrol update PartitionName=v100 State=UP",)
    found, one, _ = shown(replace(WAITS, reason="PartitionDown"), gpu="DOWN")
    last = Decision("1", NOW - 5, "not steered", "Slurm keeps it waiting: PartitionDown")
    (problem,) = problems(JobContext("1", found, SITE, os.getuid(), beat, last=last))
    assert problem.what == "partition gpu is DOWN (Slurm starts no job there)"
